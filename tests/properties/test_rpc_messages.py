"""Messages come back from their line as they went in; no line does worse than being refused."""

import contextlib
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.lib.framing import LineSplitter
from steadyrun.lib.jsonrpc import (
    RpcError,
    RpcFailure,
    RpcId,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    decode,
    encode_failure,
    encode_notification,
    encode_request,
    encode_result,
)

ids: st.SearchStrategy[RpcId] = st.none() | st.integers() | st.text()
numbers = st.integers(-(2**53), 2**53)
values = st.recursive(
    st.none()
    | st.booleans()
    | numbers
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
params = st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3)
errors = st.builds(RpcError, numbers, st.text(), values)


def only_line(line: bytes, *, with_version: bool = True) -> bytes:
    [frame] = LineSplitter().feed(line)
    assert frame.end == len(line)
    return frame.raw if with_version else frame.raw.replace(b'"jsonrpc":"2.0",', b"", 1)


@given(ids, st.text(), params, st.booleans())
def test_request_is_decoded_unchanged(
    id_: RpcId, method: str, params: Any, with_version: bool
) -> None:
    back = decode(only_line(encode_request(id_, method, params), with_version=with_version))

    assert isinstance(back, RpcRequest)
    assert (back.id, type(back.id), back.method) == (id_, type(id_), method)
    assert back.decode_params(type(params)) == params


@given(st.text(), params, st.booleans())
def test_notification_is_decoded_unchanged(method: str, params: Any, with_version: bool) -> None:
    back = decode(only_line(encode_notification(method, params), with_version=with_version))

    assert isinstance(back, RpcNotification)
    assert (back.method, back.decode_params(type(params))) == (method, params)


@given(ids, values, st.booleans())
def test_result_is_decoded_unchanged(id_: RpcId, value: Any, with_version: bool) -> None:
    back = decode(only_line(encode_result(id_, value), with_version=with_version))

    assert isinstance(back, RpcResponse)
    assert (back.id, type(back.id)) == (id_, type(id_))
    assert msgspec.json.decode(back.result) == value


@given(ids, errors, st.booleans())
def test_failure_is_decoded_unchanged(id_: RpcId, error: RpcError, with_version: bool) -> None:
    assert decode(only_line(encode_failure(id_, error), with_version=with_version)) == RpcFailure(
        id_, error
    )


@given(ids, st.text(), params)
def test_decoded_request_can_be_encoded_again(id_: RpcId, method: str, params: Any) -> None:
    line = encode_request(id_, method, params)
    came = decode(line)

    assert isinstance(came, RpcRequest)
    assert encode_request(came.id, came.method, came.params) == line


members = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | values,
        "id": ids | values,
        "method": st.text() | values,
        "params": values,
        "result": values,
        "error": st.just({"code": 1, "message": "no"}) | values,
    },
)


@given(members)
def test_any_object_is_a_message_or_refused(message: dict[str, Any]) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        back = decode(msgspec.json.encode(message))
        assert getattr(back, "id", None) == message.get("id")


@given(st.binary(), st.data())
def test_damaged_message_raises_only_a_decode_error(damage: bytes, data: st.DataObject) -> None:
    line = bytearray(encode_request(1, "turn/start", {"text": "é\ud7ff", "n": [1, {"x": None}]}))
    start = data.draw(st.integers(0, len(line)))
    line[start : start + len(damage)] = damage

    with contextlib.suppress(msgspec.DecodeError):
        back = decode(bytes(line))
        if isinstance(back, RpcRequest | RpcNotification):
            back.decode_params(dict)
