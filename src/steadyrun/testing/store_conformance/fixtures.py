"""Provides the set-up of the checks: an agent, a holder, and short names for their actions."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import anyio

from steadyrun.errors import SteadyrunError
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, Event, EventSource, Note, TextFinal, make_place
from steadyrun.model.gate import Closed
from steadyrun.model.ids import AgentId, HolderId, Ids, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.process import Checkpoint, Process
from steadyrun.model.run import Created, EndStatus, Finished, Launched
from steadyrun.model.session import ResumeToken
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import MaintainedStore, Started, Store
from steadyrun.testing.store_conformance.harness import StoreHarness

TICK = timedelta(milliseconds=1)
# A check that hangs fails after this time.
TIMEOUT_SECONDS = 60.0
ALL = 100_000

E = TypeVar("E", bound=SteadyrunError)


@dataclass(frozen=True)
class Scene:
    """A store, one agent in it and one living holder."""

    harness: StoreHarness
    store: MaintainedStore
    agent: AgentId
    holder: HolderId

    async def add_agent(self, name: str, **fields: Any) -> AgentId:
        return await add_agent(self.harness, self.store, name, **fields)

    async def send(
        self, text: str = "work", *, to: AgentId | None = None, key: str | None = None
    ) -> Item:
        """Accept a message a moment after the last step, so that ids sort as they were made."""
        self.harness.clock.advance(TICK)
        return (await self.store.accept(Message(to or self.agent, text, key=key))).item

    async def claim_next(self, **fields: Any) -> Claim:
        """Start the next item of the agent; `fields` are those of its run."""
        [claim] = await self.claim_lanes(**fields)
        assert claim.agent == self.agent
        return claim

    async def claim_lanes(
        self, limit: int = 1, *, agent: AgentId | None = None, **fields: Any
    ) -> list[Claim]:
        return await claim_lanes(self.store, self.holder, limit, agent=agent, **fields)

    async def start(
        self,
        limit: int = 5,
        *,
        store: Store | None = None,
        agent: AgentId | None = None,
        excluded: Collection[str] = (),
        **fields: Any,
    ) -> list[Started]:
        """Start up to `limit` items with the store, or with the store of another process."""
        return await (store or self.store).start(
            self.holder, make_run_creator(**fields), limit, agent=agent, excluded=excluded
        )

    async def reap_claims(self) -> list[Claim]:
        return await reap_claims(self.store, self.holder)

    async def begin(self, claim: Claim, **fields: Any) -> RunId:
        """The run of the claim's item; a new one if the item has none."""
        return claim.item.run or await self.create(claim, **fields)

    async def create(self, claim: Claim, **fields: Any) -> RunId:
        """Create a run for the claim's item."""
        self.harness.clock.advance(TICK)
        run, now = self.harness.ids.make_run(), self.harness.clock.now()
        values = {"provider": "claude", "at": now, **fields}
        await self.store.change(claim, run, Created(run, claim.agent, claim.item.id, **values))
        return run

    async def open_process(self, claim: Lease, provider: str = "claude") -> ProcessId:
        process = self.make_process(claim.agent, provider)
        await self.store.open_process(claim, process)
        return process.id

    def make_process(self, agent: AgentId, provider: str = "claude") -> Process:
        process, now = self.harness.ids.make_process(), self.harness.clock.now()
        place = ("here", "/keepers/1")
        return Process(process, agent, provider, *place, now, seal="seal-1", account="work")

    async def finish(self, claim: Claim, status: EndStatus = "completed", **fields: Any) -> Item:
        return await self.store.settle(claim, self.make_end(status, **fields))

    def make_end(self, status: EndStatus = "completed", **fields: Any) -> Finished:
        return Finished(self.harness.clock.now(), status, **{"text": "done", **fields})

    async def list_states(self, *items: Item) -> list[tuple[str, str]]:
        """The status and the delivery of each item, as stored."""
        found = [await self.store.item(item.id) for item in items]
        return [(item.status, item.delivery) for item in found]


