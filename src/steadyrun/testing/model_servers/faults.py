"""What can go wrong between a CLI and a model? Words for it that hold for any wire.

A step of a script is an answer of the wire, a `Refusal` or a `Hang`. Inside a streamed answer,
between its pieces, may stand a `Gate` (wait here; one that nobody opens is a stall), a `Cut` (the
connection is lost) or a `Break` (the server reports an error in mid-stream).
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
    """A place where an answer waits until somebody opens it; once open, it stays open.

    A gate with a path opens when a file of that name appears, and tells that an answer waits by a
    file of the same name with `.reached` behind it: so another process can hold it.
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

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def reach(self) -> None:
        """An answer has come this far. Said by the server."""
        if self._path is not None:
            self._path.with_name(f"{self._path.name}.reached").touch()
        self._reached.set()

    def wait(self, seconds: float) -> bool:
        """Is it open, now or within this time? A file is looked for at the end only."""
        return self._opened.wait(0 if self.is_open else seconds) or self.is_open

    def wait_until_reached(self, seconds: float = TIMEOUT_SECONDS) -> None:
        if not self._reached.wait(seconds):
            raise TimeoutError(f"no answer has come to the gate within {seconds} s")


class Cut:
    """The connection is lost here, without a good-bye."""


@dataclass(frozen=True)
class Break:
    """The server reports an error in mid-stream and ends the answer."""

    fault: Fault = "overloaded"
    message: str = ""


Pause = StreamGate | Cut | Break


@dataclass(frozen=True)
class Refusal:
    """An error instead of an answer. The wire knows status, words and shape of each fault.

    `detail` is put into the error's object, beside what the wire has there.
    """

    fault: Fault
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    held: StreamGate | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hang:
    """Nothing comes, not even headers. The connection is cut when the gate opens, if it does."""

    gate: StreamGate = field(default_factory=StreamGate)


def refuse_rate_limit(
    retry_after: float | None = None, headers: Mapping[str, str] | None = None
) -> Refusal:
    """429, with a retry-after header where a time is given."""
    wait = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return Refusal("rate_limit", {**wait, **(headers or {})})


def refuse_usage_limit(
    headers: Mapping[str, str] | None = None, **detail: str | float | None
) -> Refusal:
    """429 because what the plan allows is used up; trying again does not help."""
    return Refusal("usage_limit", headers or {}, detail=detail)


def refuse_no_credit() -> Refusal:
    """The account has no money left."""
    return Refusal("no_credit")


def refuse_overloaded() -> Refusal:
    return Refusal("overloaded")


def refuse_server_error() -> Refusal:
    return Refusal("server")


def refuse_unauthorized() -> Refusal:
    return Refusal("auth")


def refuse_not_found() -> Refusal:
    """There is no such model."""
    return Refusal("not_found")


def refuse_too_long() -> Refusal:
    """The prompt does not fit into the model's window."""
    return Refusal("too_long")
