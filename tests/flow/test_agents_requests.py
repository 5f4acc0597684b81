"""What is wanted of an agent that cannot act just now? It is looked at again when it can.

Nobody looks by itself here: what a hint does not tell is never found out.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from steadyrun.lib.notifier import Hint, Notifier, Waiter
from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId, HolderId, ItemId
from steadyrun.model.item import Claim
from steadyrun.store import AbandonedLane, PendingRequests, Started, Store
from tests.support.daemon_harness import Home, says, script, victim, working


class Patient(Waiter):
    """Waits for a hint, however long that takes."""

    async def wait(self, limit_seconds: float = 0.0) -> bool:
        return await super().wait(math.inf)


class PatientHints(Notifier):
    """The hints of another store, for those who look at nothing else."""

    def __init__(self, hints: Notifier) -> None:
        super().__init__()
        self._theirs = hints

    @contextmanager
    def watch(self, agent: str | None, of: Hint = Hint.EVENTS) -> Iterator[Waiter]:
        patient = Patient(of)
        with self._theirs.watch(agent, of) as watch:
            watch.on_notify = patient.notify
            yield patient

    def ring(self, agents: Iterable[str], hint: Hint = Hint.WORK) -> None:
        self._theirs.notify(agents, hint)


class NoPoll:
    """The store that it is given; news come from its hints alone."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.hints = PatientHints(store.hints)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class CancelsWhatIsTaken(NoPoll):
    """Somebody cancels what runs in a lane that was taken over, or what was started for `whom`,
    before anybody goes on with it."""

    whom: AgentId | None = None

    def __init__(self, store: Store, *, has_others: bool) -> None:
        super().__init__(store)
        self._heard = anyio.Event()
        self._has_others = has_others

    async def reap(self, holder: HolderId) -> list[AbandonedLane]:
        lost = await self.store.reap(holder)
        for each in lost:
            assert isinstance(each.hold, Claim)
            await self.store.cancel(each.hold.item.id)
        if lost and self._has_others:
            await self._heard.wait()
        # Where nobody sits, nobody is asked.
        await anyio.wait_all_tasks_blocked()
        return lost

    async def start(self, *args: Any, **more: Any) -> list[Started]:
        started = await self.store.start(*args, **more)
        for each in started:
            if each.agent.id == self.whom:
                await self.store.cancel(each.claim.item.id)
                await self._heard.wait()
                await anyio.wait_all_tasks_blocked()
        return started

    async def calls(self, holder: HolderId) -> list[PendingRequests]:
        found = await self.store.pending_requests(holder)
        if any(call.cancelled for call in found):
            self._heard.set()
        return found


async def _hangs(home: Home, name: str) -> tuple[AgentId, ItemId]:
    """A command runs: it can be told nothing, so that nobody looks whether there is anything."""
    agent = await home.hire(name, "shell")
    item = await home.send(agent, "sleep 25")
    await home.until_told(agent, ev.ToolStarted)
    return agent, item


async def _is_stopped(home: Home, agent: AgentId, item: ItemId) -> None:
    assert (await home.settled(item)).status == "cancelled"
    assert [run.stop_reason for run in await home.runs(agent)] == ["user_stop"]


def test_a_cancel_is_heard_that_came_before_anybody_sat_down(tmp_path: Path) -> None:
    def watched(store: Store) -> Store:
        return CancelsWhatIsTaken(store, has_others=False)  # type: ignore[return-value]

    async def first() -> tuple[AgentId, ItemId]:
        async with victim(tmp_path) as (home, daemon):
            await daemon.up()
            return await _hangs(home, "ada")

    async def second(ada: AgentId, item: ItemId) -> None:
        async with working(tmp_path, watched=watched) as team:
            await _is_stopped(team, ada, item)

    anyio.run(second, *anyio.run(first))


def test_a_cancel_is_heard_that_came_before_one_more_sat_down(tmp_path: Path) -> None:
    def watched(store: Store) -> Store:
        return CancelsWhatIsTaken(store, has_others=True)  # type: ignore[return-value]

    async def main() -> None:
        async with victim(tmp_path) as (home, daemon):
            await daemon.up()
            ada, item = await _hangs(home, "ada")
            async with working(tmp_path, watched=watched) as team:
                daemon.kill()
                bo, other = await _hangs(team, "bo")
                await team.daemon._reap(timedelta())

                await _is_stopped(team, ada, item)
                assert not (await team.store.item(other)).is_settled
                await team.store.cancel(other)
                await _is_stopped(team, bo, other)

    anyio.run(main)


def test_a_cancel_is_heard_that_came_before_anything_was_begun(tmp_path: Path) -> None:
    """A process that waits has a seat, and nobody in it."""
    watched: list[CancelsWhatIsTaken] = []

    def watch(store: Store) -> Store:
        watched.append(CancelsWhatIsTaken(store, has_others=True))
        return watched[0]  # type: ignore[return-value]

    async def main() -> None:
        async with working(tmp_path, watched=watch) as team:
            ada = await team.hire("ada")
            await team.done(ada, says("one"))
            watched[0].whom = ada
            item = await team.send(ada, script({"text": "two"}, "hang"))

            assert (await team.settled(item)).status == "cancelled"

    anyio.run(main)


def test_an_offer_that_was_cancelled_while_nobody_was_there_is_taken_back(tmp_path: Path) -> None:
    async def first() -> tuple[AgentId, ItemId, ItemId]:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada")
            await daemon.up()
            text = script({"text": "busy"}, home.gates.until("go"), {"text": "done"})
            item = await home.send(ada, text)
            await home.until_said(ada, "busy")
            offer = await home.send(ada, "never mind")
            await home.until_told(ada, ev.FollowupOffered)
            daemon.kill()
            await home.store.cancel(offer)
            return ada, item, offer

    async def second(ada: AgentId, item: ItemId, offer: ItemId) -> None:
        async with working(tmp_path, watched=NoPoll) as team:  # type: ignore[arg-type]
            assert (await team.settled(offer)).status == "cancelled"
            assert not (await team.store.item(item)).is_settled
            team.gates.open("go")

            assert (await team.settled(item)).status == "completed"
            assert len(await team.of(ada, ev.FollowupReturned)) == 1

    anyio.run(second, *anyio.run(first))


def test_what_there_was_no_room_for_is_offered_as_soon_as_there_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, watched=NoPoll) as team:  # type: ignore[arg-type]
            ada = await team.hire("ada")
            busy = ({"text": "busy"}, team.gates.until("go"), {"text": "done"})
            item = await team.send(ada, script(*busy, team.gates.until("end"), {"text": "all"}))
            await team.until_said(ada, "busy")
            sent = [await team.send(ada, f"message {n}") for n in range(20)]
            await team.until_told(ada, ev.FollowupOffered, 16)
            team.gates.open("go")

            await team.until_told(ada, ev.FollowupOffered, 20)

            assert not (await team.store.item(item)).is_settled
            team.gates.open("end")
            assert {(await team.settled(each)).delivery for each in sent} == {"absorbed"}

    anyio.run(main)
