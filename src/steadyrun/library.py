"""How does a program use steadyrun? Start runs, follow them, steer them, wait for their results.

    async with steadyrun.open() as sr:
        run = await sr.start("say hello", provider="scripted")
        async for event in run.events():
            print(event)
        result = await run.result()

Leaving the block lets go of what still runs: it goes on, and is taken up by the next program or
command that opens the same home.
"""

import contextlib
import platform
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.app.operations import desk_among
from steadyrun.app.runtime import open_runtime
from steadyrun.config import Config, load
from steadyrun.dialect import Refused, Verdict
from steadyrun.errors import AbilityMissing, Conflict, InvalidUsage, MessageTooLong, NotFound
from steadyrun.lib.safe_paths import directory
from steadyrun.lib.task_group import task_group
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Answer, approval_id
from steadyrun.model.budget import Budget
from steadyrun.model.event import (
    FollowupAbsorbed,
    FollowupOffered,
    FollowupOwnTurn,
    FollowupReturned,
    LiveEvent,
    StoredEvent,
)
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.item import Message
from steadyrun.model.policy import Policy, rights
from steadyrun.model.run import Run
from steadyrun.model.text import utf8
from steadyrun.model.usage import Cost
from steadyrun.operations.approvals import answer_approval, build_approval_documents, find_approval
from steadyrun.operations.documents import ApprovalDocument
from steadyrun.runtime.deps import RunRequest
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.runtime.events.stream import RUN_END_EVENTS, stream_run
from steadyrun.runtime.run.options import NEEDS, RunOptions, validate_options
from steadyrun.runtime.run.permissions import permitted, require_kept
from steadyrun.store import PAGE, follow

# How long whoever drives a run has to take a message.
ANSWER_SECONDS = 30.0
# Who answers for a program that does not say.
BY_LIBRARY = "library"


# As JSON: a keeper takes frames of 64 MB, and a message is told with more around it.
_LONGEST_BYTES = 60 * 1024 * 1024


def _check_text(text: str) -> None:
    utf8(text)
    size = len(msgspec.json.encode(text))
    if size > _LONGEST_BYTES:
        raise MessageTooLong(found=size, most=_LONGEST_BYTES)


class Offered(Struct, frozen=True):
    """A follow-up was offered to the turn; its `followup.*` events tell what became of it."""

    item: ItemId


