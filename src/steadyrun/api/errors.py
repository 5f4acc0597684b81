"""Converts errors to documents for the socket, and back."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from steadyrun.errors import RpcRefused, SteadyrunError

# JSON-RPC reserves this range of numbers for the server.
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
    """Convert an error to a JSON-RPC error."""
    data = msgspec.to_builtins(to_document(error))
    return RpcRefused(error.message, number=ERROR_NUMBER, data=data)


def from_refusal(refused: RpcRefused) -> SteadyrunError:
    """Convert a JSON-RPC error to the error of the other side. Another error is returned as is."""
    try:
        return build_error(msgspec.convert(refused.data, FailureDocument))
    except msgspec.ValidationError:
        return refused


def build_error(failure: FailureDocument) -> SteadyrunError:
    """Build the error of this code, without the attributes of its class. An unknown code, of a
    newer version, gets a class of its own."""
    module = SteadyrunError.__module__
    by_code = {
        kind.code: kind for kind in _list_error_types(SteadyrunError) if kind.__module__ == module
    }
    attributes: dict[str, Any] = {
        "code": failure.code, "exit_code": failure.exit, "retryable": failure.retryable
    }  # fmt: skip
    kind: type[SteadyrunError] = by_code.get(failure.code) or type(
        "Foreign", (SteadyrunError,), attributes
    )
    error = kind.__new__(kind)
    SteadyrunError.__init__(error, failure.message, hint=failure.hint)
    return error


def _list_error_types(kind: type[SteadyrunError]) -> Iterator[type[SteadyrunError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _list_error_types(child)
