"""Writes the operator log: one line of JSON for each log event, never the words of an agent.

A field is an id, a name, a code, a number or a boolean. Any other value is omitted or cut, and its
name is listed in `cut`: the log never fails, and never contains text that may be private.
"""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal

import msgspec
from msgspec import Struct

from steadyrun.model.secret import Scrubber

LogEventName = Literal[
    "daemon.started", "daemon.relocked", "daemon.draining", "daemon.stopped",
    "agent.synced", "letters.drained", "downtime.credited",
    "lane.reaped", "lease.lost",
    "process.launched", "process.adopted", "process.evicted", "process.killed",
    "process.closed", "process.set_aside",
    "processes.cleared",
    "run.started", "run.ended", "run.retried",
    "item.settled",
    "launch.failed", "gate.closed", "store.failed", "store.pruned",
    "health.breached", "health.recovered",
    "telemetry.failed", "telemetry.dropped",
    "bug",
]  # fmt: skip
LogField = str | int | float | bool | None


class LogEventKind(Struct, frozen=True):
    """A kind of log event. A warning may need attention; an error does."""

    name: LogEventName
    level: Literal["info", "warning", "error"]
    meaning: str


LOG_EVENTS: tuple[LogEventKind, ...] = (
    LogEventKind(
        "daemon.started",
        "info",
        "the daemon has its lock and its store, and takes over what an earlier daemon left",
    ),
    LogEventKind(
        "daemon.relocked", "warning", "the lock file of the daemon was deleted, and is there again"
    ),
    LogEventKind("daemon.draining", "info", "no new run starts; active runs may end"),
    LogEventKind("daemon.stopped", "info", "the daemon has ended; this is its last line"),
    LogEventKind(
        "agent.synced",
        "info",
        "an agent of the configuration was added, changed, resumed or paused",
    ),
    LogEventKind("letters.drained", "info", "calls that were spooled while no daemon ran are done"),
    LogEventKind(
        "downtime.credited",
        "info",
        "the time without a daemon does not count against the limits of runs",
    ),
    LogEventKind("lane.reaped", "warning", "an agent was taken over from a holder that has ended"),
    LogEventKind(
        "lease.lost", "warning", "another holder has the agent now; this one writes no more"
    ),
    LogEventKind("process.launched", "info", "a CLI was started"),
    LogEventKind("process.adopted", "info", "a CLI that an earlier daemon started was taken over"),
    LogEventKind("process.evicted", "info", "an idle CLI is closed to make room for another"),
    LogEventKind(
        "process.killed",
        "warning",
        "the keeper of a CLI that has to end did not answer: it was killed, and all of the CLI",
    ),
    LogEventKind("process.closed", "info", "a CLI has ended, with all processes it started"),
    LogEventKind(
        "process.set_aside",
        "warning",
        "a CLI was ended and is not read any more: it has ended its readers, taken all memory, or"
        " done more than the restored store has",
    ),
    LogEventKind("processes.cleared", "info", "files of CLIs that ended long ago are deleted"),
    LogEventKind("run.started", "info", "the run of an item starts"),
    LogEventKind("run.ended", "info", "a run ended, with its status"),
    LogEventKind("run.retried", "warning", "the item of a run is tried again, with the reason"),
    LogEventKind("item.settled", "info", "an item is finished, or queued again"),
    LogEventKind(
        "launch.failed",
        "warning",
        "the provider of a run could not be started on this machine; the item waits for that",
    ),
    LogEventKind(
        "gate.closed", "warning", "a provider's gate is closed, with the time of its opening"
    ),
    LogEventKind(
        "store.failed", "error", "the store could not be written; the write is tried again"
    ),
    LogEventKind("store.pruned", "info", "old events and texts are deleted, as configured"),
    LogEventKind(
        "health.breached",
        "warning",
        "a measure of the daemon is above its limit; see `[watch]` in the configuration",
    ),
    LogEventKind("health.recovered", "info", "the measure is below its limit again"),
    LogEventKind(
        "telemetry.failed",
        "warning",
        "the collector did not accept spans; the export is tried again",
    ),
    LogEventKind(
        "telemetry.dropped", "warning", "spans are dropped: the collector did not accept them"
    ),
    LogEventKind("bug", "error", "an unexpected error: please report it"),
)
LONGEST_FIELD = 200

_LOG = logging.getLogger("steadyrun")
# Without a handler Python would print warnings to stderr.
_LOG.addHandler(logging.NullHandler())
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LEVEL_OF: dict[str, int] = {kind.name: _LEVELS[kind.level] for kind in LOG_EVENTS}
_RESERVED = frozenset({"at", "level", "fact", "cut"})
_INTEGERS = range(-(2**63), 2**63)


def log_event(name: LogEventName, /, **fields: LogField) -> None:
    """Log an event to the logger `steadyrun`."""
    _LOG.log(_LEVEL_OF.get(name, logging.ERROR), name, extra={"fields": fields})


def log_bug(error: BaseException, /, **fields: LogField) -> None:
    """Log an unexpected error: its type and its place in the code, not its message."""
    log_event("bug", error=type(error).__name__, where=_locate_error(error), **fields)


@contextmanager
def log_to_stderr(scrubber: Scrubber, *, for_people: bool = False) -> Iterator[None]:
    """Write log events to stderr while the block runs: as JSON, or `for_people` as text."""
    handler = _StderrHandler()
    handler.setFormatter((TextLogFormatter if for_people else JsonLogFormatter)(scrubber))
    before = _LOG.level, _LOG.propagate
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.level, _LOG.propagate = before


class _StderrHandler(logging.Handler):
    """Ignores errors of writing: a full disk or a closed pipe must not end the daemon."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class JsonLogFormatter(logging.Formatter):
    """Formats a log event as a line of JSON; for any other record, only its place in the code."""

    def __init__(self, scrubber: Scrubber) -> None:
        super().__init__()
        self._scrubber = scrubber

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode(self.build_document(record)).decode()

    def build_document(self, record: logging.LogRecord) -> dict[str, Any]:
        name, fields = _read_record(record)
        # Cut last: a part of a secret would not be found.
        limited = {key: _limit_field(self._scrubber.clean(value)) for key, value in fields.items()}
        cut = [key for key, value in fields.items() if key in _RESERVED or limited[key] != value]
        return {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "fact": name,
            **{key: value for key, value in limited.items() if key not in _RESERVED},
            **({"cut": cut} if cut else {}),
        }


class TextLogFormatter(JsonLogFormatter):
    """Formats a log event as a line of text for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.build_document(record)
        at, level, name = fields.pop("at"), fields.pop("level"), fields.pop("fact")
        mark = "" if level == "info" else f" {level}:"
        words = " ".join(f"{key}={value}" for key, value in fields.items())
        return f"{at[11:19]}{mark} {name} {words}".rstrip()


def _read_record(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    fields = getattr(record, "fields", None)
    if record.msg in _LEVEL_OF and isinstance(fields, dict):
        return record.msg, fields
    return "bug", {"error": "no_fact", "where": f"{record.module}:{record.lineno}"}


def _limit_field(value: object) -> LogField:
    """Return the value, cut if it is too long; None if it is of no permitted type."""
    match value:
        case bool() | float() | None:
            return value
        case int():
            return value if value in _INTEGERS else None
        case str() if value.isprintable() and " " not in value:
            return value[:LONGEST_FIELD]
        case _:
            # Text with a space may be the words of an agent.
            return None


def _locate_error(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
