"""Defines the faults of a model server, independent of its API.

A step of a script is an answer, a `Refusal` or a `Hang`. Between the pieces of a streamed answer
may be a `StreamGate` (the answer waits; a gate that is never opened is a stall), a `Cut` (the
connection is lost) or a `Break` (the server reports an error during the stream).
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Fault = Literal[
    "rate_limit",
    "usage_limit",
    "no_credit",
    "overloaded",
    "server",
    "auth",
    "not_found",
    "too_long",
    "invalid",
]

TIMEOUT_SECONDS = 30.0


class StreamGate:
    """A point where an answer waits until the test opens it. An open gate stays open.

    A gate with a path opens when that file appears, and creates a file with the suffix `.reached`
    when an answer waits there. So another process can control it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._opened = threading.Event()
        self._reached = threading.Event()

    def open(self) -> None:
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set() or (self._path is not None and self._path.exists())

    def reach(self) -> None:
        """Record that an answer waits here. The server calls this."""
        if self._path is not None:
            self._path.with_name(f"{self._path.name}.reached").touch()
        self._reached.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the gate to open, up to this time. The file is checked only at the end."""
        return self._opened.wait(0 if self.is_open else seconds) or self.is_open

    def wait_until_reached(self, seconds: float = TIMEOUT_SECONDS) -> None:
        if not self._reached.wait(seconds):
            raise TimeoutError(f"no answer reached the gate within {seconds} s")


class Cut:
    """The connection is closed here without notice."""


@dataclass(frozen=True)
class Break:
    """The server reports an error during the stream and ends the answer."""

    fault: Fault = "overloaded"
    message: str = ""


Pause = StreamGate | Cut | Break


@dataclass(frozen=True)
class Refusal:
    """An error instead of an answer. The API decides the status, message and format.

    `detail` is merged into the object of the error.
    """

    fault: Fault
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    held: StreamGate | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hang:
    """No byte is sent, not even headers. The connection is cut if the gate opens."""

    gate: StreamGate = field(default_factory=StreamGate)


def refuse_rate_limit(
    retry_after: float | None = None, headers: Mapping[str, str] | None = None
) -> Refusal:
    """Refuse with 429, and with a retry-after header if a time is given."""
    wait = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return Refusal("rate_limit", {**wait, **(headers or {})})


def refuse_usage_limit(
    headers: Mapping[str, str] | None = None, **detail: str | float | None
) -> Refusal:
    """Refuse with 429, because the limit of the plan is reached; a retry does not help."""
    return Refusal("usage_limit", headers or {}, detail=detail)
