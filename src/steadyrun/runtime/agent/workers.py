"""Which lanes does this process have, and does anybody want something of them?

One task looks at all clocks, and one hears what others want: a run costs nothing for them.
"""

from collections.abc import Callable, Iterator
from functools import partial

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import ChangeRefused, KeeperGone, LeaseLost, StoreFailed
from steadyrun.lib.notifier import Hint, Waiter
from steadyrun.lib.task_group import task_group
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.runtime.agent.worker import AgentWorker
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.run.active_run import Deed
from steadyrun.store import PendingRequests

# How often the clocks are looked at, and how late that may be before it tells something.
_TICK_SECONDS = 0.5
_LATE_SECONDS = 1.0


class AgentWorkers:
    """All seats of this process, by agent."""

    def __init__(self, around: Deps) -> None:
        self._around = around
        self._seats: dict[AgentId, AgentWorker] = {}
        # Who could not see to all that was wanted; None: nobody has looked, as nobody was there.
        self._missed: set[AgentId] | None = None
        self._bell: Waiter | None = None
        # Called when somebody has left.
        self.on_leave: Callable[[], None] = lambda: None
        # Runs that others have left and that a gate waits for.
        self.probes: set[RunId] = set()

    def __iter__(self) -> Iterator[AgentWorker]:
        return iter(list(self._seats.values()))

    def add(self, seat: AgentWorker) -> None:
        self._seats[seat.agent.id] = seat
        seat.on_sit = partial(self._look_again, seat.agent.id)
        self._look_again(seat.agent.id)

    def _look_again(self, agent: AgentId) -> None:
        """A lane is ours before anybody sits there: what was wanted meanwhile is wanted still."""
        if self._bell and (self._missed is None or agent in self._missed):
            self._bell.notify()

    def know_probe(self, seat: AgentWorker) -> None:
        """Somebody else has begun what runs there."""
        if seat.runner:
            seat.runner.is_probe = seat.runner.id in self.probes

    def remove(self, seat: AgentWorker) -> None:
        if self._seats.get(seat.agent.id) is seat:
            del self._seats[seat.agent.id]
            self.on_leave()

    def of(self, agent: AgentId) -> AgentWorker | None:
        return self._seats.get(agent)

    def running(self, run: RunId) -> AgentWorker | None:
        """Where a run goes on."""
        return next((each for each in self if each.runner and each.runner.id == run), None)

    async def serve(self) -> None:
        """Look at the clocks and hear what is wanted: run this in a task."""
        async with task_group() as tasks:
            tasks.start_soon(self._look_at_clocks, tasks)
            tasks.start_soon(self._hear_calls, tasks)

    async def _look_at_clocks(self, tasks: TaskGroup) -> None:
        # Whether we come late is told by the time that we sleep by.
        last = anyio.current_time()
        while True:
            await anyio.sleep(_TICK_SECONDS)
            late, last = anyio.current_time() - last - _TICK_SECONDS, anyio.current_time()
            now = self._around.clock.monotonic()
            for seat in self:
                runner = seat.runner
                if runner and late > _LATE_SECONDS:
                    runner.shift(late)
                for deed in runner.due(now) if runner else ():
                    tasks.start_soon(_done, seat, deed)

    async def _hear_calls(self, tasks: TaskGroup) -> None:
        with self._around.store.hints.watch(None, Hint.WORK) as self._bell:
            while True:
                self._missed = await self._answer_calls(tasks)
                await self._bell.wait()

    async def _answer_calls(self, tasks: TaskGroup) -> set[AgentId] | None:
        if not self._seats:
            return None
        try:
            calls = await self._around.store.pending_requests(self._around.holder)
        except StoreFailed as error:
            # Nothing is lost by this: it is asked again.
            log_event("store.failed", phase="calls", code=error.code)
            return None
        for call in calls:
            seat = self._seats.get(call.agent)
            if seat:
                tasks.start_soon(_done, seat, partial(seat.called, call))
        return {call.agent for call in calls if not self._hears(call)}

    def _hears(self, call: PendingRequests) -> bool:
        """Whether all that shall stop can be stopped now, and who asked can be answered."""
        seat = self._seats.get(call.agent)
        runner = seat.runner if seat else None
        if seat is None or runner is None or runner.is_over:
            return False
        if call.answers and seat.live is None:
            return False
        offered = seat.live.offers.open.keys() if seat.live else set[ItemId]()
        return offered | {runner.claim.item.id} >= set(call.cancelled)


async def _done(seat: AgentWorker, deed: Deed) -> None:
    try:
        await deed()
    except (LeaseLost, KeeperGone, ChangeRefused):
        # Somebody else has the lane, the run is over, or others will find out what became of it.
        return
    except Exception as error:  # noqa: BLE001 (one agent's trouble is not that of the others)
        log_bug(error, agent=seat.agent.name)
