"""Tests processes with several conversations, and turns with two ids."""

from typing import Any

import pytest

from steadyrun.dialect import DialectOutput, TurnBegan
from steadyrun.model import event as ev
from steadyrun.model.usage import Usage
from tests.support.codex_lines import (
    Talk,
    completed,
    delta,
    make_notification,
    ready,
    refusal,
    reply,
    started,
    text,
    tokens,
    usage,
    working,
)
from tests.support.dialect_talker import Line, get_end

# -- a turn beside another one


def begin(thread: str, method: str = "turn/start", request: str = "x") -> Line:
    words = [{"type": "text", "text": "and you?"}]
    return {"id": request, "method": method, "params": {"threadId": thread, "input": words}}


OF_IT: list[Any] = [
    started("b1", threadId="th2"),
    make_notification(
        "item/started", threadId="th2", turnId="b1", item={"type": "commandExecution", "id": "c"}
    ),
    make_notification(
        "item/completed", threadId="th2", turnId="b1", item={"type": "agentMessage", "text": "x"}
    ),
    usage(tokens(50, 5), turn="b1", threadId="th2"),
    make_notification("error", threadId="th2", turnId="b1", error={"message": "x"}, willRetry=True),
]


def beside(method: str = "turn/start") -> tuple[Talk, list[DialectOutput]]:
    """A driver with the open turn turn1, to which a turn of another conversation was sent."""
    talk = working()
    return talk, talk.write(begin("th2", method))


@pytest.mark.parametrize("method", ["turn/start", "turn/steer", "thread/queue/add"])
def test_message_to_another_thread_is_not_a_follow_up(method: str) -> None:
    talk, said = beside(method)

    assert [type(each) for each in said] == [ev.Note]
    assert talk.receive(reply("x", turn={"id": "b1"})) == []
    assert talk.dialect.state.offers == {}


def test_output_of_a_parallel_turn_is_kept_and_changes_nothing() -> None:
    talk, _ = beside()

    said = talk.receive(reply("x", turn={"id": "b1"}), *OF_IT)
    end = get_end(talk.receive(text("mine"), usage(tokens(9, 9)), completed("mine")))

    assert [type(each) for each in said] == [ev.Unknown] * len(OF_IT)
    assert (end.text, end.usage) == ("mine", Usage(9, 9, 0, 0))


def test_output_of_a_parallel_turn_is_kept_until_it_ends() -> None:
    talk, _ = beside()
    talk.receive(completed("mine"))

    said = talk.receive(OF_IT[2], completed("x", turn="b1", thread="th2"))

    assert [type(each) for each in said] == [ev.Unknown] * 2
    assert talk.receive(started("b2", threadId="th2")) == []
    assert talk.dialect.is_ready


def test_deltas_of_a_parallel_turn_cause_no_event() -> None:
    talk, _ = beside()

    assert talk.receive(delta("x", threadId="th2", turnId="b1")) == []


def test_refused_parallel_turn_is_noted() -> None:
    talk, _ = beside()

    [note] = talk.receive(refusal("x", "thread not found"))

    assert note == ev.Note("turn/start was refused: thread not found")


def test_turn_of_another_thread_begins_after_the_open_turn_ended() -> None:
    """Also if a follow-up of the one before was not answered yet."""
    talk = working()
    talk.write(begin("th1", "turn/steer", "late"))
    talk.receive(completed())

    began = talk.write(begin("th2"))
    said = talk.receive(reply("x", turn={"id": "b1"}), *OF_IT)
    end = get_end(talk.receive(completed("x", turn="b1", thread="th2")))

    assert [type(each) for each in began] == [TurnBegan]
    assert ev.TokenRotated("th2") in said
    assert not [each for each in said if isinstance(each, ev.Unknown)]
    assert (end.text, end.usage) == ("x", Usage(50, 5, 0, 0))


def test_parallel_turn_may_become_the_open_turn() -> None:
    talk, _ = beside()
    talk.receive(*OF_IT, completed())

    talk.write(begin("th2", request="y"))
    said = talk.receive(reply("y", turn={"id": "b1"}), completed("x", turn="b1", thread="th2"))

    assert get_end(said).text == "x"
    assert talk.dialect.state.beside == set()


# -- a turn with two names


def review(root: Any = "root") -> Line:
    """The beginning of a review: its steps and its end have another name."""
    return make_notification(
        "turn/started", turn={"id": "inner", "rootTurnId": root, "status": "inProgress"}
    )


@pytest.mark.parametrize("end", ["root", "inner"])
def test_review_ends_with_its_findings(end: str) -> None:
    talk = ready()
    talk.write({"id": "x", "method": "review/start", "params": {"threadId": "th1"}})
    talk.receive(reply("x", turn={"id": "root"}))

    said = talk.receive(review(), text("All good", turn="root"), completed("All good", turn=end))

    assert [each for each in said if isinstance(each, TurnBegan)] == [TurnBegan(None)]
    assert ev.TextFinal("All good") in said
    assert not [each for each in said if isinstance(each, ev.Note)]
    assert (get_end(said).status, get_end(said).text) == ("completed", "All good")
    assert talk.dialect.is_ready


def test_inner_turn_of_the_open_turn_causes_no_event() -> None:
    talk = working()

    assert talk.receive(review("turn1")) == []
    assert get_end(talk.receive(text("x"), completed("x"))).text == "x"


def test_turn_with_a_late_reply_may_have_two_ids() -> None:
    talk = ready()
    talk.turn()
    talk.receive(review("turn1"), reply("begin:t1", turn={"id": "turn1"}))

    assert get_end(talk.receive(text("x"), completed("x"))).text == "x"


@pytest.mark.parametrize("root", [None, 7, [], "inner"])
def test_turn_without_a_valid_root_has_one_id(root: Any) -> None:
    talk = ready()
    talk.receive(review(root))

    said = talk.receive(completed("no", turn="other"), completed("x", turn="inner"))

    assert isinstance(said[0], ev.Note)
    assert get_end(said).text == "x"
