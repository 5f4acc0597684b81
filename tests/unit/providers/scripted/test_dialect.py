"""Tests the Dialect of the scripted CLI with lines, without a process."""

import json
import sys
from copy import copy
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.dialect import (
    Dialect,
    DialectOutput,
    Image,
    LaunchRequest,
    Offer,
    ProcessExit,
    Refused,
    Rung,
    Send,
    Turn,
    TurnBegan,
    TurnEnded,
    Verdict,
)
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.scripted.dialect import Scripted, ScriptedOptions, ScriptedState

REQUEST = LaunchRequest(Turn("t1", "hello"), "/")


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def receive(dialect: Dialect, kind: str, **fields: Any) -> list[DialectOutput]:
    return dialect.receive(Frame(line(kind, **fields), 10))


def tell(dialect: Dialect, *sends: Send | Refused | None) -> list[DialectOutput]:
    """These were sent. A recording has no keys, so none is given."""
    said: list[DialectOutput] = []
    for send in sends:
        assert isinstance(send, Send)
        said += dialect.on_sent(Frame(send.raw, 0))
    return said


def working() -> Scripted:
    """A dialect with an open turn."""
    dialect = Scripted()
    tell(dialect, *dialect.open(REQUEST))
    receive(dialect, "ready", token="tok")
    tell(dialect, *dialect.begin(Turn("t1", "hello")))
    return dialect


REQUEST = LaunchRequest(turn=Turn("t1", "hello"), cwd="/work", directory="/home/processes/prc_1")


def test_scripted_implements_the_dialect_contract() -> None:
    dialect: Dialect = Scripted()

    assert dialect.name == "scripted"
    assert dialect.options_type is ScriptedOptions
    assert isinstance(dialect.state, ScriptedState)


def test_scripted_cli_is_started_with_this_python() -> None:
    launch = Scripted().launch(REQUEST)

    assert launch.argv[:3] == (sys.executable, "-I", "-S")
    assert launch.argv[-2:] == ("/home/scripted", "/home/processes/prc_1/scripted.json")
    assert launch.rungs == (Rung("will", 2.0), Rung("eof", 2.0), Rung("signal", 1.0, 15))


def test_configured_command_replaces_the_program() -> None:
    launch = Scripted().launch(msgspec.structs.replace(REQUEST, command=("mine", "-x")))

    assert launch.argv[:2] == ("mine", "-x")
    assert len(launch.argv) == 4


def test_launch_file_has_every_requested_value() -> None:
    asked: dict[str, Any] = {
        "resume": "tok",
        "model": "m",
        "mode": "plan",
        "tools": ["Read"],
        "deny": ["Bash"],
        "system": "be kind",
        "max_turns": 3,
        "max_cost_usd": 0.5,
    }
    request = msgspec.structs.replace(REQUEST, **{**asked, "tools": ("Read",), "deny": ("Bash",)})

    [content] = Scripted(ScriptedOptions("s.toml")).launch(request).files.values()

    assert json.loads(content) == {**asked, "script": "s.toml"}


def test_unknown_option_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="scrip"):
        msgspec.convert({"scrip": "s.json"}, ScriptedOptions)


def test_every_sent_line_has_a_key() -> None:
    dialect = working()
    receive(dialect, "ask", id="ask-1", call="call-1", name="Bash")
    tell(dialect, dialect.steer(Offer("o1", "and this")))

    sends = [
        *dialect.open(REQUEST),
        *dialect.begin(Turn("t2", "x", (Image("image/png", b"\x89"),), {"type": "object"})),
        dialect.steer(Offer("o2", "x")),
        dialect.recall("o1"),
        dialect.interrupt(),
        *dialect.decide("10", Verdict(False, "no")),
    ]

    said = {send.key: json.loads(send.raw) for send in sends if isinstance(send, Send)}
    image = {"media_type": "image/png", "data": "iQ=="}
    turn = {"key": "t2", "text": "x", "images": [image], "schema": {"type": "object"}}
    assert said == {
        "open": {"type": "hello"},
        "begin:t2": {"type": "turn", **turn},
        "offer:o2": {"type": "steer", "id": "o2", "text": "x"},
        "recall:o1": {"type": "recall", "id": "o1"},
        "interrupt:t1": {"type": "interrupt", "turn": "t1"},
        "decide:10": {
            "type": "decide",
            "ask": "ask-1",
            "allow": False,
            "message": "no",
            "ends_turn": False,
            "always": False,
        },
    }


def test_building_requests_does_not_change_the_state() -> None:
    dialect = working()
    before = copy(dialect.state)

    dialect.open(REQUEST)
    dialect.begin(Turn("t2", "x"))
    dialect.steer(Offer("o1", "x"))
    dialect.recall("o1")
    dialect.interrupt()
    dialect.decide("10", Verdict(True))

    assert dialect.state == before


