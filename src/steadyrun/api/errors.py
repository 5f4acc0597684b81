"""How does an error cross from one process to another? As its facts for people and programs."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from steadyrun.errors import RpcRefused, SteadyrunError

# JSON-RPC leaves these numbers to whoever answers.
ERROR_NUMBER = -32000


class FailureDocument(Struct, frozen=True):
    code: str
    message: str
    hint: str
    retryable: bool
    exit: int


def to_document(error: SteadyrunError) -> FailureDocument:
    return FailureDocument(
        error.code, error.message, error.hint, error.retryable, error.exit_code
    )  # fmt: skip


def to_refusal(error: SteadyrunError) -> RpcRefused:
    """For the wire."""
    facts = msgspec.to_builtins(to_document(error))
    return RpcRefused(error.message, number=ERROR_NUMBER, data=facts)


def from_refusal(refused: RpcRefused) -> SteadyrunError:
    """What the other side has raised; what is no such failure stays what it is."""
    try:
        return build_error(msgspec.convert(refused.data, FailureDocument))
    except msgspec.ValidationError:
        return refused


def build_error(failure: FailureDocument) -> SteadyrunError:
    """The error by its code, without the attributes of its kind; a code that only the other side
    knows has a kind of its own."""
    ours = SteadyrunError.__module__
    known = {
        kind.code: kind for kind in _list_error_types(SteadyrunError) if kind.__module__ == ours
    }
    facts: dict[str, Any] = {
        "code": failure.code, "exit_code": failure.exit, "retryable": failure.retryable
    }  # fmt: skip
    kind: type[SteadyrunError] = known.get(failure.code) or type(
        "Foreign", (SteadyrunError,), facts
    )
    error = kind.__new__(kind)
    SteadyrunError.__init__(error, failure.message, hint=failure.hint)
    return error


def _list_error_types(kind: type[SteadyrunError]) -> Iterator[type[SteadyrunError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _list_error_types(child)
