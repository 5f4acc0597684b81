"""Sets up and reads the checks: an agent, a holder, and short names for their actions."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import anyio

from steadyrun.errors import SteadyrunError
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import (
    Emitted,
    Event,
    EventSource,
    Note,
    TextFinal,
    make_place,
)
from steadyrun.model.gate import Closed
from steadyrun.model.ids import AgentId, HolderId, Ids, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.process import Checkpoint, Process
from steadyrun.model.run import Created, EndStatus, Finished, Launched, StopReason
from steadyrun.model.session import ResumeToken
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import Store
from steadyrun.testing.store_conformance.harness import StoreHarness

TICK = timedelta(milliseconds=1)
# Nothing here takes a second; a check that hangs must fail, not hang.
PATIENCE_SECONDS = 60.0
ALL = 100_000

E = TypeVar("E", bound=SteadyrunError)


@dataclass(frozen=True)
class Scene:
    """A store, one agent in it and one living holder."""

    harness: StoreHarness
    store: Store
    agent: AgentId
    holder: HolderId

    async def send(self, text: str = "work", *, key: str | None = None) -> Item:
        return await send(self.harness, self.store, self.agent, text, key=key)

    async def claim(self, **fields: Any) -> Claim:
        """Start the next item of the agent; `fields` are those of its run."""
        [claim] = await claim_lanes(self.store, self.holder, **fields)
        assert claim.agent == self.agent
        return claim

    async def begin(self, claim: Claim, **fields: Any) -> RunId:
        return await begin(self.harness, self.store, claim, **fields)

    async def open_process(self, claim: Claim, provider: str = "claude") -> ProcessId:
        return await open_process(self.harness, self.store, claim, provider)

    async def finish(self, claim: Claim, status: EndStatus = "completed", **fields: Any) -> Item:
        return await self.store.settle(claim, self.ended(status, **fields))

    def ended(
        self,
        status: EndStatus = "completed",
        *,
        stop_reason: StopReason | None = None,
        text: str | None = "done",
        **fields: Any,
    ) -> Finished:
        now = self.harness.clock.now()
        return Finished(now, status, stop_reason=stop_reason, text=text, **fields)


@dataclass(frozen=True)
class Working:
    """A scene in the middle of a run: a claim, its run and its open process."""

    scene: Scene
    claim: Claim
    run: RunId
    process: ProcessId

    @property
    def store(self) -> Store:
        return self.scene.store

    def batch(self, start: int, end: int, *events: Emitted, **fields: Any) -> Batch:
        """A batch of this run; without events it says one thing, at `end`."""
        said = events or (self.said(end),)
        fields.setdefault("run", self.run)
        return Batch(self.process, from_offset=start, to_offset=end, events=said, **fields)

    def said(self, offset: int, n: int = 0, event: Event | None = None) -> Emitted:
        now = self.scene.harness.clock.now()
        words = event or TextFinal(f"said at {offset}.{n}")
        return Emitted(offset, n, now, words)

    def noted(self, source: EventSource, n: int) -> Emitted:
        now = self.scene.harness.clock.now()
        return Emitted(make_place(source, n), 0, now, Note(f"{source}{n}"))

    def token(self, name: str) -> ResumeToken:
        return ResumeToken(name, "here", "/home/ada", None, self.scene.harness.clock.now())


async def set_scene(
    harness: StoreHarness,
    name: str = "ada",
    *,
    store: Store | None = None,
    **fields: Any,
) -> Scene:
    """Open a store (unless given one), add an agent, join."""
    store = store or await harness.open()
    agent = await add_agent(harness, store, name, **fields)
    holder = await store.join("worker")
    return Scene(harness, store, agent, holder.id)


async def set_working(harness: StoreHarness, name: str = "ada", **fields: Any) -> Working:
    """A scene whose only item is being run."""
    scene = await set_scene(harness, name, **fields)
    await scene.send()
    claim = await scene.claim()
    run = await scene.begin(claim)
    return Working(scene, claim, run, await scene.open_process(claim))


async def set_warm(harness: StoreHarness, name: str = "ada", **fields: Any) -> Working:
    """A scene whose only item was run; the lane was kept. Its claim is good as a `Lease` only."""
    working = await set_working(harness, name, **fields)
    await working.store.settle(working.claim, working.scene.ended(), keep_warm=True)
    return working


async def set_eventful(harness: StoreHarness) -> Working:
    """A record with something in every table."""
    working = await set_working(harness)
    store, claim, now = working.store, working.claim, harness.clock.now()
    await store.append(
        claim,
        working.batch(
            0, 100, working.said(50), working.noted("s", 1), token=working.token("one"),
            checkpoint=Checkpoint(b"\x00state", 1), change=Launched(now, working.process, now),
        ),
    )  # fmt: skip
    await store.append(claim, working.batch(100, 150, token=working.token("two")))
    await working.scene.send("later")
    await working.scene.send("last")
    await store.offer_followups(claim)
    await store.update_gate("codex", Closed(now + timedelta(hours=1), "limit"), account="work")
    await _settle_another(harness, store, working)
    await store.pause(await add_agent(harness, store, "paused"))
    await _keep_warm(harness, store, working)
    return working


async def _keep_warm(harness: StoreHarness, store: Store, working: Working) -> None:
    agent = await add_agent(harness, store, "warm")
    await send(harness, store, agent, "done already")
    [claim] = await claim_lanes(store, working.scene.holder)
    await store.settle(claim, working.scene.ended(), keep_warm=True)
    await send(harness, store, agent, "next")


async def _settle_another(harness: StoreHarness, store: Store, working: Working) -> None:
    await send(harness, store, await add_agent(harness, store, "bo"), "done already")
    [claim] = await claim_lanes(store, working.scene.holder, metadata={"k": [1]})
    await working.scene.finish(claim, usage=Usage(1, 2), cost=Cost(0.5, "known"))


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


async def send(
    harness: StoreHarness, store: Store, agent: AgentId, text: str, *, key: str | None = None
) -> Item:
    """Accept a message, a moment after whatever was before: ids then sort as they were made."""
    harness.clock.advance(TICK)
    return (await store.accept(Message(agent, text, key=key))).item


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
        values = {"provider": agent.provider, **fields}
        return Created(Ids(lambda: at).make_run(), agent.id, item.id, at=at, **values)

    return create_run


async def begin(harness: StoreHarness, store: Store, claim: Claim, **fields: Any) -> RunId:
    """The run of the claim's item; a new one if the item has none."""
    if claim.item.run is not None:
        return claim.item.run
    return await create(harness, store, claim, **fields)