def test_dialect_is_ready_after_the_ready_frame() -> None:
    dialect = Scripted()
    assert not dialect.is_ready

    bound = receive(dialect, "ready", token="tok")

    assert bound == [ev.TokenBound("tok")]
    assert dialect.is_ready


def test_ready_frame_without_a_token_binds_none() -> None:
    dialect = Scripted()

    assert receive(dialect, "ready", token=None) == []
    assert dialect.is_ready


def test_turn_begins_when_sent_and_ends_with_its_frame() -> None:
    dialect = Scripted()
    receive(dialect, "ready", token="tok")

    began = tell(dialect, *dialect.begin(Turn("t1", "hello")))
    echoed = receive(dialect, "began", turn="t1", by="turn")
    assert not dialect.is_ready
    receive(dialect, "text", text="first")
    receive(dialect, "text", text="last")
    usage = {"input_tokens": 3}
    ended = receive(dialect, "ended", turn="t1", status="completed", usage=usage, cost_usd=0.5)

    assert (began, echoed) == ([TurnBegan("t1")], [])
    assert ended == [TurnEnded("completed", "last", Usage(3), Cost(0.5, "known"))]
    assert dialect.is_ready


def test_stated_result_is_the_text_even_if_empty() -> None:
    dialect = working()
    receive(dialect, "text", text="last")

    [ended] = receive(dialect, "ended", turn="t1", status="completed", result="")

    assert isinstance(ended, TurnEnded)
    assert ended.text == ""


def test_recording_without_sent_frames_has_all_events() -> None:
    dialect = Scripted()

    said = [
        *receive(dialect, "began", turn="t1", by="turn"),
        *receive(dialect, "absorbed", offer="o1", text="and this"),
        *receive(dialect, "ended", turn="t1", status="completed"),
        *receive(dialect, "began", turn="o2", by="offer", text="late"),
        *receive(dialect, "ended", turn="o2", status="cancelled"),
    ]

    assert said == [
        TurnBegan("t1"),
        ev.FollowupAbsorbed("o1", "and this"),
        TurnEnded("completed", cost=Cost()),
        ev.FollowupOwnTurn("o2", "late"),
        TurnBegan("o2"),
        TurnEnded("cancelled", cost=Cost()),
    ]


def test_unprompted_turn_has_no_input() -> None:
    dialect = Scripted()
    receive(dialect, "ready", token="tok")

    assert receive(dialect, "began", turn="self-1", by="self") == [TurnBegan(None)]
    assert not dialect.is_ready
    assert dialect.interrupt() == Send(
        "interrupt:self-1", line("interrupt", turn="self-1").replace(b" ", b"")
    )


def test_unprompted_turn_during_a_turn_is_noted() -> None:
    dialect = working()

    crossed = receive(dialect, "began", turn="self-1", by="self")
    receive(dialect, "text", text="by the way")
    over = receive(dialect, "ended", turn="self-1", status="completed")
    assert not dialect.is_ready
    began = receive(dialect, "began", turn="t1", by="turn")
    ended = receive(dialect, "ended", turn="t1", status="completed")

    assert [type(said) for said in crossed + over] == [ev.Note, ev.Note]
    assert (began, ended) == ([], [TurnEnded("completed", cost=Cost())])


def test_error_of_a_turn_keeps_its_fields() -> None:
    error = {"code": "x", "message": "m", "hint": "h", "retryable": True, "resets_at": 60.0}

    [ended] = receive(working(), "ended", turn="t1", status="rate_limited", error=error)

    at = datetime.fromtimestamp(60, UTC)
    assert isinstance(ended, TurnEnded)
    assert ended.status == "rate_limited"
    assert ended.error == ev.ErrorFact("x", "m", "h", True, at)


def test_offer_is_open_until_it_is_settled() -> None:
    dialect = working()

    offered = tell(dialect, dialect.steer(Offer("o1", "a")), dialect.steer(Offer("o2", "b")))
    receive(dialect, "ended", turn="t1", status="completed")

    assert offered == [ev.FollowupOffered("o1", "a"), ev.FollowupOffered("o2", "b")]
    assert not dialect.is_ready
    assert receive(dialect, "began", turn="o1", by="offer", text="a") == [
        ev.FollowupOwnTurn("o1", "a"),
        TurnBegan("o1"),
    ]
    assert receive(dialect, "returned", offer="o2", text="b", reason="recalled") == [
        ev.FollowupReturned("o2", "b", "recalled")
    ]
    assert (dialect.recall("o1"), dialect.recall("o2")) == (None, None)


def test_exit_returns_an_open_offer() -> None:
    dialect = working()
    tell(dialect, dialect.steer(Offer("o1", "a")))

    said = dialect.on_exit(ProcessExit(code=1))

    assert said == [ev.FollowupReturned("o1", "a", "the process ended")]
    assert not dialect.is_ready


