"""Defines runs and their changes. `step` is the only function that makes a run.

    (none) --created--> starting --launched--> running --finished|orphaned--> …

The last five statuses are terminal: a later change returns the run unchanged. Everything here is
pure: no clock, no store; the change carries every time.
"""

from datetime import datetime
from typing import Any, Literal, assert_never

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import ChangeRefused
from steadyrun.model import event as ev
from steadyrun.model.event import Diagnostic, Emitted, ErrorFact, Event
from steadyrun.model.ids import AgentId, ItemId, ProcessId, RunId
from steadyrun.model.json_object import merge_objects
from steadyrun.model.secret import Scrubber
from steadyrun.model.usage import Cost, Usage

RunStatus = Literal[
    "starting", "running", "completed", "failed", "cancelled", "timed_out", "rate_limited"
]
StopReason = Literal[
    "user_stop", "idle_timeout", "stall", "hang", "wall_timeout", "shutdown", "budget", "policy",
    "orphaned", "keeper_lost", "disk_full", "journal_full", "machine_lost", "launch_failed",
]  # fmt: skip
EndStatus = Literal["completed", "failed", "cancelled", "timed_out", "rate_limited"]
LostReason = Literal["orphaned", "keeper_lost", "machine_lost"]
Metadata = dict[str, Any]

STDERR_EXCERPT_CHARS = 200
# The stop reason of a run whose provider could not be started on this machine. The run has done
# nothing, and its item is queued again.
LAUNCH_FAILED: StopReason = "launch_failed"

_ENDINGS: dict[EndStatus, type[ev.RunEnded]] = {
    "completed": ev.RunCompleted,
    "failed": ev.RunFailed,
    "cancelled": ev.RunCancelled,
    "timed_out": ev.RunTimedOut,
    "rate_limited": ev.RunRateLimited,
}
TERMINAL: frozenset[RunStatus] = frozenset(_ENDINGS)
# The status of a run that was stopped, by the reason.
STOPPED: dict[StopReason, EndStatus] = {
    "user_stop": "cancelled",
    "shutdown": "cancelled",
    "wall_timeout": "timed_out",
    "idle_timeout": "timed_out",
    "stall": "failed",
    "hang": "failed",
    "budget": "failed",
    "policy": "failed",
    "orphaned": "failed",
    "keeper_lost": "failed",
    "machine_lost": "failed",
    "disk_full": "failed",
    "journal_full": "failed",
    "launch_failed": "failed",
}


class Run(Struct, frozen=True):
    """One attempt to do an item. Terminal runs change only when they are pruned."""

    id: RunId
    agent: AgentId
    item: ItemId | None
    provider: str
    created_at: datetime
    status: RunStatus = "starting"
    model: str | None = None
    process: ProcessId | None = None
    allowed_tools: tuple[str, ...] | None = None
    metadata: Metadata = {}
    stop_reason: StopReason | None = None
    text: str | None = None
    usage: Usage = Usage()
    cost: Cost = Cost()
    resume_token: str | None = None
    exit_code: int | None = None
    error: ErrorFact | None = None
    diagnostic: Diagnostic | None = None
    started_at: datetime | None = None
    active_at: datetime | None = None
    ended_at: datetime | None = None
    events: int = 0
    tools: int = 0
    # The account whose limits apply; see `Gate`.
    account: str = ""
    # Whether the events, or the text, are deleted because they are old.
    events_pruned: bool = False
    text_pruned: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def duration_ms(self) -> int | None:
        if self.ended_at is None:
            return None
        since = self.started_at or self.created_at
        return max(0, round((self.ended_at - since).total_seconds() * 1000))


class Created(Struct, frozen=True, tag="created"):
    """The intent to run, written before anything is started."""

    id: RunId
    agent: AgentId
    item: ItemId | None
    provider: str
    at: datetime
    model: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    metadata: Metadata = {}
    # None: the present account of the provider.
    account: str | None = None


class Launched(Struct, frozen=True, tag="launched"):
    """The process of the provider has accepted the turn. On a running run it is a refresh."""

    at: datetime
    process: ProcessId | None = None
    active_at: datetime | None = None
    metadata: Metadata = {}


class Touched(Struct, frozen=True, tag="touched"):
    """The run is active; `usage` and `cost` are those so far."""

    active_at: datetime
    usage: Usage | None = None
    cost: Cost | None = None
    resume_token: str | None = None


class Finished(Struct, frozen=True, tag="finished"):
    """The turn ended: by itself, by a user, by a timeout or by a limit."""

    at: datetime
    status: EndStatus
    stop_reason: StopReason | None = None
    text: str | None = None
    usage: Usage | None = None
    cost: Cost | None = None
    resume_token: str | None = None
    exit_code: int | None = None
    error: ErrorFact | None = None
    diagnostic: Diagnostic | None = None
    active_at: datetime | None = None