async def create(harness: StoreHarness, store: Store, claim: Claim, **fields: Any) -> RunId:
    """Create a run for the claim's item."""
    harness.clock.advance(TICK)
    run, now = harness.ids.make_run(), harness.clock.now()
    fields.setdefault("provider", "claude")
    await store.change(claim, run, Created(run, claim.agent, claim.item.id, at=now, **fields))
    return run


async def open_process(
    harness: StoreHarness, store: Store, claim: Claim, provider: str = "claude"
) -> ProcessId:
    process, now = harness.ids.make_process(), harness.clock.now()
    await store.open_process(
        claim,
        Process(
            process, claim.agent, provider, "here", "/keepers/1", now, seal="seal-1", account="work"
        ),
    )
    return process


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
    """As `refused`, and the record is as it was before."""
    before = await read_everything(store)
    error = await expect_error(kind, verb)
    assert await read_everything(store) == before
    return error


async def run_overlapping(harness: StoreHarness, verbs: Sequence[Awaitable[Any]]) -> list[Any]:
    """Begin all of `verbs` in this order, before any of them can write; their answers."""
    answers: list[Any] = [None] * len(verbs)

    async def see_through(n: int) -> None:
        answers[n] = await verbs[n]

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks, harness.stalled():
            for n in range(len(verbs)):
                tasks.start_soon(see_through, n)
                await anyio.wait_all_tasks_blocked()
    return answers


async def read_everything(store: Store) -> dict[str, object]:
    """What every read verb answers, for comparing a record with itself."""
    agents = await store.agents()
    runs = await store.runs(limit=ALL)
    opened = await store.open_processes()
    processes = {p.id for p in opened} | {run.process for run in runs if run.process}
    providers = {name for agent in agents for name in agent.providers}
    return {
        "agents": agents,
        "lanes": [await store.lane(agent.id) for agent in agents],
        "items": await store.items(include_settled=True, limit=ALL),
        "unsettled": await store.items(limit=ALL),
        "runs": runs,
        "open": opened,
        "processes": [await store.process(process) for process in sorted(processes)],
        "sessions": [await store.session(a.id, p) for a in agents for p in sorted(providers)],
        "events": await store.events(limit=ALL),
        "last": await store.events(limit=ALL, newest=True),
        "known": [
            await store.lane_snapshots({agent.id: None for agent in agents}),
            *[await store.lane_snapshots({run.agent: run.id}) for run in runs],
        ],
        "usage": [await store.usage(), *[await store.usage(agent=a.id) for a in agents]],
        "gates": await store.gates(),
        "all gates": await store.gates(include_others=True),
        "approvals": await store.approvals(include_settled=True, limit=ALL),
        "unsettled approvals": await store.approvals(limit=ALL),
    }