class Steadyrun:
    """Runs of one home. Made by `steadyrun.open`."""

    def __init__(self, holding: DirectRuns) -> None:
        self._holding = holding
        self._around = holding.around

    async def start(
        self, prompt: str, *, provider: str, cwd: str | Path = ".", **wishes: Unpack[RunOptions]
    ) -> "RunHandle":
        """Begin a run that belongs to no agent, and return at once."""
        return await self._begin(prompt, provider, cwd, wishes)

    async def summon(
        self,
        role: str,
        prompt: str,
        *,
        provider: str,
        cwd: str | Path = ".",
        **wishes: Unpack[RunOptions],
    ) -> "RunHandle":
        """Begin a run in a role: what `roles/ROLE.md` of the home says, and the files of an agent
        in `cwd`, are told before the prompt."""
        validate_options(wishes)
        given = wishes.get("metadata", {})
        wishes["metadata"] = {**given, "trigger": "summon", "role": role}
        return await self._begin(prompt, provider, cwd, wishes, role)

    async def _begin(
        self,
        prompt: str,
        provider: str,
        cwd: str | Path,
        wishes: RunOptions,
        role: str | None = None,
    ) -> "RunHandle":
        _check_text(prompt)
        validate_options(wishes)
        home = str(await anyio.to_thread.run_sync(directory, cwd))
        run = self._around.ids.run()
        await self._go_on(provider, home, wishes)
        model = self._around.drivers.model(provider)
        if model is not None:
            wishes.setdefault("model", model)
        self._check(provider, wishes)
        agent = _agent(self._around.ids.agent(), run, provider, home, wishes)
        self._check_tools(agent)
        if role is not None:
            agent = replace(agent, role=role)
            await self._check_role(agent)
        images = tuple(wishes.get("images", ()))
        wall = wishes.get("timeout_seconds")
        is_fresh_allowed = wishes.get("or_fresh", False)
        resume, schema = wishes.get("resume"), wishes.get("schema")
        metadata, env = wishes.get("metadata", {}), wishes.get("env", {})
        ask = RunRequest(resume, is_fresh_allowed, images, schema, wall, metadata, env)
        await self._holding.start(agent, run, prompt, ask)
        return RunHandle(self._holding, run)

    async def run(self, run: str) -> "RunHandle":
        """A run by its id, whoever drives it; else `NotFound`."""
        return RunHandle(self._holding, (await self._around.store.run(RunId(run))).id)

    async def costs(self, runs: Iterable[str]) -> dict[str, Cost]:
        """What runs have cost; ids that are not known are left out."""
        found = await self._around.store.run_costs([RunId(run) for run in runs])
        return {str(run): cost for run, cost in found.items()}

    async def approvals(
        self, *, include_settled: bool = False, limit: int = PAGE
    ) -> tuple[ApprovalDocument, ...]:
        """What agents and runs ask, newest first."""
        store = self._around.store
        found = await store.approvals(include_settled=include_settled, limit=limit)
        return await build_approval_documents(store, found)

    async def answer(
        self,
        approval: str,
        *,
        allow: bool,
        reason: str = "",
        always: bool = False,
        provider: str | None = None,
        by: str = BY_LIBRARY,
    ) -> ApprovalDocument:
        """Answer what any run of this home asks, by its id or how that begins or ends.

        `provider` is who goes on where an agent has spent its budget. `Conflict` if somebody else
        has answered, or nobody waits any more; `NotAllowed` if others have to.
        """
        store, now = self._around.store, self._around.clock.now()
        answer = Answer(allow, by, now, reason, always and allow, provider=provider)
        known = await find_approval(store, approval)
        answered = await answer_approval(desk_among(self._around), known, answer)
        [document] = await build_approval_documents(store, [answered])
        return document

    async def _go_on(self, provider: str, home: str, wishes: RunOptions) -> None:
        """A conversation goes on where it began, and with its model unless another is named."""
        resume = wishes.get("resume")
        known = await self._around.store.token(provider, resume) if resume else None
        if known is None:
            return
        if known.cwd != home and not wishes.get("or_fresh"):
            raise InvalidUsage(
                f"the conversation {resume} belongs to {known.cwd}, not to {home}",
                hint="Go on there, or allow a new one with or_fresh.",
            )
        if known.model and "model" in self._around.drivers.abilities(provider):
            wishes.setdefault("model", known.model)

    async def _check_role(self, agent: Agent) -> None:
        """Its files can be read, and somebody will be told: before there is a run of it."""
        if "system" not in self._around.drivers.abilities(agent.provider):
            raise AbilityMissing(agent.provider, "system", asked="role")
        standing = await self._around.standing(agent)
        permitted(self._around.drivers, agent, standing.permissions)

    def _check_tools(self, agent: Agent) -> None:
        """Its provider can do without the others."""
        found = self._around.drivers.enforce(agent.provider, rights(agent.policy))
        require_kept(agent.provider, found, asked="tools")

    def _check(self, provider: str, wishes: RunOptions) -> None:
        abilities = self._around.drivers.abilities(provider)
        for wish in wishes:
            need = NEEDS.get(wish)
            is_usual = wish == "mode" and wishes["mode"] == "default"
            if need and not is_usual and need not in abilities:
                raise AbilityMissing(provider, need, asked=wish)


