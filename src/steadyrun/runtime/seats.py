"""Which lanes does this process have, and does anybody want something of them?

One task looks at all clocks, and one hears what others want: a run costs nothing for them.
"""

import contextlib
from collections.abc import Iterator

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import KeeperGone, LeaseLost
from steadyrun.model.ids import AgentId, RunId
from steadyrun.runtime.around import Surroundings
from steadyrun.runtime.runner import Deed, Runner
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
        clock = self._around.clock
        last = clock.monotonic()
        while True:
            await anyio.sleep(_TICK_SECONDS)
            now = clock.monotonic()
            late = now - last - _TICK_SECONDS
            last = now
            for runner in self._runners():
                if late > _LATE_SECONDS:
                    runner.shift(late)
                for deed in runner.due(now):
                    tasks.start_soon(_done, deed)

    def _runners(self) -> list[Runner]:
        return [seat.runner for seat in self if seat.runner]

    async def _hear_calls(self, tasks: TaskGroup) -> None:
        store, holder = self._around.store, self._around.holder
        with store.hints.watch(None, of_events=False) as watch:
            while True:
                for call in await store.calls(holder) if self._seats else ():
                    seat = self._seats.get(call.agent)
                    if seat:
                        tasks.start_soon(_done, lambda seat=seat, call=call: seat.called(call))
                await watch.wait()


async def _done(deed: Deed) -> None:
    # Somebody else has the lane, or will find out what became of the process.
    with contextlib.suppress(LeaseLost, KeeperGone):
        await deed()