def test_approval_is_named_by_its_position_and_answered_once() -> None:
    dialect = working()

    asked = receive(dialect, "ask", id="ask-7", call="call-1", name="Bash", input={"c": 1})
    answer = dialect.decide("10", Verdict(True))
    resolved = tell(dialect, *answer)

    assert asked == [ev.ApprovalRequested("10", "call-1", "Bash", {"c": 1}, True)]
    assert resolved == [ev.ApprovalResolved("10", "allow", "user")]
    assert dialect.decide("10", Verdict(True)) == []


def test_approval_of_an_ended_turn_cannot_be_answered() -> None:
    dialect = working()
    receive(dialect, "ask", id="ask-7", call="call-1", name="Bash")
    receive(dialect, "ended", turn="t1", status="cancelled")

    assert dialect.decide("10", Verdict(True)) == []


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"novelty","a":1}',
        b'{"type":"text"}',
        b'{"type":"text","text":5}',
        b'{"type":"ended","turn":"t1","status":"bored"}',
        b"[1]",
        b"5",
        b"{}",
        '{"type":"☃"}'.encode(),
    ],
)
def test_unknown_frame_is_kept(raw: bytes) -> None:
    dialect = working()
    before = copy(dialect.state)

    assert dialect.receive(Frame(raw, 10)) == [ev.Unknown(raw.decode())]
    assert dialect.state == before


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b'{"type":"text","text":"a"',
        b'{"type":"text","text":"a"} b',
        b'{"type":"text","text":"\xff"}',
        b'{"type":"novelty","a":"\xff"}',
        b'{"type":"novelty" oops',
        b"\x00\xff",
        b'{"type":"tool_start","id":"1","name":"T","input":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}",
        b'{"type":"novelty","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(10),
)
def test_unreadable_line_raises_a_decode_error(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        working().receive(Frame(raw, 10))


def test_unknown_fields_are_skipped() -> None:
    assert receive(working(), "text", text="a", mood="good") == [ev.TextFinal("a")]


@pytest.mark.parametrize("raw", [b"?", b'{"type":"dance"}', b'{"type":"turn"}', b"\xff"])
def test_unknown_sent_lines_are_ignored(raw: bytes) -> None:
    assert working().on_sent(Frame(raw, 10)) == []


NAMES = st.sampled_from(["t1", "t2", "o1", "o2", "self-1"])
SENT = st.one_of(
    st.builds(line, st.just("hello")),
    st.builds(line, st.just("turn"), key=NAMES, text=st.text()),
    st.builds(line, st.just("steer"), id=NAMES, text=st.text()),
    st.builds(line, st.just("recall"), id=NAMES),
    st.builds(line, st.just("interrupt"), turn=NAMES),
    st.builds(line, st.just("decide"), ask=NAMES, allow=st.booleans()),
)
BY = st.sampled_from(["turn", "offer", "self"])
PRINTED = st.one_of(
    st.builds(line, st.just("ready"), token=NAMES),
    st.builds(line, st.just("began"), turn=NAMES, by=BY, text=st.text()),
    st.builds(line, st.just("ended"), turn=NAMES, status=st.just("completed")),
    st.builds(line, st.just("text"), text=st.text()),
    st.builds(line, st.just("ask"), id=NAMES, call=NAMES, name=NAMES),
    st.builds(line, st.just("absorbed"), offer=NAMES, text=st.text()),
    st.builds(line, st.just("returned"), offer=NAMES, text=st.text()),
    st.builds(line, st.just("tool_start"), id=NAMES, name=NAMES),
    st.binary(),
)
TRAFFIC = st.lists(st.tuples(st.just("sent"), SENT) | st.tuples(st.just("printed"), PRINTED))


def play(dialect: Dialect, frame: tuple[str, bytes], end: int) -> list[DialectOutput]:
    way, raw = frame
    try:
        passed = dialect.on_sent if way == "sent" else dialect.receive
        return passed(Frame(raw, end))
    except msgspec.DecodeError:
        return []


@given(TRAFFIC, st.data())
def test_state_is_rebuilt_from_frames_or_from_a_saved_state(
    traffic: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    saved_at = data.draw(st.integers(0, len(traffic)))
    live, rebuilt, restored = Scripted(), Scripted(), Scripted()

    for end, frame in enumerate(traffic):
        if end == saved_at:
            saved = msgspec.msgpack.encode(live.state)
            restored.state = msgspec.msgpack.decode(saved, type=ScriptedState)
        said = play(live, frame, end)
        assert end < saved_at or play(restored, frame, end) == said
        decided = live.decide(str(end), Verdict(True))
        assert end < saved_at or restored.decide(str(end), Verdict(True)) == decided
    for end, frame in enumerate(traffic):
        play(rebuilt, frame, end)

    assert rebuilt.state == live.state
    assert saved_at == len(traffic) or restored.state == live.state
