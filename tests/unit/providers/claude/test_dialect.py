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
    init,
    ready,
    reply,
    result,
    state,
    stream,
    system,
    text,
    the_end,
    told,
    tool,
    tool_result,
    used,
    user,
    working,
)
from tests.support.dialect_talker import NOW, play

ONCE = ClaudeOptions(one_shot=True)


# -- the contract


def test_it_keeps_the_contract() -> None:
    dialect: Dialect = Claude()

    assert dialect.name == "claude"
    assert dialect.program is PROGRAM
    assert dialect.options_type is ClaudeOptions
    assert isinstance(dialect.state, ClaudeState)


def test_a_process_for_one_turn_can_do_less() -> None:
    assert Claude().abilities - Claude(ONCE).abilities == {
        "steer", "recall", "interrupt", "multi_turn", "approvals", "change_input",
    }  # fmt: skip


def test_it_is_started_as_its_options_say() -> None:
    request = LaunchRequest(Turn("t1", "hello"), cwd="/work", directory="/home/processes/prc_1")

    assert "-p" in Claude(ONCE).launch(request).argv
    assert "-p" not in Claude().launch(request).argv


def test_a_turn_may_begin_once_hands_were_shaken() -> None:
    talk = Talk()
    talk.tell(*talk.dialect.open(REQUEST))
    before = talk.dialect.is_ready

    talk.hear(reply("open", {"commands": []}))

    assert (before, talk.dialect.is_ready) == (False, True)


def test_a_handshake_that_is_turned_down_is_one() -> None:
    talk = Talk()
    talk.tell(*talk.dialect.open(REQUEST))

    [note] = talk.hear(reply("open", error="Already initialized"))

    assert note == ev.Note("initialize was turned down: Already initialized")
    assert talk.dialect.is_ready


def test_a_turn_is_sent_with_a_uuid_made_of_its_key() -> None:
    [send] = ready().dialect.begin(Turn("t1", "hello"))

    message = {"role": "user", "content": "hello"}
    assert send.key == "begin:t1"
    assert told(send) == {"type": "user", "uuid": T1, "message": message}


def test_images_go_with_the_prompt() -> None:
    [send] = ready().dialect.begin(Turn("t1", "look", (Image("image/png", b"\x89"),)))

    kinds = [block["type"] for block in told(send)["message"]["content"]]
    assert kinds == ["text", "image"]


def test_a_text_is_never_a_command() -> None:
    [send] = ready().dialect.begin(Turn("t1", "/clear"))

    assert told(send)["message"]["content"] == " /clear"


def test_every_line_has_a_key_that_names_it() -> None:
    talk = working()
    talk.hear(ask())
    talk.tell(talk.dialect.steer(Offer("o1", "and this")))
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


def test_asking_changes_nothing() -> None:
    talk = working()
    talk.hear(ask(), tool())
    talk.tell(talk.dialect.steer(Offer("o1", "and this")))
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


def test_a_turn_begins_when_sent_and_ends_with_its_result() -> None:
    talk = ready()

    began = talk.turn()
    said = talk.hear(state("running"), init(), text("hi"), result("hi"))

    assert began == [TurnBegan("t1")]
    assert said[:-2] == [ev.TokenBound("s1"), ev.StatsUpdated(model="m1"), ev.TextFinal("hi")]
    assert the_end(said) == TurnEnded("completed", "hi", Usage(), Cost(0.0, "known"))


def test_the_next_turn_waits_until_it_is_idle() -> None:
    talk = working()
    talk.hear(result())
    before = talk.dialect.is_ready

    talk.hear(state("idle"))

    assert (before, talk.dialect.is_ready) == (False, True)


def test_one_that_never_speaks_of_its_state_is_ready_after_a_result() -> None:
    talk = ready()
    talk.turn()
    talk.hear(init(), result())

    assert talk.dialect.is_ready


def test_being_idle_ends_no_turn() -> None:
    assert working().hear(state("idle")) == []


def test_a_new_session_id_is_reported() -> None:
    talk = working()

    assert talk.hear(init("s2")) == [ev.TokenRotated("s2")]
    assert talk.hear(init("s2", "m2")) == [ev.StatsUpdated(model="m2")]


def test_an_unprompted_turn_begins_with_init() -> None:
    talk = working()
    talk.hear(result(), state("idle"), system("task_notification", task_id="b1"))

    said = talk.hear(state("running"), init(), text("it is built"), result("it is built"))

    assert said[0] == TurnBegan(None)
    assert the_end(said).text == "it is built"


def test_each_turn_of_its_own_is_interrupted_by_a_name_of_its_own() -> None:
    talk = working()
    keys = set[str]()
    for _ in range(2):
        talk.hear(result(), init())
        send = talk.dialect.interrupt()
        assert send
        keys.add(send.key)

    assert len(keys) == 2