class Orphaned(Struct, frozen=True, tag="orphaned"):
    """The process is lost, and the result of the run is unknown."""

    at: datetime
    stop_reason: LostReason = "orphaned"


RunChange = Created | Launched | Touched | Finished | Orphaned


def step(run: Run | None, change: RunChange) -> Run:
    """Apply one change. A terminal run is returned as the same object."""
    if run is None:
        return _create(change)
    return run if run.is_terminal else _apply(run, change)


def build_status_events(before: Run | None, after: Run) -> list[Emitted]:
    """The event of a change of status; none if the status is the same."""
    if before is not None and before.status == after.status:
        return []
    if after.status == "running" and after.started_at:
        return [Emitted(f"{after.id}:started", 0, after.started_at, _build_started(after))]
    if after.ended_at:
        return [Emitted(f"{after.id}:ended", 0, after.ended_at, _build_ended(after))]
    return []


def add_counts(run: Run, events: int, tools: int) -> Run:
    """Add to the counters of the run. They are stored so that events need not be counted."""
    return replace(run, events=run.events + events, tools=run.tools + tools)


def scrub_run(run: Run, scrubber: Scrubber) -> Run:
    """Remove secrets from what the provider or a caller wrote; names and states stay. The excerpt
    of stderr is cut afterwards: a cut before could leave a part of a secret."""
    return replace(
        run,
        text=scrubber.clean(run.text),
        error=scrubber.clean(run.error),
        diagnostic=_cut_excerpt(scrubber.clean(run.diagnostic)),
        metadata=scrubber.clean(run.metadata),
    )


def _create(change: RunChange) -> Run:
    if not isinstance(change, Created):
        raise ChangeRefused(str(change.__struct_config__.tag), found="there is no such run")
    return Run(
        id=change.id,
        agent=change.agent,
        item=change.item,
        provider=change.provider,
        created_at=change.at,
        model=change.model,
        allowed_tools=change.allowed_tools,
        metadata=change.metadata,
        account=change.account or "",
    )


def _apply(run: Run, change: RunChange) -> Run:
    match change:
        case Created():
            after = replace(run, metadata=merge_objects(run.metadata, change.metadata))
        case Launched():
            after = _start(run, change)
        case Touched():
            after = _touch(run, change)
        case Finished():
            after = _finish(run, change)
        case Orphaned():
            after = _orphan(run, change)
        case _:
            assert_never(change)
    return after


def _start(run: Run, change: Launched) -> Run:
    return replace(
        run,
        status="running",
        process=change.process or run.process,
        started_at=run.started_at or change.at,
        active_at=change.active_at or run.active_at,
        metadata=merge_objects(run.metadata, change.metadata),
    )


def _touch(run: Run, change: Touched) -> Run:
    return replace(
        run,
        active_at=change.active_at,
        usage=change.usage or run.usage,
        cost=change.cost or run.cost,
        resume_token=change.resume_token or run.resume_token,
    )


def _finish(run: Run, change: Finished) -> Run:
    return replace(
        run,
        status=change.status,
        stop_reason=change.stop_reason,
        text=change.text,
        usage=change.usage or run.usage,
        cost=change.cost or run.cost,
        resume_token=change.resume_token or run.resume_token,
        exit_code=change.exit_code,
        error=change.error,
        diagnostic=change.diagnostic if change.status == "failed" else None,
        active_at=change.active_at or run.active_at,
        ended_at=change.at,
    )


def _orphan(run: Run, change: Orphaned) -> Run:
    error = ErrorFact(
        change.stop_reason, "the process of this run was lost", "It can be sent again.", True
    )
    return replace(
        run, status="failed", stop_reason=change.stop_reason, error=error, ended_at=change.at
    )


def _cut_excerpt(diagnostic: Diagnostic | None) -> Diagnostic | None:
    if diagnostic is None:
        return None
    return Diagnostic(diagnostic.exit_code, diagnostic.stderr_excerpt[-STDERR_EXCERPT_CHARS:])


def _build_started(run: Run) -> Event:
    return ev.RunStarted(provider=run.provider, model=run.model, item=run.item)


def _build_ended(run: Run) -> Event:
    assert run.status != "starting"
    assert run.status != "running"
    return _ENDINGS[run.status](
        status=run.status,
        stop_reason=run.stop_reason,
        text=run.text,
        usage=run.usage,
        cost=run.cost,
        resume_token=run.resume_token,
        duration_ms=run.duration_ms,
        exit_code=run.exit_code,
        error=run.error,
        diagnostic=run.diagnostic,
    )
