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
    news,
    ready,
    refusal,
    reply,
    started,
    text,
    tokens,
    usage,
    working,
)
from tests.support.dialect_talker import Line, the_end

# -- a turn beside another one


def begin(thread: str, method: str = "turn/start", request: str = "x") -> Line:
    words = [{"type": "text", "text": "and you?"}]
    return {"id": request, "method": method, "params": {"threadId": thread, "input": words}}


OF_IT: list[Any] = [
    started("b1", threadId="th2"),
    news("item/started", threadId="th2", turnId="b1", item={"type": "commandExecution", "id": "c"}),
    news("item/completed", threadId="th2", turnId="b1", item={"type": "agentMessage", "text": "x"}),
    usage(tokens(50, 5), turn="b1", threadId="th2"),
    news("error", threadId="th2", turnId="b1", error={"message": "x"}, willRetry=True),
]


def beside(method: str = "turn/start") -> tuple[Talk, list[DialectOutput]]:
    """One with the turn turn1 open, to which another conversation was told to go on."""
    talk = working()
    return talk, talk.write(begin("th2", method))


@pytest.mark.parametrize("method", ["turn/start", "turn/steer", "thread/queue/add"])
def test_a_message_to_another_conversation_is_not_a_follow_up(method: str) -> None:
    talk, said = beside(method)

    assert [type(each) for each in said] == [ev.Note]
    assert talk.hear(reply("x", turn={"id": "b1"})) == []
    assert talk.dialect.state.offers == {}


def test_output_of_a_parallel_turn_is_kept_and_changes_nothing() -> None:
    talk, _ = beside()

    said = talk.hear(reply("x", turn={"id": "b1"}), *OF_IT)
    end = the_end(talk.hear(text("mine"), usage(tokens(9, 9)), completed("mine")))

    assert [type(each) for each in said] == [ev.Unknown] * len(OF_IT)
    assert (end.text, end.usage) == ("mine", Usage(9, 9, 0, 0))


def test_it_is_kept_until_it_ends_also_after_the_other() -> None:
    talk, _ = beside()
    talk.hear(completed("mine"))

    said = talk.hear(OF_IT[2], completed("x", turn="b1", thread="th2"))

    assert [type(each) for each in said] == [ev.Unknown] * 2
    assert talk.hear(started("b2", threadId="th2")) == []
    assert talk.dialect.is_ready


def test_its_pieces_come_whole() -> None:
    talk, _ = beside()

    assert talk.hear(delta("x", threadId="th2", turnId="b1")) == []


def test_one_that_is_turned_down_is_noted() -> None:
    talk, _ = beside()

    [note] = talk.hear(refusal("x", "thread not found"))

    assert note == ev.Note("turn/start was turned down: thread not found")


def test_a_turn_of_another_conversation_begins_once_the_open_one_is_over() -> None:
    """Also if a follow-up of the one before was not answered yet."""
    talk = working()
    talk.write(begin("th1", "turn/steer", "late"))
    talk.hear(completed())

    began = talk.write(begin("th2"))
    said = talk.hear(reply("x", turn={"id": "b1"}), *OF_IT)
    end = the_end(talk.hear(completed("x", turn="b1", thread="th2")))

    assert [type(each) for each in began] == [TurnBegan]
    assert ev.TokenRotated("th2") in said
    assert not [each for each in said if isinstance(each, ev.Unknown)]
    assert (end.text, end.usage) == ("x", Usage(50, 5, 0, 0))


def test_one_that_goes_on_may_become_the_open_one() -> None:
    talk, _ = beside()
    talk.hear(*OF_IT, completed())

    talk.write(begin("th2", request="y"))
    said = talk.hear(reply("y", turn={"id": "b1"}), completed("x", turn="b1", thread="th2"))

    assert the_end(said).text == "x"
    assert talk.dialect.state.beside == set()


# -- a turn with two names


def review(root: Any = "root") -> Line:
    """The beginning of a review: its steps and its end have another name."""
    return news("turn/started", turn={"id": "inner", "rootTurnId": root, "status": "inProgress"})


@pytest.mark.parametrize("end", ["root", "inner"])
def test_a_review_ends_with_what_it_has_found(end: str) -> None:
    talk = ready()
    talk.write({"id": "x", "method": "review/start", "params": {"threadId": "th1"}})
    talk.hear(reply("x", turn={"id": "root"}))

    said = talk.hear(review(), text("All good", turn="root"), completed("All good", turn=end))

    assert [each for each in said if isinstance(each, TurnBegan)] == [TurnBegan(None)]
    assert ev.TextFinal("All good") in said
    assert not [each for each in said if isinstance(each, ev.Note)]
    assert (the_end(said).status, the_end(said).text) == ("completed", "All good")
    assert talk.dialect.is_ready


def test_a_part_of_the_open_turn_is_no_other_turn() -> None:
    talk = working()

    assert talk.hear(review("turn1")) == []
    assert the_end(talk.hear(text("x"), completed("x"))).text == "x"


def test_a_turn_whose_answer_comes_late_may_have_two_names() -> None:
    talk = ready()
    talk.turn()
    talk.hear(review("turn1"), reply("begin:t1", turn={"id": "turn1"}))

    assert the_end(talk.hear(text("x"), completed("x"))).text == "x"


@pytest.mark.parametrize("root", [None, 7, [], "inner"])
def test_a_turn_without_a_root_has_one_name(root: Any) -> None:
    talk = ready()
    talk.hear(review(root))

    said = talk.hear(completed("no", turn="other"), completed("x", turn="inner"))

    assert isinstance(said[0], ev.Note)
    assert the_end(said).text == "x"
