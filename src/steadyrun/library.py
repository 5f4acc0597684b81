"""The public Python API: starts runs, follows them, steers them and waits for their results.

    async with steadyrun.open() as sr:
        run = await sr.start("say hello", provider="scripted")
        async for event in run.events():
            print(event)
        result = await run.result()

When the block ends, active runs continue without this program. The next program or command that
opens the same home takes them over.
"""

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Unpack

import anyio
import anyio.to_thread
from msgspec import Struct

from steadyrun.app.operations import build_context
from steadyrun.app.runtime import open_direct_runs
from steadyrun.config import Config, load
from steadyrun.dialect import Refused, Verdict
from steadyrun.errors import AbilityMissing, Conflict, NotAllowed, NotFound
from steadyrun.lib.safe_paths import resolve_directory
from steadyrun.model.approval import ApprovalAnswer, build_approval_id
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
from steadyrun.model.run import Run
from steadyrun.model.usage import Cost
from steadyrun.operations.access.caller import name_user, require_person
from steadyrun.operations.approvals import BY_PROGRAM, answer_approval, find_and_answer
from steadyrun.operations.documents import ApprovalDocument
from steadyrun.operations.views import build_approval_documents
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.runtime.events.stream import RUN_END_EVENTS, stream_run
from steadyrun.runtime.run.options import RunOptions, validate_options
from steadyrun.runtime.run.request import build_direct_agent, validate_prompt
from steadyrun.store import PAGE, follow

# How long the holder of a run may take to accept a message.
ANSWER_SECONDS = 30.0
_ANSWERING = "answer approval requests"


class Offered(Struct, frozen=True):
    """A follow-up was offered to the turn; its `followup.*` events show the outcome."""

    item: ItemId


class Steadyrun:
    """Runs of one home. Made by `steadyrun.open`."""

    def __init__(self, runs: DirectRuns) -> None:
        self._runs = runs
        self._deps = runs.deps

    async def start(
        self, prompt: str, *, provider: str, cwd: str | Path = ".", **options: Unpack[RunOptions]
    ) -> "RunHandle":
        """Start a run that belongs to no agent. Returns when its process is launched."""
        return await self._begin(prompt, provider, cwd, options)

    async def summon(
        self,
        role: str,
        prompt: str,
        *,
        provider: str,
        cwd: str | Path = ".",
        **options: Unpack[RunOptions],
    ) -> "RunHandle":
        """Start a run in a role: `roles/ROLE.md` of the home and the agent files in `cwd` become
        its system prompt."""
        validate_options(options)
        given = options.get("metadata", {})
        options["metadata"] = {**given, "trigger": "summon", "role": role}
        return await self._begin(prompt, provider, cwd, options, role)

    async def _begin(
        self,
        prompt: str,
        provider: str,
        cwd: str | Path,
        options: RunOptions,
        role: str | None = None,
    ) -> "RunHandle":
        validate_prompt(prompt)
        validate_options(options)
        home = str(await anyio.to_thread.run_sync(resolve_directory, cwd))
        new_run = self._deps.ids.make_run()
        agent = await build_direct_agent(self._deps, new_run, provider, home, options, role)
        await self._runs.start(agent, new_run, prompt, options)
        return RunHandle(self._runs, new_run)

    async def run(self, run: str) -> "RunHandle":
        """Find a run by its id, also one of another process; `NotFound` if there is none."""
        return RunHandle(self._runs, (await self._deps.store.run(RunId(run))).id)

    async def costs(self, runs: Iterable[str]) -> dict[str, Cost]:
        """Return the costs of runs; unknown ids are omitted."""
        found = {}
        for run in runs:
            with contextlib.suppress(NotFound):
                found[run] = (await self._deps.store.run(RunId(run))).cost
        return found

    async def approvals(
        self, *, include_settled: bool = False, limit: int = PAGE
    ) -> tuple[ApprovalDocument, ...]:
        """List the approvals that agents and runs request, newest first."""
        store = self._deps.store
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
        by: str = BY_PROGRAM,
    ) -> ApprovalDocument:
        """Answer an approval of any run of this home, by its id, the beginning or end of it, or
        `RUN:NAME` with the run and the `approval` of an `approval.requested` event.

        `provider` names the provider to continue with after an agent has spent its budget. Raises
        `Conflict` if the approval is answered or has expired, `NotAllowed` if `by` is no approver
        or this program was started by an agent.
        """
        require_person(self._deps.home, _ANSWERING)
        _check_author(by)
        now = self._deps.clock.now()
        answer = ApprovalAnswer(allow, by, now, reason, always and allow, provider=provider)
        return await find_and_answer(build_context(self._deps), approval, answer)


