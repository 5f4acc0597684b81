"""What becomes of what a process says? Recorded in order, each event with the run it belongs to."""

from typing import Protocol, TypeGuard

from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    Emitted,
    FollowupAbsorbed,
    FollowupReturned,
    ProviderRetrying,
)
from steadyrun.model.ids import RunId
from steadyrun.model.run import Finished
from steadyrun.provider import Began, Ended, Heard, Stretch
from steadyrun.runtime.process import LiveProcess
from steadyrun.runtime.runner import Runner

# The events that ask something of us.
_ASKING = frozenset(
    {FollowupAbsorbed, FollowupReturned, ApprovalRequested, ApprovalResolved, ProviderRetrying}
)
_PLAIN = frozenset({Emitted})


class Turning(Protocol):
    """Who knows which run a turn belongs to."""

    runner: Runner | None

    async def begun(self, live: LiveProcess, took: str | None) -> RunId: ...

    def judged(self, ended: Ended, token: str | None) -> Finished | None: ...

    def over(self) -> None: ...

    def offer(self, live: LiveProcess) -> None: ...

    def waits(self) -> None: ...


async def hear(seat: Turning, live: LiveProcess, stretch: Stretch) -> None:
    """Record it, then do what it asks of us."""
    is_plain = set(map(type, stretch.heard)) <= _PLAIN
    if is_plain:
        events: list[Emitted] = stretch.heard  # type: ignore[assignment]
        await live.recorder.write(events, stretch.offset, has_more=stretch.has_more)
    else:
        await _hear_turn(seat, live, stretch)
    asking = [each for each in stretch.heard if _is_asking(each)]
    for heard in asking:
        await _note(seat, live, heard)
    if asking or not is_plain:
        live.tell_change()


async def _hear_turn(seat: Turning, live: LiveProcess, stretch: Stretch) -> None:
    """One frame with a turn's beginning or end in it; events go where they belong."""
    recorder, events = live.recorder, list[Emitted]()
    begun: RunId | None = None
    for heard in stretch.heard:
        match heard:
            case Emitted():
                events.append(heard)
            case Began():
                # What its frame says before is of this turn, too: one frame, one commit.
                begun = await seat.begun(live, heard.input)
            case Ended():
                finished = seat.judged(heard, recorder.token)
                if finished is None:
                    continue
                if begun:
                    await recorder.begin(begun, (), recorder.offset)
                await recorder.end(finished, events, stretch)
                seat.over()
                events, begun = [], None
    if begun:
        await recorder.begin(begun, events, stretch.offset)
        seat.offer(live)
    else:
        await recorder.write(events, stretch.offset, has_more=stretch.has_more)


async def _note(seat: Turning, live: LiveProcess, heard: Emitted) -> None:
    event = heard.event
    if isinstance(event, FollowupAbsorbed | FollowupReturned):
        await live.recorder.flush()
        await live.offers.note(event)
    elif seat.runner:
        seat.runner.note(event)
        seat.waits()


def _is_asking(heard: Heard) -> TypeGuard[Emitted]:
    return type(heard) is Emitted and type(heard.event) in _ASKING
