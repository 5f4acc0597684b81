"""Decides when a run has waited too long. No I/O: everything is computed from clock readings.

`RunTimer` has the times of one run and finds the timeouts that are due. Its caller carries them
out.
"""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

from msgspec import Struct

from steadyrun.lib.clock import Clock
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    Emitted,
    Event,
    Foreign,
    ProviderRetrying,
)
from steadyrun.model.run import StopReason


class Timeouts(Struct, frozen=True):
    """The timeouts of runs, as in the table `clocks` of the configuration; 0 means no limit."""

    # Without output of the provider.
    idle_seconds: float = 1800.0
    # The same for a process that serves one turn only.
    stall_seconds: float = 120.0
    # From the input to the first output of an answer.
    hang_seconds: float = 60.0
    # Silence that is worth a warning.
    warning_seconds: float = 60.0
    # From the request to end a turn to the end of its process.
    interrupt_seconds: float = 10.0
    # From the end of its input to the end of a process.
    close_seconds: float = 10.0
    # From the end of a turn to the end of what was offered to it.
    offer_seconds: float = 30.0
    # From a question to the answer of a person.
    approval_seconds: float = 600.0


class Activity(Struct, frozen=True):
    """The state of a run that its deadlines depend on, in seconds of the monotonic clock."""

    started_at: float
    # When the turn was sent; None before that.
    sent_at: float | None
    output_at: float
    # When the process last got any input: its silence is counted from there.
    input_at: float = 0.0
    # The run waits for a person, a tool, a follow-up or a time that its provider has announced:
    # then silence means nothing.
    is_waiting: bool = False
    # When the run has to be done; None if there is no such limit, or while a person is asked.
    wall_at: float | None = None
    is_one_shot: bool = False
    is_warned: bool = False


class ProcessActivity(Struct, frozen=True):
    """What the process of a run does at this moment."""

    output_at: float
    input_at: float
    is_one_shot: bool
    # A tool runs, or a follow-up is open.
    is_busy: bool


class Deadline(Struct, frozen=True):
    """When to stop the run, and for which reason; without a reason it is only a warning."""

    at: float
    reason: StopReason | None


class DenyApproval(Struct, frozen=True):
    """The question got no answer in time."""

    approval: str


class StopForTimeout(Struct, frozen=True):
    """The run has taken too long."""

    reason: StopReason
    why: str


class WarnOfStall(Struct, frozen=True):
    """The process has been silent for a while."""

    silent_ms: int


TimeoutAction = DenyApproval | StopForTimeout | WarnOfStall