@dataclass(frozen=True)
class Working(Scene):
    """A scene in the middle of a run: a claim, its run and its open process."""

    claim: Claim
    run: RunId
    process: ProcessId

    @property
    def lease(self) -> Lease:
        """The lease on the lane, without its item."""
        return self.claim.to_lease()

    def make_batch(self, start: int, end: int, *events: Emitted, **fields: Any) -> Batch:
        """A batch of this run; without events it has one text, at `end`."""
        fields.setdefault("run", self.run)
        events = events or (self.make_event(end),)
        return Batch(self.process, from_offset=start, to_offset=end, events=events, **fields)

    def make_event(self, offset: int, n: int = 0, event: Event | None = None) -> Emitted:
        now = self.harness.clock.now()
        return Emitted(offset, n, now, event or TextFinal(f"text at {offset}.{n}"))

    def make_note(self, source: EventSource, n: int) -> Emitted:
        return Emitted(make_place(source, n), 0, self.harness.clock.now(), Note(f"{source}{n}"))

    def make_token(self, name: str) -> ResumeToken:
        return ResumeToken(name, "here", "/home/ada", None, self.harness.clock.now())


@dataclass(frozen=True)
class Steered(Working):
    """A run in progress and the messages that were sent after its beginning."""

    later: list[Item]

    def make_unprompted(self, key: str | None = None) -> Message:
        """A message for a turn that the process begins by itself."""
        return Message(self.agent, "by itself", "self", key)

    async def list_all_states(self) -> list[tuple[str, str]]:
        return await self.list_states(self.claim.item, *self.later)


async def set_scene(
    harness: StoreHarness,
    name: str = "ada",
    *,
    store: MaintainedStore | None = None,
    **fields: Any,
) -> Scene:
    """Open a store (unless one is given), add an agent, join."""
    store = store or await harness.open()
    agent = await add_agent(harness, store, name, **fields)
    return Scene(harness, store, agent, (await store.join("worker")).id)


async def set_working(harness: StoreHarness, name: str = "ada", **fields: Any) -> Working:
    """A scene whose only item is being run."""
    scene = await set_scene(harness, name, **fields)
    await scene.send()
    return await make_working(scene, await scene.claim_next())


async def set_abandoned(harness: StoreHarness, name: str = "ada") -> Working:
    """A scene whose only item is being run by another holder, which is dead."""
    scene = await set_scene(harness, name)
    await scene.send()
    return await make_working(scene, await harness.claim_and_exit())


async def make_working(scene: Scene, claim: Claim, provider: str = "claude") -> Working:
    run, process = await scene.begin(claim), await scene.open_process(claim, provider)
    return Working(scene.harness, scene.store, scene.agent, scene.holder, claim, run, process)


async def set_steered(harness: StoreHarness, count: int, name: str = "ada") -> Steered:
    """A run in progress, and `count` messages after it that may be offered to it."""
    working = await set_working(harness, name)
    later = [await working.send(f"later {n}") for n in range(count)]
    return Steered(**vars(working), later=later)


async def set_warm(harness: StoreHarness, name: str = "ada", **fields: Any) -> Working:
    """A scene whose only item was run; the lane was kept. Its claim is valid as a `Lease` only."""
    working = await set_working(harness, name, **fields)
    await working.store.settle(working.claim, working.make_end(), keep_warm=True)
    return working


async def set_eventful(harness: StoreHarness) -> Working:
    """A record with something in every table."""
    working = await set_working(harness)
    store, claim, now = working.store, working.claim, harness.clock.now()
    await store.append(
        claim,
        working.make_batch(
            0, 100, working.make_event(50), working.make_note("s", 1),
            token=working.make_token("one"), checkpoint=Checkpoint(b"\x00state", 1),
            change=Launched(now, working.process, now),
        ),
    )  # fmt: skip
    await store.append(claim, working.make_batch(100, 150, token=working.make_token("two")))
    await working.send("later")
    await working.send("last")
    await store.offer_followups(claim)
    await store.update_gate("codex", Closed(now + timedelta(hours=1), "limit"), account="work")
    await working.send(to=await working.add_agent("bo"))
    [settled] = await working.claim_lanes(metadata={"k": [1]})
    await working.finish(settled, usage=Usage(1, 2), cost=Cost(0.5, "known"))
    await store.set_paused(await working.add_agent("paused"), is_paused=True)
    await working.send(to=(warm := await working.add_agent("warm")))
    [kept] = await working.claim_lanes()
    await store.settle(kept, working.make_end(), keep_warm=True)
    await working.send("next", to=warm)
    return working


