"""A line is one of four messages, or none; a message is one line."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from steadyrun.lib.jsonrpc import (
    RpcError,
    RpcFailure,
    RpcMessage,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    decode,
    encode_failure,
    encode_notification,
    encode_request,
    encode_result,
    is_batch,
)


class Turn(Struct, frozen=True):
    thread: str
    effort: str = "low"


class Options(Struct, frozen=True):
    limit: int = 7


MESSAGES: dict[bytes, RpcMessage] = {
    b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}': RpcRequest(1, "m", Raw(b"[1]")),
    b'{"id":0,"method":"m","params":{ "a": 1 }}': RpcRequest(0, "m", Raw(b'{ "a": 1 }')),
    b'{"id":-7,"method":"m"}': RpcRequest(-7, "m"),
    b'{"id":"1","method":"m"}': RpcRequest("1", "m"),
    b'{"id":null,"method":"m"}': RpcRequest(None, "m"),
    b'{"method":"m","params":null}': RpcNotification("m"),
    b' {"method":"m","later":[{}]} \r': RpcNotification("m"),
    b'{"id":1,"result":null}': RpcResponse(1, Raw(b"null")),
    b'{"id":1,"result":{},"error":null}': RpcResponse(1, Raw(b"{}")),
    b'{"id":"","error":{"code":-1,"message":"no"}}': RpcFailure("", RpcError(-1, "no")),
    b'{"id":1,"result":null,"error":{"code":1,"message":"no","data":[2]}}': RpcFailure(
        1, RpcError(1, "no", [2])
    ),
}
NO_MESSAGES = {
    "nothing": b"",
    "text": b"Starting up...",
    "half of one": b'{"id":1,"method":"m"',
    "two": b'{"method":"m"}{"method":"m"}',
    "a string": b'"method"',
    "null": b"null",
    "another object": b'{"type":"result","result":"fine"}',
    "an error without an id": b'{"type":"error","error":{"code":1,"message":"no"}}',
    "an answer without one": b'{"id":1}',
    "an answer with a null error": b'{"id":1,"error":null}',
    "an error of another shape": b'{"id":1,"error":"no"}',
    "true as an id": b'{"id":true,"method":"m"}',
    "a fraction as an id": b'{"id":1.5,"method":"m"}',
    "a list as an id": b'{"id":[1],"method":"m"}',
    "a number as a method": b'{"id":1,"method":1}',
    "another version": b'{"jsonrpc":"1.0","id":1,"method":"m"}',
    "bytes that are no text": b'{"method":"\xff"}',
    "a bracket too many": b'{"id":1,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize(("raw", "message"), MESSAGES.items())
def test_kind_of_a_message_follows_from_its_members(raw: bytes, message: RpcMessage) -> None:
    assert decode(raw) == message


@pytest.mark.parametrize("raw", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_invalid_message_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(raw)


@pytest.mark.parametrize("raw", [b"[]", b' [{"method":"m"}]', b"[1"])
def test_batch_is_refused_with_a_reason(raw: bytes) -> None:
    assert is_batch(raw)
    with pytest.raises(msgspec.DecodeError, match="batches are not supported"):
        decode(raw)


@pytest.mark.parametrize("made", [RpcRequest(1, "m"), RpcNotification("m")])
def test_missing_parameters_are_an_empty_object(made: RpcRequest | RpcNotification) -> None:
    assert made.decode_params(Options) == Options(7)
    assert made.decode_params(dict) == {}


def test_parameters_and_results_are_decoded_to_the_requested_type() -> None:
    asked = decode(b'{"id":1,"method":"turn","params":{"thread":"t","new":1}}')
    told = decode(b'{"method":"turn","params":{"thread":"t"}}')
    answered = decode(b'{"id":1,"result":{"thread":"t","effort":"high"}}')

    assert isinstance(asked, RpcRequest)
    assert isinstance(told, RpcNotification)
    assert isinstance(answered, RpcResponse)
    assert asked.decode_params(Turn) == told.decode_params(Turn) == Turn("t")
    assert answered.decode_result(Turn) == Turn("t", "high")


@pytest.mark.parametrize("params", [b"{}", b'{"thread":1}', b'{"thread":"\xff"}'])
def test_parameters_of_another_type_are_refused(params: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        RpcRequest(1, "turn", Raw(params)).decode_params(Turn)


LINES = {
    b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\n"}}': encode_request(
        1, "m", {"a": "\n"}
    ),
    b'{"jsonrpc":"2.0","id":null,"method":"m"}': encode_request(None, "m"),
    b'{"jsonrpc":"2.0","method":"m","params":[1]}': encode_notification("m", [1]),
    b'{"jsonrpc":"2.0","method":"m"}': encode_notification("m"),
    b'{"jsonrpc":"2.0","id":"a","result":null}': encode_result("a", None),
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}': encode_failure(
        None, RpcError(-1, "no")
    ),
    b'{"jsonrpc":"2.0","id":0,"method":"m","params":{"limit":7}}': encode_request(
        0, "m", Options()
    ),
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":{}}}': encode_failure(
        1, RpcError(1, "", {})
    ),
}


@pytest.mark.parametrize(("expected", "line"), LINES.items())
def test_message_is_encoded_as_one_line(expected: bytes, line: bytes) -> None:
    assert line == expected + b"\n"


def test_raw_value_with_line_breaks_is_sent_in_one_line() -> None:
    printed: Any = Raw(b'{\n  "a": "\\n",\r\n  "b": [1,\n2]\n}')

    assert encode_result(1, printed) == b'{"jsonrpc":"2.0","id":1,"result":{"a":"\\n","b":[1,2]}}\n'