class RunHandle:
    """One run. Any number of programs may have a handle to it."""

    def __init__(self, runs: DirectRuns, run: RunId) -> None:
        self.id = run
        self._runs = runs
        self._store = runs.deps.store

    def events(self) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        """Stream all events of the run in order, up to its last one.

        Deltas and raw output are included only if this program drives the run.
        """
        worker = self._runs.find_worker(self.id)
        return (
            stream_run(self._store, self.id, worker.lane.feed) if worker else self._stream_stored()
        )

    async def steer(self, text: str) -> Offered | Refused:
        """Offer a message to the active turn."""
        validate_prompt(text)
        run = await self._store.run(self.id)
        if run.is_terminal:
            return Refused(f"the run is {run.status}")
        accepted = await self._store.accept(Message(run.agent, text))
        return await self._wait_for_outcome(accepted.item.id, run)

    async def decide(self, approval: str, verdict: Verdict, *, by: str = BY_PROGRAM) -> None:
        """Answer an approval of the run, by the name in its event. The first answer counts; a late
        answer, or one to an unknown approval, has no effect. A program that was started by an agent
        can only deny."""
        if verdict.is_allowed:
            require_person(self._runs.deps.home, _ANSWERING)
        _check_author(by)
        run = await self._store.run(self.id)
        if verdict.input is not None:
            abilities = self._runs.deps.launcher.find_abilities(run.provider)
            if "change_input" not in abilities:
                raise AbilityMissing(run.provider, "change_input", asked="input")
        if run.process is None:
            return
        answer = ApprovalAnswer(
            verdict.is_allowed,
            by,
            self._runs.deps.clock.now(),
            verdict.message,
            verdict.always and verdict.is_allowed,
            input=verdict.input,
            ends_turn=verdict.ends_turn,
        )
        with contextlib.suppress(NotFound, Conflict):
            known = await self._store.approval(build_approval_id(run.process, approval))
            await answer_approval(build_context(self._runs.deps), known, answer)

    async def cancel(self, reason: str | None = None) -> Run:
        """Request the end of the run, which may take a moment. An ended run does not change."""
        run = await self._store.run(self.id)
        worker = self._runs.find_worker(self.id)
        if worker is not None:
            await worker.control.cancel(reason)
        elif run.item is not None and not run.is_terminal:
            await self._store.cancel(run.item, reason)
        return await self._store.run(self.id)

    async def result(self) -> Run:
        """Wait for the end of the run, of its process and of its offers, and return the run."""
        await self._runs.wait(self.id)
        run = await self._store.run(self.id)
        with self._store.hints.watch(run.agent) as watch:
            while not (run := await self._store.run(self.id)).is_terminal:
                await watch.wait()
        return run

    async def _stream_stored(self) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        run = await self._store.run(self.id)
        if run.events_pruned:
            # The last event, which ends the stream, is gone.
            return
        async with aclosing(follow(self._store, agent=run.agent, run=self.id)) as events:
            async for event in events:
                yield event
                if type(event.event) in RUN_END_EVENTS:
                    return

    async def _wait_for_outcome(self, item: ItemId, run: Run) -> Offered | Refused:
        """Wait until the holder of the lane has accepted or refused the message."""
        with (
            self._store.hints.watch(run.agent) as watch,
            anyio.move_on_after(ANSWER_SECONDS),
        ):
            while True:
                outcome = await self._find_outcome(item, run)
                if outcome:
                    return outcome
                if await self._is_abandoned(item):
                    return await self._withdraw(item, run, "the run ended first")
                await watch.wait()
        why = "no holder has accepted it: the program that drives the run may have ended"
        return await self._withdraw(item, run, why)

    async def _is_abandoned(self, item: ItemId) -> bool:
        """Whether the run has ended and no holder has the message. A holder that has it will record
        the outcome."""
        is_taken = (await self._store.item(item)).status == "running"
        return not is_taken and (await self._store.run(self.id)).is_terminal

    async def _find_outcome(self, item: ItemId, run: Run) -> Offered | Refused | None:
        """Find the recorded outcome of the message."""
        for seen in reversed(await self._store.events(agent=run.agent, limit=PAGE, newest=True)):
            match seen.event:
                case FollowupReturned(of, _, reason) if of == item:
                    return Refused(reason or "the provider returned it")
                case FollowupOffered(of, _) | FollowupAbsorbed(of, _) | FollowupOwnTurn(of, _) if (
                    of == item
                ):
                    return Offered(item)
                case _:
                    continue
        return None

    async def _withdraw(self, item: ItemId, run: Run, why: str) -> Offered | Refused:
        await self._store.cancel(item)
        return await self._find_outcome(item, run) or Refused(why)


def _check_author(name: str) -> None:
    """A program chooses the name of an author, except that of another user of this machine."""
    if name.startswith("cli:") and name != name_user(os.geteuid()):
        raise NotAllowed(f"a program of {name_user(os.geteuid())} cannot answer as {name}")


@asynccontextmanager
async def open_library(config: Config | None = None) -> AsyncIterator[Steadyrun]:
    """Open the home of the configuration, and take over direct runs whose holder has ended."""
    async with open_direct_runs(config or load(), kind="library") as runs:
        await runs.adopt_all()
        yield Steadyrun(runs)
