"""Encodes and decodes JSON-RPC messages, one a line; pure, for both directions.

A line may lack the `jsonrpc` member (Codex), and an id may be any integer, any string or null.
`params` and `result` stay encoded until the caller decodes them with a type.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, ValidationError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

# 1 and "1" are different ids, and true is not an id.
RpcId = int | str | None
T = TypeVar("T")

BATCH_REFUSED = "batches are not supported: send one message a line"
_NULL, _NOTHING = Raw(b"null"), Raw(b"{}")


class RpcNotification(Struct, frozen=True, gc=False):
    """A message without an answer."""

    method: str
    params: Raw = _NOTHING

    def decode_params(self, kind: type[T]) -> T:
        """The parameters; left out or null, they are an empty object."""
        return _decode_as(self.params, kind)


class RpcRequest(Struct, frozen=True, gc=False):
    """A message that gets an answer with the same id."""

    id: RpcId
    method: str
    params: Raw = _NOTHING

    def decode_params(self, kind: type[T]) -> T:
        """The parameters; left out or null, they are an empty object."""
        return _decode_as(self.params, kind)


class RpcResponse(Struct, frozen=True, gc=False):
    """The answer to a request."""

    id: RpcId
    result: Raw

    def decode_result(self, kind: type[T]) -> T:
        return _decode_as(self.result, kind)


class RpcError(Struct, frozen=True, omit_defaults=True):
    """The error in an answer."""

    code: int
    message: str
    data: Any = None


class RpcFailure(Struct, frozen=True):
    """The answer to a request that was refused or failed."""

    id: RpcId
    error: RpcError


RpcMessage = RpcRequest | RpcNotification | RpcResponse | RpcFailure


class _Envelope(Struct, frozen=True, gc=False):
    """All members of a message; a missing one is not the same as null."""

    id: RpcId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = _NOTHING
    result: Raw | UnsetType = UNSET
    error: RpcError | None = None
    jsonrpc: str = "2.0"


def decode(raw: bytes) -> RpcMessage:
    """Decode a line; raise `msgspec.DecodeError` if it is not JSON, and its subclass
    `msgspec.ValidationError` if it is JSON and not a message."""
    found = _open(raw)
    if found.jsonrpc != "2.0":
        raise ValidationError(f"expected JSON-RPC 2.0, found {found.jsonrpc!r}")
    if found.method is UNSET:
        return _decode_answer(found)
    params = _NOTHING if found.params == _NULL else found.params
    if found.id is UNSET:
        return RpcNotification(found.method, params)
    return RpcRequest(found.id, found.method, params)


def is_batch(raw: bytes) -> bool:
    return raw.lstrip()[:1] == b"["


def encode_request(id_: RpcId, method: str, params: Any = None) -> bytes:
    return _encode_line({"id": id_, "method": method, **_name_params(params)})


def encode_notification(method: str, params: Any = None) -> bytes:
    return _encode_line({"method": method, **_name_params(params)})


def encode_result(id_: RpcId, value: Any) -> bytes:
    return _encode_line({"id": id_, "result": value})


def encode_failure(id_: RpcId, error: RpcError) -> bytes:
    return _encode_line({"id": id_, "error": error})


def _open(raw: bytes) -> _Envelope:
    try:
        return _decode_as(raw, _Envelope)
    except DecodeError:
        if is_batch(raw):
            raise ValidationError(BATCH_REFUSED) from None
        raise


def _decode_answer(found: _Envelope) -> RpcResponse | RpcFailure:
    if found.id is UNSET:
        raise ValidationError("expected a JSON-RPC message, found neither `method` nor `id`")
    if found.error is not None:
        return RpcFailure(found.id, found.error)
    if found.result is UNSET:
        raise ValidationError("expected a JSON-RPC answer, found neither `result` nor `error`")
    return RpcResponse(found.id, found.result)


def _decode_as(raw: bytes | Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (UnicodeDecodeError, RecursionError) as odd:
        # Bytes that are not UTF-8, or brackets nested thousands deep.
        raise DecodeError(f"JSON is malformed: {odd}") from odd


def _name_params(params: Any) -> dict[str, Any]:
    return {} if params is None else {"params": params}


def _encode_line(message: dict[str, Any]) -> bytes:
    body = msgspec.json.encode({"jsonrpc": "2.0", **message})
    if b"\n" in body:
        # Only between the tokens of a Raw that was printed over several lines.
        body = msgspec.json.format(body, indent=-1)
    return body + b"\n"