def test_a_result_of_its_own_turn_does_not_end_the_one_that_waits_behind_it() -> None:
    talk = working()
    talk.hear(text("of mine"))

    said = talk.hear(result("of mine", origin={"kind": "task-notification"}))
    end = the_end(talk.hear(init(), result(None)))

    assert said == [ev.Note("a turn of its own ended: success")]
    assert (end.status, end.text) == ("completed", None)


def test_what_its_own_turn_has_cost_is_not_lost() -> None:
    talk = working()
    talk.hear(result(total_cost_usd=0.25, origin={"kind": "task-notification"}))

    assert the_end(talk.hear(init(), text("x"), result(total_cost_usd=0.75))).cost == (
        Cost(0.75, "known")
    )


def test_an_echo_proves_that_a_turn_of_its_own_has_taken_ours() -> None:
    talk = working()
    talk.hear(user({"type": "text", "text": "hello"}, uuid=T1, isReplay=True))

    assert the_end(talk.hear(result(origin={"kind": "task-notification"}))).status == "completed"


def test_a_result_for_nothing_does_not_end_a_turn() -> None:
    talk = working()

    said = talk.hear(result("", num_turns=0))
    end = the_end(talk.hear(init(), text("hi"), result("hi")))

    assert said == [ev.Note("a result came for what it was not asked for")]
    assert end.text == "hi"


def test_a_result_for_nothing_ends_the_turn_if_nothing_is_left_to_do() -> None:
    talk = working()
    talk.hear(result("words", num_turns=0))

    assert the_end(talk.hear(state("idle"))).text == "words"


def test_a_prompt_that_a_hook_has_stopped_has_failed() -> None:
    talk = working()
    talk.hear(system("informational", content="blocked", prevent_continuation=True))

    end = the_end(talk.hear(result("blocked", num_turns=0, terminal_reason=None)))

    assert end.error
    assert (end.status, end.error.code, end.error.message) == ("failed", "hook_stopped", "blocked")


def test_a_prompt_that_is_echoed_and_dropped_has_failed() -> None:
    talk = ready()
    talk.turn()
    line = user({"type": "text", "text": "hello"}, uuid=T1, isReplay=True)

    end = the_end(talk.hear(line, state("idle")))

    assert end.error
    assert (end.status, end.error.code) == ("failed", "already_told")


def test_a_prompt_that_is_echoed_before_it_is_begun_with_is_not_dropped() -> None:
    talk = ready()
    talk.turn()
    line = user({"type": "text", "text": "hello"}, uuid=T1, isReplay=True)

    assert the_end(talk.hear(line, init(), state("idle"), result())).status == "completed"


def test_a_result_that_names_our_prompt_is_its_end() -> None:
    said = working().hear(result("", num_turns=0, user_message_uuids=[T1]))

    assert the_end(said).status == "completed"


def test_a_command_in_a_recording_ends_without_a_model() -> None:
    talk = Talk()
    talk.write({"type": "user", "message": {"role": "user", "content": "/compact"}})

    said = talk.hear(system("status", status="compacting"), init(), result("", num_turns=0))

    assert said[0] == ev.CompactionStarted("manual")
    assert the_end(said).text == ""


def test_a_result_without_a_turn_is_no_turn() -> None:
    assert ready().hear(result("", num_turns=0)) == [
        ev.Note("a result came without a turn: success")
    ]


def test_a_turn_whose_result_does_not_fit_has_failed() -> None:
    talk = working()

    said = talk.hear(text("so far"), {"type": "result", "is_error": "perhaps"})

    assert isinstance(said[-2], ev.Unknown)
    error = the_end(said).error
    assert error
    assert (error.code, the_end(said).text) == ("protocol", "so far")
    assert talk.dialect.state.turn is None


def test_a_turn_is_not_lost_for_a_number_that_does_not_fit() -> None:
    talk = working()

    said = talk.hear(result("hi", modelUsage=[1], total_cost_usd="much", errors=None))

    assert isinstance(said[0], ev.Unknown)
    assert the_end(said) == TurnEnded("completed", "hi", Usage(), Cost())


# -- starting and ending


FATAL: dict[str, Any] = {
    "subtype": "error_during_execution", "is_error": True, "num_turns": 0,
    "errors": ["No conversation found with session ID: x"], "terminal_reason": None,
}  # fmt: skip


def test_a_failed_start_is_reported_at_the_exit() -> None:
    talk = Talk()
    talk.tell(*talk.dialect.open(REQUEST))

    said = talk.hear(result(None, **FATAL))
    end = the_end(talk.dialect.on_exit(ProcessExit(1, stderr="No conversation found")))

    assert said == []
    assert end.error
    assert (end.status, end.error.code, end.exit_code) == ("failed", "resume_not_found", 1)


def test_a_failed_start_is_reported_if_the_turn_was_already_sent() -> None:
    talk = ready()
    talk.hear(result(None, **FATAL))
    talk.turn()

    error = the_end(talk.dialect.on_exit(ProcessExit(1))).error

    assert error
    assert error.code == "resume_not_found"


