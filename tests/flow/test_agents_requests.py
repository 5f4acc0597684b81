"""A request to an agent that cannot act yet is handled as soon as it can.

Nothing polls the store here: a change without a hint is never found.
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
from steadyrun.store import AbandonedLane, MaintainedStore, PendingRequests, Started, Store
from tests.support.daemon_harness import HomeHarness, killable_daemon, running_daemon, say, script


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

    def notify(self, agents: Iterable[str], hint: Hint = Hint.WORK) -> None:
        self._theirs.notify(agents, hint)


class NoPoll:
    """The store that it is given; news come from its hints alone."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.hints = PatientHints(store.hints)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class CancelsWhatIsTaken(NoPoll):
    """Cancels the item of a lane that was taken over, or of a run that was started for `target`,
    before a worker continues with it."""

    target: AgentId | None = None

    def __init__(self, store: Store, *, has_others: bool) -> None:
        super().__init__(store)
        self._heard = anyio.Event()
        self._has_others = has_others

    async def reap(self, holder: HolderId) -> list[AbandonedLane]:
        lost = await self.store.reap(holder)
        for each in lost:
            assert isinstance(each.lease, Claim)
            await self.store.cancel(each.lease.item.id)
        if lost and self._has_others:
            await self._heard.wait()
        # A lane without a worker gets no request.
        await anyio.wait_all_tasks_blocked()
        return lost

    async def start(self, *args: Any, **more: Any) -> list[Started]:
        started = await self.store.start(*args, **more)
        for each in started:
            if each.agent.id == self.target:
                await self.store.cancel(each.claim.item.id)
                await self._heard.wait()
                await anyio.wait_all_tasks_blocked()
        return started

    async def pending_requests(self, holder: HolderId) -> list[PendingRequests]:
        found = await self.store.pending_requests(holder)
        if any(call.cancelled for call in found):
            self._heard.set()
        return found


async def _hangs(home: HomeHarness, name: str) -> tuple[AgentId, ItemId]:
    """Start a command. It takes no messages, so that its worker does not look for any."""
    agent = await home.add_agent(name, "shell")
    item = await home.send(agent, "sleep 25")
    await home.wait_for_event(agent, ev.ToolStarted)
    return agent, item


async def _is_stopped(home: HomeHarness, agent: AgentId, item: ItemId) -> None:
    assert (await home.wait_until_settled(item)).status == "cancelled"
    assert [run.stop_reason for run in await home.runs(agent)] == ["user_stop"]


async def test_cancel_before_the_lane_has_a_worker_stops_the_adopted_run(tmp_path: Path) -> None:
    def watched(store: MaintainedStore) -> MaintainedStore:
        return CancelsWhatIsTaken(store, has_others=False)  # type: ignore[return-value]

    async with killable_daemon(tmp_path) as (home, daemon):
        await daemon.wait_until_up()
        ada, item = await _hangs(home, "ada")
    async with running_daemon(tmp_path, wrap_store=watched) as harness:
        await _is_stopped(harness, ada, item)


async def test_cancel_before_a_daemon_with_other_runs_adopts_the_lane_stops_the_run(
    tmp_path: Path,
) -> None:
    def watched(store: MaintainedStore) -> MaintainedStore:
        return CancelsWhatIsTaken(store, has_others=True)  # type: ignore[return-value]

    async with killable_daemon(tmp_path) as (home, daemon):
        await daemon.wait_until_up()
        ada, item = await _hangs(home, "ada")
        async with running_daemon(tmp_path, wrap_store=watched) as harness:
            daemon.kill()
            bo, other = await _hangs(harness, "bo")
            await harness.daemon._reap(timedelta())

            await _is_stopped(harness, ada, item)
            assert not (await harness.store.item(other)).is_settled
            await harness.store.cancel(other)
            await _is_stopped(harness, bo, other)


async def test_cancel_before_a_warm_process_gets_the_turn_cancels_the_item(tmp_path: Path) -> None:
    """A process that waits has a worker without a run."""
    watched: list[CancelsWhatIsTaken] = []

    def watch(store: MaintainedStore) -> MaintainedStore:
        watched.append(CancelsWhatIsTaken(store, has_others=True))
        return watched[0]  # type: ignore[return-value]

    async with running_daemon(tmp_path, wrap_store=watch) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("one"))
        watched[0].target = ada
        item = await harness.send(ada, script({"text": "two"}, "hang"))

        assert (await harness.wait_until_settled(item)).status == "cancelled"


async def test_offer_cancelled_without_a_daemon_is_recalled_by_the_next(tmp_path: Path) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada")
        await daemon.wait_until_up()
        text = script({"text": "busy"}, home.gates.wait_step("go"), {"text": "done"})
        item = await home.send(ada, text)
        await home.wait_for_text(ada, "busy")
        offer = await home.send(ada, "never mind")
        await home.wait_for_event(ada, ev.FollowupOffered)
        daemon.kill()
        await home.store.cancel(offer)
    async with running_daemon(tmp_path, wrap_store=NoPoll) as harness:  # type: ignore[arg-type]
        assert (await harness.wait_until_settled(offer)).status == "cancelled"
        assert not (await harness.store.item(item)).is_settled
        harness.gates.open("go")

        assert (await harness.wait_until_settled(item)).status == "completed"
        assert len(await harness.events_of(ada, ev.FollowupReturned)) == 1


async def test_message_over_the_offer_limit_is_offered_when_there_is_room(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, wrap_store=NoPoll) as harness:  # type: ignore[arg-type]
        ada = await harness.add_agent("ada")
        busy = ({"text": "busy"}, harness.gates.wait_step("go"), {"text": "done"})
        item = await harness.send(
            ada, script(*busy, harness.gates.wait_step("end"), {"text": "all"})
        )
        await harness.wait_for_text(ada, "busy")
        sent = [await harness.send(ada, f"message {n}") for n in range(20)]
        await harness.wait_for_event(ada, ev.FollowupOffered, 16)
        harness.gates.open("go")

        await harness.wait_for_event(ada, ev.FollowupOffered, 20)

        assert not (await harness.store.item(item)).is_settled
        harness.gates.open("end")
        assert {(await harness.wait_until_settled(each)).delivery for each in sent} == {"absorbed"}
