"""When has a run waited too long? Pure: it is told the time and the signs of life."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from steadyrun.model.event import ApprovalRequested, ApprovalResolved, Emitted
from steadyrun.model.run import StopReason


class Timeouts(Struct, frozen=True):
    """How long may it take? Seconds; None or 0 is without limit."""

    # From the start of the run to its end, without the time in which a person was asked.
    wall: float | None = None
    # Without a word from the provider.
    idle: float | None = 30 * 60.0
    # The same for a process that serves one turn only.
    stall: float | None = 120.0
    # From the input to the first word of an answer.
    hang: float | None = 60.0
    # Silence that is worth a warning.
    warning: float | None = 60.0
    # From the polite request to end a turn to the end of its process.
    interrupt: float | None = 10.0
    # From the end of its input to the end of a process.
    close: float | None = 10.0
    # From the end of a turn to the end of what was offered to it.
    offer: float | None = 30.0
    # From a question to the answer of a person.
    approval: float | None = 600.0


class Activity(Struct, frozen=True):
    """What is known of a run's life, in seconds of the monotonic clock."""

    started_at: float
    # When the input was written; None before that.
    told_at: float | None
    heard_at: float
    # When anything was last said to it: it may take its time from there.
    said_at: float = 0.0
    # It waits for a person, a tool, a follow-up or a time it has announced: silence means nothing.
    is_waiting: bool = False
    # It waits for a person: that is not its own time.
    is_asking: bool = False
    is_one_shot: bool = False
    is_warned: bool = False


class Deadline(Struct, frozen=True):
    """What to do, and when: stop for that reason, or only warn."""

    at: float
    reason: StopReason | None


def next_deadline(limits: Timeouts, signs: Activity) -> Deadline | None:
    """The first clock that will ring if nothing more is heard."""
    wall = limits.wall if not signs.is_asking else None
    alarms = [Deadline(signs.started_at + wall, "wall_timeout")] if wall else []
    if not signs.is_waiting:
        alarms += _silence(limits, signs)
    return min(alarms, key=lambda alarm: alarm.at, default=None)


def _silence(limits: Timeouts, signs: Activity) -> list[Deadline]:
    since = max(signs.heard_at, signs.said_at, signs.told_at or signs.started_at)
    has_answered = signs.told_at is None or signs.heard_at > signs.told_at
    alarms = []
    if limits.hang and not has_answered:
        alarms.append(Deadline(since + limits.hang, "hang"))
    if limits.stall and signs.is_one_shot:
        alarms.append(Deadline(since + limits.stall, "stall"))
    if limits.idle:
        alarms.append(Deadline(since + limits.idle, "idle_timeout"))
    if limits.warning and not signs.is_warned:
        alarms.append(Deadline(since + limits.warning, None))
    return alarms


def why_stopped(reason: StopReason, limits: Timeouts, silent_seconds: float) -> str | None:
    """What a clock that has rung has to say."""
    silent = f"{round(silent_seconds * 1000)}ms"
    match reason:
        case "wall_timeout":
            return f"it was not done after {limits.wall:g} s"
        case "idle_timeout":
            return f"nothing was heard of it for {silent}"
        case "stall":
            return f"stream stall: no output for {silent}"
        case "hang":
            return f"nothing came back for {silent} after it was told"
        case _:
            return None


def asked_seconds(seen: Iterable[Emitted], now: datetime) -> float:
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