class RunHandle:
    """One run. Any number of programs may have a handle to it."""

    def __init__(self, holding: DirectRuns, run: RunId) -> None:
        self.id = run
        self._holding = holding
        self._store = holding.around.store

    def events(self) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        """Everything that happened and happens, in order, up to the run's last event.

        Deltas and raw output come only where the run is driven by this program.
        """
        seat = self._holding.seat(self.id)
        return stream_run(self._store, self.id, seat.feed) if seat else self._stored()

    async def steer(self, text: str) -> Offered | Refused:
        """Offer a message to the turn that is running."""
        _check_text(text)
        run = await self._store.run(self.id)
        if run.is_terminal:
            return Refused(f"the run is {run.status}")
        accepted = await self._store.accept(Message(run.agent, text))
        return await self._answer(accepted.item.id, run)

    async def decide(self, approval: str, verdict: Verdict, *, by: str = BY_LIBRARY) -> None:
        """Answer what the run has asked, by the name in its event. The first answer decides: one
        that comes too late, or to what was never asked, changes nothing."""
        run = await self._store.run(self.id)
        if verdict.input is not None:
            abilities = self._holding.around.drivers.abilities(run.provider)
            if "change_input" not in abilities:
                raise AbilityMissing(run.provider, "change_input", asked="input")
        if run.process is None:
            return
        answer = Answer(
            verdict.is_allowed,
            by,
            self._holding.around.clock.now(),
            verdict.message,
            verdict.always and verdict.is_allowed,
            input=verdict.input,
            ends_turn=verdict.ends_turn,
        )
        with contextlib.suppress(NotFound, Conflict):
            known = await self._store.approval(approval_id(run.process, approval))
            await answer_approval(desk_among(self._holding.around), known, answer)

    async def cancel(self, reason: str | None = None) -> Run:
        """Ask for the end of the run. It may take a moment; an ended run stays as it is."""
        run = await self._store.run(self.id)
        seat = self._holding.seat(self.id)
        if seat is not None and seat.runner is not None:
            await seat.runner.cancel(reason)
        elif run.item is not None and not run.is_terminal:
            await self._store.cancel(run.item, reason)
        return await self._store.run(self.id)

    async def result(self) -> Run:
        """Wait for the end of the run, of its process and of its offers, and return the run."""
        await self._holding.wait(self.id)
        run = await self._store.run(self.id)
        with self._store.hints.watch(run.agent) as watch:
            while not (run := await self._store.run(self.id)).is_terminal:
                await watch.wait()
        return run

    async def _stored(self) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        run = await self._store.run(self.id)
        async with aclosing(follow(self._store, agent=run.agent, run=self.id)) as events:
            async for event in events:
                yield event
                if type(event.event) in RUN_END_EVENTS:
                    return

    async def _answer(self, item: ItemId, run: Run) -> Offered | Refused:
        """Whoever holds the lane takes the message; wait for what it says."""
        with (
            self._store.hints.watch(run.agent) as watch,
            anyio.move_on_after(ANSWER_SECONDS),
        ):
            while True:
                told = await self._told_of(item, run)
                if told:
                    return told
                if await self._is_left(item):
                    return await self._take_back(item, run, "the run ended first")
                await watch.wait()
        why = "nobody has taken it: is the program that drives the run alive?"
        return await self._take_back(item, run, why)

    async def _is_left(self, item: ItemId) -> bool:
        """The run is over and nobody has the message: who has it will say what becomes of it."""
        is_taken = (await self._store.item(item)).status == "running"
        return not is_taken and (await self._store.run(self.id)).is_terminal

    async def _told_of(self, item: ItemId, run: Run) -> Offered | Refused | None:
        """What the record says of the message."""
        for seen in reversed(await self._store.last_events(agent=run.agent, limit=PAGE)):
            match seen.event:
                case FollowupReturned(of, _, reason) if of == item:
                    return Refused(reason or "it was given back")
                case FollowupOffered(of, _) | FollowupAbsorbed(of, _) | FollowupOwnTurn(of, _) if (
                    of == item
                ):
                    return Offered(item)
                case _:
                    continue
        return None

    async def _take_back(self, item: ItemId, run: Run, why: str) -> Offered | Refused:
        await self._store.cancel(item)
        return await self._told_of(item, run) or Refused(why)


@asynccontextmanager
async def open_library(config: Config | None = None) -> AsyncIterator[Steadyrun]:
    """Open the home that the configuration names, and take up what was left running there."""
    config = config or load()
    async with (
        open_runtime(config, kind="library", machine=platform.node()) as around,
        task_group() as tasks,
    ):
        holding = DirectRuns(around, tasks)
        await holding.adopt()
        yield Steadyrun(holding)
        tasks.cancel_scope.cancel()


def _agent(agent: Any, run: RunId, provider: str, home: str, wishes: RunOptions) -> Agent:
    """A run that no agent was asked for belongs to an agent of its own name."""
    tools = wishes.get("tools")
    policy = Policy(
        wishes.get("mode", "default"),
        None if tools is None else tuple(tools),
        Budget(run=wishes.get("max_cost_usd")),
    )
    return Agent(
        agent,
        run,
        (provider,),
        home,
        wishes.get("model"),
        policy,
        wishes.get("system"),
        wishes.get("max_turns"),
        is_direct=True,
    )
