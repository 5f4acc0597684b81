"""Tests the Dialect of Codex with lines, without a process."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from msgspec import DecodeError

from steadyrun.dialect import (
    RESUME_NOT_FOUND,
    Dialect,
    Image,
    LaunchRequest,
    Offer,
    ProcessExit,
    Refused,
    Send,
    Turn,
    TurnBegan,
    TurnEnded,
    Verdict,
)
from steadyrun.model import event as ev
from steadyrun.providers.codex.dialect import Codex
from steadyrun.providers.codex.launch import PROGRAM, CodexOptions
from steadyrun.providers.codex.state import CodexState
from tests.support.codex_lines import (
    AGAIN,
    ONCE,
    REQUEST,
    Talk,
    ask,
    begun,
    command,
    completed,
    delta,
    done,
    interrupted,
    make_greeted,
    make_notification,
    opened,
    ready,
    refusal,
    reply,
    resolved,
    started,
    text,
    user,
    working,
)
from tests.support.dialect_talker import get_end, the_error, told

# -- the contract


def test_codex_implements_the_dialect_contract() -> None:
    dialect: Dialect = Codex()

    assert dialect.name == "codex"
    assert dialect.program is PROGRAM
    assert dialect.options_type is CodexOptions
    assert isinstance(dialect.state, CodexState)
    assert not dialect.is_ready
    assert not dialect.has_background


def test_one_shot_process_has_fewer_abilities() -> None:
    assert Codex().abilities - Codex(ONCE).abilities == {
        "steer", "interrupt", "multi_turn", "approvals", "usage",
    }  # fmt: skip
    assert not {"recall", "tools", "max_turns"} & Codex().abilities


def test_every_sent_line_has_a_key_and_a_request_id() -> None:
    talk = working()
    talk.receive(ask())
    talk.receive(command())
    dialect = talk.dialect

    sends = [
        *dialect.open(REQUEST),
        *dialect.begin(Turn("t2", "x", model="m2", mode="plan")),
        dialect.steer(Offer("o2", "y")),
        dialect.interrupt(),
        *dialect.decide(next(iter(dialect.state.asks)), Verdict(True)),
        *talk.receive(interrupted()),
    ]

    lines = [each for each in sends if isinstance(each, Send)]
    keys = [send.key for send in lines]
    place = next(key for key in keys if key.startswith("decide:"))
    assert keys == [
        "open", "initialized", "thread:default", "begin:t2", "offer:o2", "interrupt:t1", place,
        "terminate:c1",
    ]  # fmt: skip
    assert [told(send).get("id") for send in lines] == [
        "open", None, "thread:default", "begin:t2", "offer:o2", "interrupt:t1", 0, "terminate:c1",
    ]  # fmt: skip


def test_sent_messages_have_no_line_breaks() -> None:
    talk = working()
    odd = talk.receive(ask(), {"id": 1, "method": "news/ask"})
    dialect = talk.dialect

    sends = [
        *dialect.open(AGAIN),
        *dialect.begin(Turn("t2", "two\nlines")),
        dialect.steer(Offer("o2", "two\nlines")),
        dialect.interrupt(),
        *dialect.decide(next(iter(dialect.state.asks)), Verdict(False)),
        *odd,
    ]

    assert not [send for send in sends if isinstance(send, Send) and b"\n" in send.raw]


def test_building_requests_does_not_change_the_state() -> None:
    talk = working()
    talk.receive(ask(), command())
    talk.send(talk.dialect.steer(Offer("o1", "and this")))
    dialect = talk.dialect
    before = deepcopy(dialect.state)

    dialect.open(AGAIN)
    dialect.begin(Turn("t2", "x", model="m2", mode="plan"))
    dialect.steer(Offer("o2", "x"))
    assert dialect.recall("o1") is None  # type: ignore[func-returns-value]
    dialect.interrupt()
    dialect.decide(next(iter(dialect.state.asks)), Verdict(True))
    assert not dialect.is_ready

    assert dialect.state == before


# -- the handshake


def test_handshake_is_sent_at_once() -> None:
    hello, initialized, thread = Talk().dialect.open(REQUEST)

    assert told(hello)["method"] == "initialize"
    assert told(hello)["params"]["capabilities"] == {"experimentalApi": True}
    assert told(initialized) == {"method": "initialized"}
    assert told(thread)["method"] == "thread/start"
    assert told(thread)["params"]["cwd"] == "/"
    assert "jsonrpc" not in told(hello)


def test_resumed_thread_has_the_same_parameters() -> None:
    start, resume = Talk().dialect.open(REQUEST)[-1], Talk().dialect.open(AGAIN)[-1]

    assert told(resume)["method"] == "thread/resume"
    more = {"threadId": "th1", "excludeTurns": True}
    assert told(resume)["params"] == {**told(start)["params"], **more}


def test_dialect_is_ready_after_the_thread_is_open() -> None:
    talk = make_greeted(REQUEST, reply("open", userAgent="x"))
    before = talk.dialect.is_ready

    talk.receive(opened())

    assert (before, talk.dialect.is_ready) == (False, True)


@pytest.mark.parametrize("first", [True, False])
def test_thread_token_is_reported_once(first: bool) -> None:
    lines = [opened(), make_notification("thread/started", thread={"id": "th1"})]
    talk = make_greeted(REQUEST, reply("open"))

    said = talk.receive(*(lines if first else reversed(lines)))
    said += talk.turn() + talk.receive(
        reply("begin:t1", turn={"id": "turn1"}), started(), completed()
    )
    said += talk.turn("t2")

    assert said.count(ev.TokenBound("th1")) == 1
    assert ev.StatsUpdated(model="m1") in said


def test_thread_token_is_not_reported_before_the_first_turn() -> None:
    """Codex writes it down with its first turn, and could not go on with it before."""
    talk = make_greeted(REQUEST, reply("open"))

    assert not [each for each in talk.receive(opened()) if isinstance(each, ev.TokenBound)]


def test_mode_that_codex_lacks_is_noted() -> None:
    talk = Talk()
    request = LaunchRequest(Turn("t1", "x"), "/", mode="accept_edits")

    said = talk.send(*talk.dialect.open(request))

    assert [type(each) for each in said] == [ev.Note]


@pytest.mark.parametrize(
    ("request_", "answer", "code"),
    [
        (AGAIN, refusal("thread:default", "no rollout found for thread id th1"), RESUME_NOT_FOUND),
        (AGAIN, refusal("thread:default", "invalid thread id"), RESUME_NOT_FOUND),
        (AGAIN, refusal("thread:default", "internal", -32603), "provider_error"),
        (REQUEST, refusal("thread:default", "Model provider `x` not found"), "provider_error"),
    ],
)
def test_refused_thread_fails_the_turn(request_: LaunchRequest, answer: Any, code: str) -> None:
    talk = make_greeted(request_, reply("open"))
    talk.receive(answer)
    assert talk.dialect.is_ready

    [send] = talk.dialect.begin(Turn("t1", "hello"))
    began = talk.send(send)
    end = get_end(talk.receive(refusal("begin:t1", "thread not found: th1")))

    assert told(send)["params"]["threadId"] == (request_.resume or "")
    assert began == [TurnBegan("t1")]
    assert (end.status, end.error and end.error.code) == ("failed", code)
    assert end.error
    assert end.error.message == answer["error"]["message"]


@pytest.mark.parametrize("result", [None, {}, {"thread": {}}, {"thread": "th1"}, [], 7])
def test_reply_without_a_thread_fails_the_turn(result: Any) -> None:
    talk = Talk()
    talk.send(*talk.dialect.open(REQUEST))
    talk.receive(reply("open"))
    with suppress(DecodeError):
        talk.receive({"id": "thread:default", "result": result})

    assert talk.dialect.is_ready
    talk.turn()
    assert get_end(talk.receive(refusal("begin:t1", "thread not found"))).status == "failed"


def test_refused_handshake_fails_the_turn() -> None:
    talk = make_greeted(REQUEST, refusal("open", "bad client"))
    talk.receive(refusal("thread:default", "Not initialized"))
    talk.turn()

    assert the_error(talk.receive(refusal("begin:t1", "Not initialized"))).code == "provider_error"


# -- turns


def test_turn_is_sent_with_its_key() -> None:
    [send] = ready().dialect.begin(Turn("t1", "hello"))

    params = told(send)["params"]
    assert told(send)["method"] == "turn/start"
    assert (params["threadId"], params["clientUserMessageId"]) == ("th1", "t1")
    assert params["input"] == [{"type": "text", "text": "hello"}]
    assert "outputSchema" not in params
    assert "model" not in params


def test_turn_has_all_requested_parameters() -> None:
    schema = {"type": "object"}
    turn = Turn("t1", "look", (Image("image/png", b"\x89"),), schema, "m2", "plan")

    [send] = ready().dialect.begin(turn)

    params = told(send)["params"]
    assert [part["type"] for part in params["input"]] == ["text", "image"]
    assert params["input"][1]["url"].startswith("data:image/png;base64,")
    assert (params["model"], params["outputSchema"]) == ("m2", schema)
    assert params["approvalPolicy"] == "never"
    assert params["sandboxPolicy"] == {"type": "readOnly"}


def test_turn_begins_when_sent_and_ends_when_completed() -> None:
    talk = ready()

    began = talk.turn()
    said = talk.receive(
        reply("begin:t1", turn={"id": "turn1"}),
        make_notification("thread/status/changed", status={"type": "active"}),
        started(), user("t1"), begun("agentMessage", "m1", text=""), delta("h"), text("hi"),
        make_notification("thread/status/changed", status={"type": "idle"}),
        completed("hi"),
    )  # fmt: skip

    assert began == [TurnBegan("t1")]
    assert said[:2] == [ev.TokenBound("th1"), ev.StatsUpdated(model="m1")]
    assert said[2:-2] == [ev.TextDelta("h"), ev.TextFinal("hi")]
    assert isinstance(said[-2], ev.StatsUpdated)
    assert (get_end(said).status, get_end(said).text) == ("completed", "hi")
    assert talk.dialect.is_ready


@pytest.mark.parametrize("status", ["idle", "systemError", "notLoaded", "active", "news"])
def test_thread_status_does_not_end_a_turn(status: str) -> None:
    talk = working()

    assert talk.receive(make_notification("thread/status/changed", status={"type": status})) == []
    assert not talk.dialect.is_ready


def test_turn_is_identified_by_its_start_if_the_reply_is_late() -> None:
    talk = ready()
    talk.turn()

    talk.receive(started("turn1"), text("hi"), completed("hi"))

    assert talk.dialect.state.turn is None
    assert talk.receive(reply("begin:t1", turn={"id": "turn1"})) == []


def test_refused_turn_fails() -> None:
    talk = ready()
    talk.turn()

    end = get_end(talk.receive(refusal("begin:t1", "Input exceeds the maximum", -32602)))

    assert (end.status, end.error and end.error.code) == ("failed", "provider_error")
    assert talk.dialect.is_ready


@pytest.mark.parametrize(
    "answer",
    [
        {"id": "begin:t1", "error": "boom"},
        {"id": "begin:t1", "error": {"code": -32600}},
        {"id": "begin:t1", "error": {"message": "boom"}},
        {"id": "begin:t1", "error": {"code": "x", "message": 7}},
    ],
)
def test_turn_with_a_malformed_error_reply_fails(answer: Any) -> None:
    talk = ready()
    talk.turn()

    said = talk.receive(answer)

    assert get_end(said).status == "failed"


def test_completion_of_another_turn_is_noted() -> None:
    talk = working()

    said = talk.receive(completed("x", turn="other"))

    assert [type(each) for each in said] == [ev.Note]
    assert not talk.dialect.is_ready


def test_late_output_of_a_turn_is_not_part_of_the_next() -> None:
    talk = working()
    talk.receive(completed("hi"))
    talk.turn("t2")

    said = talk.receive(text("late"), delta("late"), user("t1"), completed("hi"))

    assert not [each for each in said if isinstance(each, ev.TextFinal | ev.TextDelta | TurnEnded)]
    talk.receive(reply("begin:t2", turn={"id": "turn2"}), started("turn2"))
    assert get_end(talk.receive(completed(turn="turn2"))).text is None


def test_unprompted_turn_has_no_input() -> None:
    talk = working()
    talk.receive(completed())

    said = talk.receive(started("turn2"), text("I went on", turn="turn2"), completed(turn="turn2"))

    assert said[:2] == [TurnBegan(None), ev.TextFinal("I went on")]
    assert get_end(said).text == "I went on"


def test_interrupts_of_unprompted_turns_have_different_keys() -> None:
    talk = ready()
    keys = set[str]()
    for number in range(2):
        talk.receive(started(f"own{number}"))
        send = talk.dialect.interrupt()
        assert send
        keys.add(send.key)
        talk.receive(completed(turn=f"own{number}"))

    assert len(keys) == 2


def test_output_of_another_thread_is_ignored() -> None:
    talk = working()
    before = deepcopy(talk.dialect.state)

    said = talk.receive(
        make_notification("turn/started", threadId="th2", turn={"id": "x"}),
        make_notification(
            "item/completed", threadId="th2", turnId="x", item={"type": "agentMessage"}
        ),
        make_notification(
            "item/started", threadId="th2", turnId="x", item={"type": "commandExecution"}
        ),
        make_notification(
            "item/agentMessage/delta", threadId="th2", turnId="x", itemId="m", delta="x"
        ),
        make_notification(
            "error", threadId="th2", turnId="x", error={"message": "x"}, willRetry=False
        ),
        make_notification("warning", threadId="th2", message="of another"),
        make_notification(
            "turn/completed", threadId="th2", turn={"id": "turn1", "status": "failed"}
        ),
    )

    assert said == []
    assert talk.dialect.state == before


# -- what is not known


@pytest.mark.parametrize(
    "line",
    [
        make_notification("news/of/tomorrow", x=1),
        begun("newItem"),
        done("newItem"),
        reply("unknown"),
        refusal("unknown"),
        {"type": "novelty"},
    ],
)
def test_unknown_message_is_kept(line: Any) -> None:
    talk = working()
    [said] = talk.receive(line)

    assert isinstance(said, ev.Unknown)
    assert said.text
    assert not talk.dialect.is_ready


@pytest.mark.parametrize("method", ["warning", "configWarning", "deprecationNotice"])
def test_warning_is_reported_once(method: str) -> None:
    talk = working()
    words = {"summary": "careful"} if method != "warning" else {"message": "careful"}

    said = talk.receive(
        make_notification(method, **words), make_notification(method, **words), completed()
    )
    talk.turn("t2")
    said += talk.receive(
        make_notification(method, **words), make_notification(method, **{**words, "extra": 1})
    )

    assert said.count(ev.Note("careful")) == 1


def test_rerouted_model_is_reported() -> None:
    said = working().receive(
        make_notification("model/rerouted", fromModel="m1", toModel="m2", reason="x")
    )

    assert ev.StatsUpdated(model="m2") in said


def test_failed_mcp_server_is_noted() -> None:
    talk = ready()
    states = [
        make_notification("mcpServer/startupStatus/updated", name="x", status=status, error=why)
        for status, why in (("starting", None), ("ready", None), ("failed", "no such program"))
    ]

    [note] = talk.receive(*states)

    assert note == ev.Note("the MCP server x did not start: no such program")


# -- the end of the process


def test_exit_after_the_last_turn_causes_no_event() -> None:
    talk = working()
    talk.receive(completed())

    assert talk.dialect.on_exit(ProcessExit(1, stderr="no rollout found")) == []
    assert not talk.dialect.is_ready


def test_exit_during_a_turn_causes_no_event_of_the_dialect() -> None:
    talk = working()
    talk.receive(ask())

    assert talk.dialect.on_exit(ProcessExit(0)) == []
    assert talk.receive(resolved()) == []


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_before_the_first_answer_is_an_incompatible_cli(code: int) -> None:
    talk = make_greeted()

    end = get_end(talk.dialect.on_exit(ProcessExit(code, stderr="error: unexpected argument\n")))

    assert end.error
    assert end.error.code == "cli_incompatible"
    assert end.exit_code == code


def test_exit_of_a_stopped_process_is_not_explained() -> None:
    assert (
        make_greeted().dialect.on_exit(ProcessExit(1, reason="wall_timeout", stderr="is archived"))
        == []
    )
    assert make_greeted().dialect.on_exit(ProcessExit(signal=9)) == []


def test_one_shot_process_is_neither_steered_nor_interrupted() -> None:
    dialect = Talk(ONCE).dialect

    assert isinstance(dialect.steer(Offer("o1", "x")), Refused)
    assert dialect.interrupt() is None
    assert dialect.open(REQUEST) == []
