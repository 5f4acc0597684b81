"""What does an operator read? One line of JSON for each fact, and no fact tells what agents say.

A field is an id, a name, a code, a number, a yes or no. Whatever is anything else is left out or
cut, and named in `cut`: a log never breaks what it tells of, and never tells more than it should.
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

FactName = Literal[
    "daemon.started", "daemon.draining", "daemon.stopped",
    "agent.synced", "letters.drained", "downtime.credited",
    "lane.reaped", "lease.lost",
    "process.launched", "process.adopted", "process.evicted", "process.closed",
    "processes.cleared",
    "run.started", "run.ended", "run.retried",
    "item.settled",
    "gate.closed", "store.failed",
    "telemetry.failed", "telemetry.dropped",
    "bug",
]  # fmt: skip
Field = str | int | float | bool | None


class LogFields(Struct, frozen=True):
    """A kind of fact. Warnings may need somebody, errors do."""

    name: FactName
    level: Literal["info", "warning", "error"]
    meaning: str


FACTS: tuple[LogFields, ...] = (
    LogFields(
        "daemon.started", "info", "it has the lock and the store, and takes up what it finds"
    ),
    LogFields("daemon.draining", "info", "no new run begins; those that run may end"),
    LogFields("daemon.stopped", "info", "the last thing it says"),
    LogFields(
        "agent.synced", "info", "an agent of the configuration was added, changed or retired"
    ),
    LogFields("letters.drained", "info", "what was left for it while it was away has been done"),
    LogFields("downtime.credited", "info", "the time it was away is not counted against runs"),
    LogFields("lane.reaped", "warning", "an agent was taken over from a holder that is gone"),
    LogFields(
        "lease.lost", "warning", "another holder has the agent now; nothing more is written here"
    ),
    LogFields("process.launched", "info", "a CLI was started"),
    LogFields("process.adopted", "info", "a CLI that an earlier daemon had started goes on here"),
    LogFields("process.evicted", "info", "a CLI that waited is closed to make room for another"),
    LogFields("process.closed", "info", "a CLI is gone, with everything it had started"),
    LogFields("processes.cleared", "info", "what CLIs have left that ended long ago is deleted"),
    LogFields("run.started", "info", "an agent begins with an item"),
    LogFields("run.ended", "info", "it ended, and how"),
    LogFields("run.retried", "warning", "its item is run again, and why"),
    LogFields("item.settled", "info", "an item is done with, or waits again"),
    LogFields("gate.closed", "warning", "a provider is left alone until a time"),
    LogFields("store.failed", "error", "the store could not be written; it is tried again"),
    LogFields("telemetry.failed", "warning", "the collector did not take spans; it is tried again"),
    LogFields(
        "telemetry.dropped", "warning", "spans are left out: the collector has not taken them"
    ),
    LogFields("bug", "error", "something happened that must not: please report it"),
)
LONGEST_FIELD = 200

_LOG = logging.getLogger("steadyrun")
# Whoever has not asked for facts sees none, warnings neither.
_LOG.addHandler(logging.NullHandler())
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LEVEL_OF: dict[str, int] = {kind.name: _LEVELS[kind.level] for kind in FACTS}
_OURS = frozenset({"at", "level", "fact", "cut"})
_INTEGERS = range(-(2**63), 2**63)


def fact(name: FactName, /, **fields: Field) -> None:
    """Tell a fact to whoever listens to the logger `steadyrun`."""
    _LOG.log(_LEVEL_OF.get(name, logging.ERROR), name, extra={"fields": fields})


def bug(error: BaseException, /, **fields: Field) -> None:
    """Tell of an error that nobody expected: its type and place, not its words."""
    fact("bug", error=type(error).__name__, where=_where(error), **fields)


@contextmanager
def to_stderr(scrubber: Scrubber, *, for_people: bool = False) -> Iterator[None]:
    """Write facts to stderr while the block runs: as JSON, or `for_people` as words."""
    handler = _Stderr()
    handler.setFormatter((PlainFormatter if for_people else FactFormatter)(scrubber))
    before = _LOG.level, _LOG.propagate
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.level, _LOG.propagate = before


class _Stderr(logging.Handler):
    """Says nothing where nobody can hear it: a full disk or a closed pipe ends no daemon."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class FactFormatter(logging.Formatter):
    """A record as a line of JSON; of one that is no fact, only where it comes from."""

    def __init__(self, scrubber: Scrubber) -> None:
        super().__init__()
        self._scrubber = scrubber

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode(self.facts_of(record)).decode()

    def facts_of(self, record: logging.LogRecord) -> dict[str, Any]:
        name, fields = _told(record)
        said = {key: self._scrubber.clean(_fitting(value)) for key, value in fields.items()}
        cut = [key for key, value in fields.items() if key in _OURS or said[key] != value]
        return {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "fact": name,
            **{key: value for key, value in said.items() if key not in _OURS},
            **({"cut": cut} if cut else {}),
        }


class PlainFormatter(FactFormatter):
    """The same on one line for whoever watches."""

    def format(self, record: logging.LogRecord) -> str:
        facts = self.facts_of(record)
        at, level, name = facts.pop("at"), facts.pop("level"), facts.pop("fact")
        mark = "" if level == "info" else f" {level}:"
        words = " ".join(f"{key}={value}" for key, value in facts.items())
        return f"{at[11:19]}{mark} {name} {words}".rstrip()


def _told(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    fields = getattr(record, "fields", None)
    if record.msg in _LEVEL_OF and isinstance(fields, dict):
        return record.msg, fields
    return "bug", {"error": "no_fact", "where": f"{record.module}:{record.lineno}"}


def _fitting(value: object) -> Field:
    """The value if it is one that may be told, what may be told of it if it is not."""
    match value:
        case bool() | float() | None:
            return value
        case int():
            return value if value in _INTEGERS else None
        case str() if value.isprintable() and " " not in value:
            return value[:LONGEST_FIELD]
        case _:
            # More than one word is text.
            return None


def _where(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