def test_a_conversation_that_is_not_there_ends_a_turn_that_is_open() -> None:
    talk = ready()
    talk.turn()

    error = the_end(talk.hear(result(None, **FATAL))).error

    assert error
    assert error.code == "resume_not_found"
    assert talk.dialect.on_exit(ProcessExit(1, stderr="No conversation found")) == []


def test_last_words_explain_a_start_that_failed() -> None:
    end = the_end(Talk().dialect.on_exit(ProcessExit(1, stderr="cannot be used with root/sudo")))

    assert end.error
    assert end.error.code == "root_refused"


def test_an_exit_after_the_last_turn_causes_no_event() -> None:
    talk = working()
    talk.hear(result())

    assert talk.dialect.on_exit(ProcessExit(1, stderr="is already in use")) == []
    assert not talk.dialect.is_ready


def test_a_process_for_one_turn_has_it_open_from_the_start() -> None:
    talk = Talk(ONCE)

    said = talk.hear(init(), text("hi"), result("hi"))

    assert talk.dialect.open(REQUEST) == []
    assert TurnBegan not in map(type, said)
    assert the_end(said).text == "hi"
    assert talk.dialect.on_exit(ProcessExit(0)) == []


def test_a_process_for_one_turn_is_neither_steered_nor_interrupted() -> None:
    dialect = Talk(ONCE).dialect

    assert isinstance(dialect.steer(Offer("o1", "x")), Refused)
    assert dialect.recall("o1") is None
    assert dialect.interrupt() is None


def test_a_process_for_one_turn_that_failed_ends_it_once() -> None:
    talk = Talk(ONCE)
    talk.hear(result(None, **FATAL))

    assert talk.dialect.on_exit(ProcessExit(1, stderr="No conversation found")) == []


# -- going on in another process


def conversation() -> list[Frame]:
    """Something of everything."""
    talk = ready()
    dialect = talk.dialect
    talk.tell(*dialect.begin(Turn("t1", "hello", model="m2", mode="plan")))
    talk.hear(reply("model:t1"), reply("mode:t1", error="no"), state("running"), init())
    talk.hear({"type": "rate_limit_event", "rate_limit_info": {"status": "rejected"}})
    talk.hear(stream("message_start", message={"id": "msg1", "usage": {"input_tokens": 4}}))
    talk.hear(delta("h"), text("hi"), stream("message_delta", usage={"output_tokens": 5}))
    talk.hear(tool("c1"), tool("c2", parent="c1"), ask())
    talk.tell(dialect.steer(Offer("o1", "a")), dialect.steer(Offer("o2", "b")))
    talk.tell(dialect.recall("o2"), *dialect.decide(next(iter(dialect.state.asks)), Verdict(True)))
    talk.hear(reply("recall:o2", {"cancelled": False}))
    talk.hear(system("task_started", task_id="b1", tool_use_id="c9"))
    picture = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    talk.hear(tool_result("c2", [{"type": "image", "source": picture}], parent="c1"))
    talk.hear(tool_result("c1", is_error=True), result(total_cost_usd=0.2, modelUsage=used()))
    talk.hear(init("s2"), text("no", error="rate_limit"))
    talk.hear(result("no", is_error=True, api_error_status=429, total_cost_usd=0.3))
    talk.hear(state("idle"), system("task_notification", task_id="b1", tool_use_id="c9"))
    talk.turn("t2")
    talk.tell(dialect.interrupt())
    talk.hear(init("s2"), result("", num_turns=0, origin={"kind": "task-notification"}))
    talk.hear(init("s2"), aborted(), {"type": "news"})
    return talk.log


@given(st.integers(0, len(conversation())))
def test_another_driver_goes_on_from_anywhere(cut: int) -> None:
    frames, last = conversation(), ProcessExit(1, stderr="x")
    first, second, whole = TurnTracker(Claude()), TurnTracker(Claude()), TurnTracker(Claude())

    before = play(first, frames[:cut])
    second.restore(first.save())
    after = [*play(second, frames[cut:]), *second.on_exited(last, NOW)]

    assert [*before, *after] == [*play(whole, frames), *whole.on_exited(last, NOW)]


def test_it_can_be_saved_whatever_numbers_a_tool_is_given() -> None:
    talk = working()
    talk.hear(tool(given={"n": 10**30}), ask(input={"n": 10**30}))

    saved = msgspec.msgpack.encode(talk.dialect.state)

    assert msgspec.msgpack.decode(saved, type=ClaudeState) == talk.dialect.state


def test_the_state_does_not_grow_with_the_output() -> None:
    talk = working()
    sizes = list[int]()
    for number in range(20):
        talk.hear(tool(f"c{number}"), tool_result(f"c{number}"), text("hi"), result())
        sizes.append(len(msgspec.msgpack.encode(talk.dialect.state)))
        talk.turn("t2")

    assert sizes[0] == sizes[-1]
