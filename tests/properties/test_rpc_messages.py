"""Messages come back from their line as they went in; no line does worse than being refused."""

import contextlib
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.lib.framing import Lines
from steadyrun.lib.jsonrpc import (
    Failure,
    Id,
    Notification,
    Request,
    Response,
    RpcError,
    decode,
    failure,
    notification,
    request,
    result,
)

ids: st.SearchStrategy[Id] = st.none() | st.integers() | st.text()
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


def only_line(line: bytes) -> bytes:
    [frame] = Lines().feed(line)
    assert frame.end == len(line)
    return frame.raw


@given(ids, st.text(), params, st.booleans())
def test_a_request_comes_back(id_: Id, method: str, params: Any, with_version: bool) -> None:
    back = decode(only_line(request(id_, method, params, with_version=with_version)))

    assert isinstance(back, Request)
    assert (back.id, type(back.id), back.method) == (id_, type(id_), method)
    assert back.params_as(type(params)) == params


@given(st.text(), params, st.booleans())
def test_a_notification_comes_back(method: str, params: Any, with_version: bool) -> None:
    back = decode(only_line(notification(method, params, with_version=with_version)))

    assert isinstance(back, Notification)
    assert (back.method, back.params_as(type(params))) == (method, params)


@given(ids, values, st.booleans())
def test_a_result_comes_back(id_: Id, value: Any, with_version: bool) -> None:
    back = decode(only_line(result(id_, value, with_version=with_version)))

    assert isinstance(back, Response)
    assert (back.id, type(back.id)) == (id_, type(id_))
    assert msgspec.json.decode(back.result) == value


@given(ids, errors, st.booleans())
def test_a_failure_comes_back(id_: Id, error: RpcError, with_version: bool) -> None:
    assert decode(only_line(failure(id_, error, with_version=with_version))) == Failure(id_, error)


@given(ids, st.text(), params)
def test_what_came_can_be_passed_on(id_: Id, method: str, params: Any) -> None:
    line = request(id_, method, params)
    came = decode(line)

    assert isinstance(came, Request)
    assert request(came.id, came.method, came.params) == line


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
def test_damage_is_refused_or_not_met(damage: bytes, data: st.DataObject) -> None:
    line = bytearray(request(1, "turn/start", {"text": "é\ud7ff", "n": [1, {"x": None}]}))
    start = data.draw(st.integers(0, len(line)))
    line[start : start + len(damage)] = damage

    with contextlib.suppress(msgspec.DecodeError):
        back = decode(bytes(line))
        if isinstance(back, Request | Notification):
            back.params_as(dict)