class RunTimer:
    """The times of one run, and which of its timeouts are due.

    Only the time of the provider counts: the time in which a person was asked, and the time in
    which this process was suspended, are taken out. `ActiveRun` owns the timer.
    """

    def __init__(self, timeouts: Timeouts, clock: Clock, *, is_adopted: bool) -> None:
        # The open questions to a person, and since when; infinite once they were denied.
        self.approvals: dict[str, float] = {}
        self._timeouts, self._clock = timeouts, clock
        # From the start of the run to its end, without the time in which a person was asked.
        self._wall_seconds: float | None = None
        self._started_at = clock.monotonic()
        # Since when at least one question is open.
        self._asked_at = 0.0
        self._sent_at: float | None = None
        # The provider has announced that it tries again at this time.
        self._retries_at = 0.0
        # The time of the last output, if a warning was written for the silence after it.
        self._warned_of: float | None = None
        # When this process was last resumed after it was suspended.
        self._resumed_at = 0.0
        # No timeout can be due before: output only makes them later.
        self._next_check = 0.0
        # "own": started here. "adopted": started by another holder; the time of its past approvals
        # is not subtracted yet. "loaded": it is subtracted.
        self._start: Literal["own", "adopted", "loaded"] = "adopted" if is_adopted else "own"

    def set_wall(self, seconds: float | None) -> None:
        self._wall_seconds = seconds

    def set_passed(self, seconds: float) -> None:
        """Set the time that had passed when the run was taken over."""
        self._started_at = self._clock.monotonic() - max(0.0, seconds)

    def start_sending(self) -> None:
        """The turn is about to be sent: an answer is due from here on. In an adopted run that is
        the case only if the turn really is sent."""
        self._sent_at = self._clock.monotonic() if self._start == "own" else None
        self._next_check = 0.0

    def finish_sending(self, *, was_sent: bool) -> None:
        """`was_sent`: the turn was sent now, and not by an earlier holder."""
        if was_sent or self._start == "own":
            self._sent_at = self._clock.monotonic()
            self._next_check = 0.0

    def note(self, event: Event | Foreign) -> None:
        """Apply an event to the times of the run."""
        match event:
            case ApprovalRequested(about="tool"):
                self._open_question(event.approval)
            case ApprovalResolved():
                self._close_question(event.approval)
            case ProviderRetrying():
                self._retries_at = self._clock.monotonic() + (event.delay_ms or 0) / 1000
            case _:
                pass
        self._next_check = 0.0

    def load_questions(self, seen: Iterable[Emitted]) -> None:
        """Take out the time of past questions, once, for a run that another holder has started."""
        if self._start == "adopted":
            asked = count_asked_seconds(seen, self._clock.now())
            self._started_at = min(self._clock.monotonic(), self._started_at + asked)
            self._start = "loaded"

    def add_downtime(self, seconds: float) -> None:
        """This process was suspended: that silence and that time do not count."""
        self._resumed_at = self._clock.monotonic()
        self._started_at += seconds
        self._asked_at += seconds
        self.approvals = {name: at + seconds for name, at in self.approvals.items()}
        self._next_check = 0.0

    def retry_denial(self, approval: str) -> None:
        """The denial could not be stored: it is due again."""
        if approval in self.approvals:
            self.approvals[approval] = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether `find_due` may find anything."""
        return now >= self._next_check

    def find_due(
        self, now: float, process: ProcessActivity, *, is_stopping: bool
    ) -> Iterator[TimeoutAction]:
        """The timeouts that have passed. A run that ends anyway (`is_stopping`) has only the
        timeouts of its questions."""
        limit = self._timeouts.approval_seconds or math.inf
        for name, asked_at in list(self.approvals.items()):
            if now > asked_at + limit:
                self.approvals[name] = math.inf
                yield DenyApproval(name)
        activity = None if is_stopping else self._build_activity(now, process)
        deadline = next_deadline(self._timeouts, activity) if activity else None
        if activity is None or deadline is None:
            return
        silent = now - process.output_at
        if deadline.at > now:
            # An answer or the end of a tool may come at any time, and start a timeout.
            self._next_check = 0.0 if activity.is_waiting else deadline.at
        elif deadline.reason:
            yield StopForTimeout(deadline.reason, self._explain(deadline.reason, silent))
        else:
            self._warned_of = process.output_at
            yield WarnOfStall(round(silent * 1000))

    def _build_activity(self, now: float, process: ProcessActivity) -> Activity:
        wall = self._wall_seconds
        return Activity(
            self._started_at,
            self._sent_at,
            process.output_at,
            max(process.input_at, self._resumed_at),
            is_waiting=process.is_busy or bool(self.approvals) or now < self._retries_at,
            wall_at=None if self.approvals or not wall else self._started_at + wall,
            is_one_shot=process.is_one_shot,
            is_warned=self._warned_of == process.output_at,
        )

    def _explain(self, reason: StopReason, silent_seconds: float) -> str:
        """The error message of a run that is stopped by a timeout."""
        silent = f"no output for {round(silent_seconds * 1000)}ms"
        if reason == "wall_timeout":
            return f"the run was not done after {self._wall_seconds:g} s"
        return {
            "stall": f"stream stall: {silent}",
            "hang": f"{silent} after the turn was sent",
        }.get(reason, silent)

    def _open_question(self, approval: str) -> None:
        now = self._clock.monotonic()
        self._asked_at = self._asked_at if self.approvals else now
        self.approvals[approval] = now

    def _close_question(self, approval: str) -> None:
        if self.approvals.pop(approval, None) is not None and not self.approvals:
            self._started_at += self._clock.monotonic() - self._asked_at


def next_deadline(timeouts: Timeouts, activity: Activity) -> Deadline | None:
    """The first deadline, if there is no more output."""
    wall_at = activity.wall_at
    deadlines = [] if wall_at is None else [Deadline(wall_at, "wall_timeout")]
    if not activity.is_waiting:
        deadlines += _list_silence_deadlines(timeouts, activity)
    return min(deadlines, key=lambda deadline: deadline.at, default=None)


def _list_silence_deadlines(timeouts: Timeouts, activity: Activity) -> list[Deadline]:
    since = max(activity.output_at, activity.input_at, activity.sent_at or activity.started_at)
    has_answered = activity.sent_at is None or activity.output_at > activity.sent_at
    deadlines = []
    if timeouts.hang_seconds and not has_answered:
        deadlines.append(Deadline(since + timeouts.hang_seconds, "hang"))
    if timeouts.stall_seconds and activity.is_one_shot:
        deadlines.append(Deadline(since + timeouts.stall_seconds, "stall"))
    if timeouts.idle_seconds:
        deadlines.append(Deadline(since + timeouts.idle_seconds, "idle_timeout"))
    if timeouts.warning_seconds and not activity.is_warned:
        deadlines.append(Deadline(since + timeouts.warning_seconds, None))
    return deadlines


def count_asked_seconds(seen: Iterable[Emitted], now: datetime) -> float:
    """How long, by the record of a run, at least one question to a person was open."""
    seconds, since = 0.0, now
    open_ = set[str]()
    for each in seen:
        match each.event:
            case ApprovalRequested(approval=name, about="tool"):
                since = since if open_ else each.at
                open_.add(name)
            case ApprovalResolved(approval=name) if name in open_:
                open_.remove(name)
                seconds += 0.0 if open_ else max(0.0, (each.at - since).total_seconds())
            case _:
                continue
    return seconds + (max(0.0, (now - since).total_seconds()) if open_ else 0.0)
