"""Tests the Dialect of Claude Code with lines, without a process."""

from copy import deepcopy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.dialect import (
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
from steadyrun.drivers.turn_tracker import TurnTracker
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.claude.dialect import Claude
from steadyrun.providers.claude.launch import PROGRAM, ClaudeOptions
from steadyrun.providers.claude.state import ClaudeState
from tests.support.claude_lines import (
    REQUEST,
    T1,
    Talk,
    aborted,
    ask,
    delta,
    get_end,
    init,
    ready,
    reply,
    result,
    state,
    stream,
    system,
    text,
    told,
    tool,
    tool_result,
    used,
    user,
    working,
)
from tests.support.dialect_talker import NOW, play, the_error

ONCE = ClaudeOptions(one_shot=True)


# -- the contract


def test_claude_implements_the_dialect_contract() -> None:
    dialect: Dialect = Claude()

    assert dialect.name == "claude"
    assert dialect.program is PROGRAM
    assert dialect.options_type is ClaudeOptions
    assert isinstance(dialect.state, ClaudeState)


def test_one_shot_process_has_fewer_abilities() -> None:
    assert Claude().abilities - Claude(ONCE).abilities == {
        "steer", "recall", "interrupt", "multi_turn", "approvals", "change_input",
    }  # fmt: skip


def test_one_shot_option_starts_claude_with_the_print_flag() -> None:
    request = LaunchRequest(Turn("t1", "hello"), cwd="/work", directory="/home/processes/prc_1")

    assert "-p" in Claude(ONCE).launch(request).argv
    assert "-p" not in Claude().launch(request).argv


def test_dialect_is_ready_after_the_handshake() -> None:
    talk = Talk()
    talk.send(*talk.dialect.open(REQUEST))
    before = talk.dialect.is_ready

    talk.receive(reply("open", {"commands": []}))

    assert (before, talk.dialect.is_ready) == (False, True)


def test_refused_handshake_is_noted_and_the_dialect_is_ready() -> None:
    talk = Talk()
    talk.send(*talk.dialect.open(REQUEST))

    [note] = talk.receive(reply("open", error="Already initialized"))

    assert note == ev.Note("initialize was refused: Already initialized")
    assert talk.dialect.is_ready


def test_turn_is_sent_with_a_uuid_made_from_its_key() -> None:
    [send] = ready().dialect.begin(Turn("t1", "hello"))

    message = {"role": "user", "content": "hello"}
    assert send.key == "begin:t1"
    assert told(send) == {"type": "user", "uuid": T1, "message": message}


def test_images_are_sent_after_the_text_of_the_prompt() -> None:
    [send] = ready().dialect.begin(Turn("t1", "look", (Image("image/png", b"\x89"),)))

    kinds = [block["type"] for block in told(send)["message"]["content"]]
    assert kinds == ["text", "image"]


def test_text_with_a_leading_slash_is_not_sent_as_a_command() -> None:
    [send] = ready().dialect.begin(Turn("t1", "/clear"))

    assert told(send)["message"]["content"] == " /clear"


def test_every_sent_line_has_a_key() -> None:
    talk = working()
    talk.receive(ask())
    talk.send(talk.dialect.steer(Offer("o1", "and this")))
    dialect = talk.dialect

    sends = [
        *dialect.open(REQUEST),
        *dialect.begin(Turn("t2", "x", mode="plan")),
        *dialect.begin(Turn("t2", "x", model="m2")),
        dialect.steer(Offer("o2", "y")),
        dialect.recall("o1"),
        dialect.interrupt(),
        *dialect.decide("40", Verdict(True)),
    ]

    keys = [send.key for send in sends if isinstance(send, Send)]
    assert keys == [
        "open", "mode:t2", "model:t2", "begin:t2", "offer:o2", "recall:o1", "interrupt:t1",
        "decide:40",
    ]  # fmt: skip


def test_building_requests_does_not_change_the_state() -> None:
    talk = working()
    talk.receive(ask(), tool())
    talk.send(talk.dialect.steer(Offer("o1", "and this")))
    dialect = talk.dialect
    before = deepcopy(dialect.state)

    dialect.open(REQUEST)
    dialect.begin(Turn("t2", "x", model="m2", mode="plan"))
    dialect.steer(Offer("o2", "x"))
    dialect.recall("o1")
    dialect.interrupt()
    dialect.decide("40", Verdict(True))

    assert dialect.state == before


# -- turns


def test_turn_begins_when_sent_and_ends_with_its_result() -> None:
    talk = ready()

    began = talk.turn()
    said = talk.receive(state("running"), init(), text("hi"), result("hi"))

    assert began == [TurnBegan("t1")]
    assert said[:-2] == [ev.TokenBound("s1"), ev.StatsUpdated(model="m1"), ev.TextFinal("hi")]
    assert get_end(said) == TurnEnded("completed", "hi", Usage(), Cost(0.0, "known"))


def test_next_turn_waits_for_the_idle_state() -> None:
    talk = working()
    talk.receive(result())
    before = talk.dialect.is_ready

    talk.receive(state("idle"))

    assert (before, talk.dialect.is_ready) == (False, True)


def test_dialect_is_ready_after_a_result_if_no_state_is_reported() -> None:
    talk = ready()
    talk.turn()
    talk.receive(init(), result())

    assert talk.dialect.is_ready


def test_idle_state_does_not_end_a_turn() -> None:
    assert working().receive(state("idle")) == []


def test_new_session_id_is_reported() -> None:
    talk = working()

    assert talk.receive(init("s2")) == [ev.TokenRotated("s2")]
    assert talk.receive(init("s2", "m2")) == [ev.StatsUpdated(model="m2")]


def test_unprompted_turn_begins_with_an_init_line() -> None:
    talk = working()
    talk.receive(result(), state("idle"), system("task_notification", task_id="b1"))

    said = talk.receive(state("running"), init(), text("it is built"), result("it is built"))

    assert said[0] == TurnBegan(None)
    assert get_end(said).text == "it is built"


def test_interrupts_of_unprompted_turns_have_different_keys() -> None:
    talk = working()
    keys = set[str]()
    for _ in range(2):
        talk.receive(result(), init())
        send = talk.dialect.interrupt()
        assert send
        keys.add(send.key)

    assert len(keys) == 2


def test_result_of_an_unprompted_turn_does_not_end_the_waiting_turn() -> None:
    talk = working()
    talk.receive(text("of mine"))

    said = talk.receive(result("of mine", origin={"kind": "task-notification"}))
    end = get_end(talk.receive(init(), result(None)))

    assert said == [ev.Note("a turn that Claude Code began itself ended: success")]
    assert (end.status, end.text) == ("completed", None)


def test_cost_of_an_unprompted_turn_is_added_to_the_next_turn() -> None:
    talk = working()
    talk.receive(result(total_cost_usd=0.25, origin={"kind": "task-notification"}))

    assert get_end(talk.receive(init(), text("x"), result(total_cost_usd=0.75))).cost == (
        Cost(0.75, "known")
    )


def test_echoed_prompt_is_answered_by_an_unprompted_turn() -> None:
    talk = working()
    talk.receive(user({"type": "text", "text": "hello"}, uuid=T1, isReplay=True))

    assert get_end(talk.receive(result(origin={"kind": "task-notification"}))).status == "completed"


def test_result_without_model_turns_does_not_end_a_turn() -> None:
    talk = working()

    said = talk.receive(result("", num_turns=0))
    end = get_end(talk.receive(init(), text("hi"), result("hi")))

    assert said == [ev.Note("a result came that belongs to no request")]
    assert end.text == "hi"


def test_result_without_model_turns_ends_the_turn_when_idle() -> None:
    talk = working()
    talk.receive(result("words", num_turns=0))

    assert get_end(talk.receive(state("idle"))).text == "words"


def test_prompt_stopped_by_a_hook_fails() -> None:
    talk = working()
    talk.receive(system("informational", content="blocked", prevent_continuation=True))

    end = get_end(talk.receive(result("blocked", num_turns=0, terminal_reason=None)))

    assert end.error
    assert (end.status, end.error.code, end.error.message) == ("failed", "hook_stopped", "blocked")


def test_prompt_echoed_but_not_started_fails_when_idle() -> None:
    talk = ready()
    talk.turn()
    line = user({"type": "text", "text": "hello"}, uuid=T1, isReplay=True)

    end = get_end(talk.receive(line, state("idle")))

    assert end.error
    assert (end.status, end.error.code) == ("failed", "already_told")


def test_prompt_echoed_before_its_start_completes() -> None:
    talk = ready()
    talk.turn()
    line = user({"type": "text", "text": "hello"}, uuid=T1, isReplay=True)

    assert get_end(talk.receive(line, init(), state("idle"), result())).status == "completed"


def test_result_that_names_the_prompt_uuid_ends_the_turn() -> None:
    said = working().receive(result("", num_turns=0, user_message_uuids=[T1]))

    assert get_end(said).status == "completed"


def test_recorded_slash_command_ends_without_a_model_call() -> None:
    talk = Talk()
    talk.write({"type": "user", "message": {"role": "user", "content": "/compact"}})

    said = talk.receive(system("status", status="compacting"), init(), result("", num_turns=0))

    assert said[0] == ev.CompactionStarted("manual")
    assert get_end(said).text == ""


def test_result_without_a_turn_is_noted() -> None:
    assert ready().receive(result("", num_turns=0)) == [
        ev.Note("a result came without a turn: success")
    ]


def test_turn_with_a_malformed_result_fails() -> None:
    talk = working()

    said = talk.receive(text("so far"), {"type": "result", "is_error": "perhaps"})

    assert isinstance(said[-2], ev.Unknown)
    error = get_end(said).error
    assert error
    assert (error.code, get_end(said).text) == ("protocol", "so far")
    assert talk.dialect.state.turn is None


def test_turn_with_malformed_numbers_completes_without_them() -> None:
    talk = working()

    said = talk.receive(result("hi", modelUsage=[1], total_cost_usd="much", errors=None))

    assert isinstance(said[0], ev.Unknown)
    assert get_end(said) == TurnEnded("completed", "hi", Usage(), Cost())


# -- starting and ending


FATAL: dict[str, Any] = {
    "subtype": "error_during_execution", "is_error": True, "num_turns": 0,
    "errors": ["No conversation found with session ID: x"], "terminal_reason": None,
}  # fmt: skip


def test_failed_start_is_reported_at_the_exit() -> None:
    talk = Talk()
    talk.send(*talk.dialect.open(REQUEST))

    said = talk.receive(result(None, **FATAL))
    end = get_end(talk.dialect.on_exit(ProcessExit(1, stderr="No conversation found")))

    assert said == []
    assert end.error
    assert (end.status, end.error.code, end.exit_code) == ("failed", "resume_not_found", 1)


def test_failed_start_is_reported_for_a_turn_that_was_already_sent() -> None:
    talk = ready()
    talk.receive(result(None, **FATAL))
    talk.turn()

    assert the_error(talk.dialect.on_exit(ProcessExit(1))).code == "resume_not_found"


def test_missing_session_ends_an_open_turn() -> None:
    talk = ready()
    talk.turn()

    assert the_error(talk.receive(result(None, **FATAL))).code == "resume_not_found"
    assert talk.dialect.on_exit(ProcessExit(1, stderr="No conversation found")) == []


def test_stderr_explains_a_failed_start() -> None:
    assert (
        the_error(
            Talk().dialect.on_exit(ProcessExit(1, stderr="cannot be used with root/sudo"))
        ).code
        == "root_refused"
    )


def test_exit_after_the_last_turn_causes_no_event() -> None:
    talk = working()
    talk.receive(result())

    assert talk.dialect.on_exit(ProcessExit(1, stderr="is already in use")) == []
    assert not talk.dialect.is_ready


def test_one_shot_process_has_an_open_turn_from_the_start() -> None:
    talk = Talk(ONCE)

    said = talk.receive(init(), text("hi"), result("hi"))

    assert talk.dialect.open(REQUEST) == []
    assert TurnBegan not in map(type, said)
    assert get_end(said).text == "hi"
    assert talk.dialect.on_exit(ProcessExit(0)) == []


def test_one_shot_process_is_neither_steered_nor_interrupted() -> None:
    dialect = Talk(ONCE).dialect

    assert isinstance(dialect.steer(Offer("o1", "x")), Refused)
    assert dialect.recall("o1") is None
    assert dialect.interrupt() is None


def test_failed_one_shot_process_ends_its_turn_once() -> None:
    talk = Talk(ONCE)
    talk.receive(result(None, **FATAL))

    assert talk.dialect.on_exit(ProcessExit(1, stderr="No conversation found")) == []


# -- going on in another process


def conversation() -> list[Frame]:
    """Something of everything."""
    talk = ready()
    dialect = talk.dialect
    talk.send(*dialect.begin(Turn("t1", "hello", model="m2", mode="plan")))
    talk.receive(reply("model:t1"), reply("mode:t1", error="no"), state("running"), init())
    talk.receive({"type": "rate_limit_event", "rate_limit_info": {"status": "rejected"}})
    talk.receive(stream("message_start", message={"id": "msg1", "usage": {"input_tokens": 4}}))
    talk.receive(delta("h"), text("hi"), stream("message_delta", usage={"output_tokens": 5}))
    talk.receive(tool("c1"), tool("c2", parent="c1"), ask())
    talk.send(dialect.steer(Offer("o1", "a")), dialect.steer(Offer("o2", "b")))
    talk.send(dialect.recall("o2"), *dialect.decide(next(iter(dialect.state.asks)), Verdict(True)))
    talk.receive(reply("recall:o2", {"cancelled": False}))
    talk.receive(system("task_started", task_id="b1", tool_use_id="c9"))
    picture = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    talk.receive(tool_result("c2", [{"type": "image", "source": picture}], parent="c1"))
    talk.receive(tool_result("c1", is_error=True), result(total_cost_usd=0.2, modelUsage=used()))
    talk.receive(init("s2"), text("no", error="rate_limit"))
    talk.receive(result("no", is_error=True, api_error_status=429, total_cost_usd=0.3))
    talk.receive(state("idle"), system("task_notification", task_id="b1", tool_use_id="c9"))
    talk.turn("t2")
    talk.send(dialect.interrupt())
    talk.receive(init("s2"), result("", num_turns=0, origin={"kind": "task-notification"}))
    talk.receive(init("s2"), aborted(), {"type": "news"})
    return talk.log


@given(st.integers(0, len(conversation())))
def test_restored_state_continues_at_any_frame(cut: int) -> None:
    frames, last = conversation(), ProcessExit(1, stderr="x")
    first, second, whole = TurnTracker(Claude()), TurnTracker(Claude()), TurnTracker(Claude())

    before = play(first, frames[:cut])
    second.restore(first.save())
    after = [*play(second, frames[cut:]), *second.on_exited(last, NOW)]

    assert [*before, *after] == [*play(whole, frames), *whole.on_exited(last, NOW)]


def test_state_with_large_numbers_in_a_tool_input_can_be_saved() -> None:
    talk = working()
    talk.receive(tool(given={"n": 10**30}), ask(input={"n": 10**30}))

    saved = msgspec.msgpack.encode(talk.dialect.state)

    assert msgspec.msgpack.decode(saved, type=ClaudeState) == talk.dialect.state


def test_state_does_not_grow_with_the_output() -> None:
    talk = working()
    sizes = list[int]()
    for number in range(20):
        talk.receive(tool(f"c{number}"), tool_result(f"c{number}"), text("hi"), result())
        sizes.append(len(msgspec.msgpack.encode(talk.dialect.state)))
        talk.turn("t2")

    assert sizes[0] == sizes[-1]
