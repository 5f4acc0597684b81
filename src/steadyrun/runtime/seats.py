"""Which lanes does this process have, and does anybody want something of them?

One task looks at all clocks, and one hears what others want: a run costs nothing for them.
"""

from collections.abc import Iterator
from functools import partial

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import ChangeRefused, KeeperGone, LeaseLost, StoreFailed
from steadyrun.hints import Hint
from steadyrun.model.ids import AgentId, RunId
from steadyrun.runtime.around import Surroundings
from steadyrun.runtime.facts import bug, fact
from steadyrun.runtime.runner import Deed
from steadyrun.runtime.seat import Seat
from steadyrun.tasks import task_group

# How often the clocks are looked at, and how late that may be before it tells something.
_TICK_SECONDS = 0.5
_LATE_SECONDS = 1.0


class Seats:
    """All seats of this process, by agent."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._seats: dict[AgentId, Seat] = {}

    def __iter__(self) -> Iterator[Seat]:
        return iter(list(self._seats.values()))

    def add(self, seat: Seat) -> None:
        self._seats[seat.agent.id] = seat

    def remove(self, seat: Seat) -> None:
        if self._seats.get(seat.agent.id) is seat:
            del self._seats[seat.agent.id]

    def of(self, agent: AgentId) -> Seat | None:
        return self._seats.get(agent)

    def running(self, run: RunId) -> Seat | None:
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
        store, holder = self._around.store, self._around.holder
        with store.hints.watch(None, Hint.WORK) as watch:
            while True:
                try:
                    calls = await store.calls(holder) if self._seats else []
                except StoreFailed as error:
                    # Nothing is lost by this: it is asked again.
                    fact("store.failed", phase="calls", code=error.code)
                    calls = []
                for call in calls:
                    seat = self._seats.get(call.agent)
                    if seat:
                        deed = partial(seat.called, call)
                        tasks.start_soon(_done, seat, deed)
                await watch.wait()


async def _done(seat: Seat, deed: Deed) -> None:
    try:
        await deed()
    except (LeaseLost, KeeperGone, ChangeRefused):
        # Somebody else has the lane, the run is over, or others will find out what became of it.
        return
    except Exception as error:  # noqa: BLE001 (one agent's trouble is not that of the others)
        bug(error, agent=seat.agent.name)