async def add_agent(
    harness: StoreHarness,
    store: Store,
    name: str,
    *,
    provider: str = "claude",
    fallback: Sequence[str] = (),
) -> AgentId:
    chain = (provider, *fallback)
    agent = Agent(harness.ids.make_agent(), name, chain, f"/home/{name}", "a model of its first")
    await store.add_agent(agent)
    return agent.id


async def claim_lanes(
    store: Store, holder: HolderId, limit: int = 1, *, agent: AgentId | None = None, **fields: Any
) -> list[Claim]:
    """Start up to `limit` items; the claim on each. `fields` are those of their runs."""
    started = await store.start(holder, make_run_creator(**fields), limit, agent=agent)
    return [each.claim for each in started]


def make_run_creator(**fields: Any) -> Callable[[Agent, Item], Created]:
    """A function for `Store.start` that creates the run of an item."""

    def create_run(agent: Agent, item: Item) -> Created:
        at = item.started_at
        assert at
        values = {"provider": agent.provider, "at": at, **fields}
        return Created(Ids(lambda: at).make_run(), agent.id, item.id, **values)

    return create_run


async def reap_claims(store: Store, holder: HolderId) -> list[Claim]:
    """Take over every lane; the claims on what was running in them."""
    return [each.lease for each in await store.reap(holder) if isinstance(each.lease, Claim)]


async def expect_error(kind: type[E], verb: Awaitable[object]) -> E:
    """The error that `verb` raises; an assertion fails if it does not."""
    try:
        answer = await verb
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, got {answer!r}")


async def expect_refused(store: Store, kind: type[E], verb: Awaitable[object]) -> E:
    """As `expect_error`, and the record is as it was before."""
    before = await read_everything(store)
    error = await expect_error(kind, verb)
    assert await read_everything(store) == before
    return error


async def run_overlapping(harness: StoreHarness, verbs: Sequence[Awaitable[Any]]) -> list[Any]:
    """Begin all of `verbs` in this order, before any of them can write; their results."""
    results: list[Any] = [None] * len(verbs)

    async def run_verb(n: int) -> None:
        results[n] = await verbs[n]

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as tasks, harness.pause_writes():
            for n in range(len(verbs)):
                tasks.start_soon(run_verb, n)
                await anyio.wait_all_tasks_blocked()
    return results


async def read_process(store: Store, process: ProcessId) -> Process:
    [found] = await store.processes([process])
    return found


async def read_everything(store: Store) -> dict[str, object]:
    """The results of every read verb, for comparing a record with itself."""
    agents = await store.agents()
    runs = await store.runs(limit=ALL)
    opened = await store.processes()
    processes = {p.id for p in opened} | {run.process for run in runs if run.process}
    return {
        "agents": agents,
        "lanes": [await store.lane(agent.id) for agent in agents],
        "items": await store.items(include_settled=True, limit=ALL),
        "unsettled": await store.items(limit=ALL),
        "runs": runs,
        "open": opened,
        "processes": await store.processes(processes),
        "sessions": [await store.sessions(agent.id) for agent in agents],
        "events": await store.events(limit=ALL),
        "last": await store.events(limit=ALL, newest=True),
        "snapshots": [
            await store.lane_snapshots({agent.id: None for agent in agents}),
            *[await store.lane_snapshots({run.agent: run.id}) for run in runs],
        ],
        "usage": [await store.usage("provider", agent=a) for a in [None, *(a.id for a in agents)]],
        "gates": await store.gates(),
        "all gates": await store.gates(include_others=True),
        "approvals": await store.approvals(include_settled=True, limit=ALL),
        "unsettled approvals": await store.approvals(limit=ALL),
    }
