"""Tests the fate of follow-ups in Codex, decided by evidence."""

from typing import Any

import pytest

from steadyrun.dialect import DialectOutput, Offer, ProcessExit, Refused, Send, TurnBegan, TurnEnded
from steadyrun.drivers.turn_tracker import TurnTracker
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from tests.support.codex_lines import (
    Talk,
    begun,
    command,
    command_done,
    completed,
    delta,
    done,
    error,
    failed,
    interrupted,
    news,
    ready,
    refusal,
    reply,
    started,
    text,
    tokens,
    usage,
    user,
    working,
)
from tests.support.dialect_talker import NOW, fates, the_end, told

UNTAKEN = "the turn ended before it was taken"


def offering(*offers: str) -> Talk:
    """One with a turn open and these offers made to it; each says its own name."""
    talk = working()
    for each in offers:
        talk.tell(talk.dialect.steer(Offer(each, each)))
    return talk


def accepted(*offers: str) -> Talk:
    """The same, and Codex has accepted each of them."""
    talk = offering(*offers)
    talk.hear(*(reply(f"offer:{each}", turnId="turn1") for each in offers))
    return talk


MODEL = begun("agentMessage", "m9", text="")


def taken(*offers: str) -> list[DialectOutput]:
    return [ev.FollowupAbsorbed(each, each) for each in offers]


def back(offer: str, why: str = UNTAKEN) -> list[DialectOutput]:
    return [ev.FollowupReturned(offer, offer, why)]


def test_an_offer_is_for_the_turn_that_is_open() -> None:
    talk = working()
    send = talk.dialect.steer(Offer("o1", "and this"))

    assert told(send) == {
        "id": "offer:o1",
        "method": "turn/steer",
        "params": {
            "threadId": "th1",
            "expectedTurnId": "turn1",
            "input": [{"type": "text", "text": "and this"}],
            "clientUserMessageId": "o1",
        },
    }
    assert talk.tell(send) == [ev.FollowupOffered("o1", "and this")]


def test_nothing_is_offered_without_a_turn() -> None:
    talk = working()
    talk.hear(completed())

    assert talk.dialect.steer(Offer("o1", "x")) == Refused("no turn is running")


def test_an_offer_waits_until_the_turn_has_an_id() -> None:
    talk = ready()
    began = talk.turn()
    before = talk.dialect.steer(Offer("o1", "x"))

    talk.hear(reply("begin:t1", turn={"id": "turn1"}))

    assert before is None
    assert isinstance(talk.dialect.steer(Offer("o1", "x")), Send)
    # Nothing shows that it works before it can be told more.
    assert began == [TurnBegan("t1")]


def test_nothing_is_offered_to_a_compaction() -> None:
    talk = ready()
    talk.write({"id": 9, "method": "thread/compact/start", "params": {"threadId": "th1"}})
    talk.hear({"id": 9, "result": {}}, started("own"))

    assert isinstance(talk.dialect.steer(Offer("o1", "x")), Refused)


def test_to_be_accepted_proves_nothing() -> None:
    assert offering("o1").hear(reply("offer:o1", turnId="turn1")) == []


def test_a_message_that_is_shown_and_answered_is_absorbed() -> None:
    talk = accepted("o1")

    shown = talk.hear(command(), command_done(), user("o1", "o1"))
    answered = talk.hear(MODEL, text("ok"), completed("ok"))

    assert fates(shown) == []
    assert fates(answered) == taken("o1")
    assert talk.dialect.is_ready


@pytest.mark.parametrize(
    "sign",
    [MODEL, begun("reasoning", "r1"), command(), usage(tokens(5, 5)), error(),
     begun("webSearch", "w1")],
)  # fmt: skip
def test_whatever_the_model_does_next_is_its_answer(sign: Any) -> None:
    talk = accepted("o1")

    assert fates(talk.hear(user("o1", "o1"), sign)) == taken("o1")


@pytest.mark.parametrize("kind", ["newItem", "hookPrompt"])
def test_what_the_model_may_not_have_done_is_no_answer(kind: str) -> None:
    """It is asked again, then: it never goes without an answer, and has one fate."""
    talk = accepted("o1")

    said = talk.hear(user("o1", "o1"), begun(kind), completed())
    began = talk.tell(*(each for each in said if isinstance(each, Send)))

    assert fates(said) == []
    assert fates(began) == [ev.FollowupOwnTurn("o1", "o1"), TurnBegan("o1")]


@pytest.mark.parametrize(
    "sign",
    [done("agentMessage", "m0", text="so far"), command_done("c0"), delta("x"), usage(tokens()),
     news("thread/status/changed", status={"type": "idle"}), news("warning", message="x")],
)  # fmt: skip
def test_what_was_there_before_is_no_answer(sign: Any) -> None:
    talk = accepted("o1")

    assert fates(talk.hear(user("o1", "o1"), sign)) == []


def test_it_may_be_shown_before_it_is_accepted() -> None:
    talk = offering("o1")

    said = talk.hear(user("o1", "o1"), MODEL, reply("offer:o1", turnId="turn1"), completed())

    assert fates(said) == taken("o1")
    assert talk.dialect.is_ready


def test_it_is_known_by_its_name_and_not_by_its_text() -> None:
    talk = accepted("o1")

    assert talk.hear(user(None, "o1"), user("t1", "o1"), user("other", "o1"), MODEL) == []


def test_of_many_each_is_known_whatever_their_order() -> None:
    talk = accepted("o1", "o2", "o3")

    said = talk.hear(user("o3"), MODEL, user("o1"), MODEL, interrupted())

    assert fates(said) == [*taken("o3", "o1"), *back("o2")]


def test_shown_twice_it_is_absorbed_once() -> None:
    talk = accepted("o1")
    content = [{"type": "text", "text": "o1"}]

    said = talk.hear(user("o1"), done("userMessage", "u-o1", clientId="o1", content=content))
    said += talk.hear(MODEL, user("o1"), MODEL, completed())

    assert fates(said) == taken("o1")


# -- taken at the very end


def unanswered(*offers: str) -> tuple[Talk, list[DialectOutput]]:
    """One that has taken these as the last thing of a turn, and what it has said then."""
    talk = accepted(*offers)
    return talk, talk.hear(text("x"), *(user(each, each) for each in offers), completed("x"))


def test_what_was_taken_too_late_for_an_answer_gets_one() -> None:
    talk, said = unanswered("o1")
    [send] = [each for each in said if isinstance(each, Send)]
    is_ready = talk.dialect.is_ready

    began = talk.tell(send)
    end = the_end(talk.hear(reply("again:o1", turn={"id": "turn2"}), started("turn2"),
                            text("y", turn="turn2"), completed("y", turn="turn2")))  # fmt: skip

    assert (fates(said), is_ready) == ([], False)
    assert told(send)["params"] == {"threadId": "th1", "input": []}
    assert began == [ev.FollowupOwnTurn("o1", "o1"), TurnBegan("o1")]
    assert (end.status, end.text) == ("completed", "y")
    assert talk.dialect.is_ready


def test_of_many_the_first_has_the_turn_and_the_others_are_absorbed_by_it() -> None:
    talk, said = unanswered("o1", "o2")

    began = talk.tell(*(each for each in said if isinstance(each, Send)))
    more = talk.hear(reply("again:o1", turn={"id": "turn2"}), started("turn2"),
                     begun("agentMessage", "m3", "turn2"), completed(turn="turn2"))  # fmt: skip

    assert fates(began) == [ev.FollowupOwnTurn("o1", "o1"), TurnBegan("o1")]
    assert fates(more) == taken("o2")
    assert talk.dialect.is_ready


def test_an_answer_that_is_turned_down_is_a_turn_that_failed() -> None:
    talk, said = unanswered("o1", "o2")
    talk.tell(*(each for each in said if isinstance(each, Send)))

    more = talk.hear(refusal("again:o1", "no"))

    assert the_end(more).status == "failed"
    assert fates(more) == taken("o2")
    assert talk.dialect.is_ready


@pytest.mark.parametrize("end", [interrupted(), failed()])
def test_one_that_is_ended_wants_no_answer(end: Any) -> None:
    talk = accepted("o1")

    said = talk.hear(user("o1", "o1"), end)

    assert fates(said) == taken("o1")
    assert not [each for each in said if isinstance(each, Send)]
    assert talk.dialect.is_ready


def test_what_the_process_had_taken_is_in_the_conversation() -> None:
    talk, _ = unanswered("o1")

    assert fates(talk.dialect.on_exit(ProcessExit(0))) == taken("o1")


def test_another_driver_knows_that_an_answer_is_missing() -> None:
    """The answer was saved with the end of the turn and not sent: the next driver must send it."""
    talk, said = unanswered("o1")
    first, second = TurnTracker(talk.dialect), TurnTracker(Talk().dialect)
    second.restore(first.save())
    [send] = [each for each in said if isinstance(each, Send)]

    told_ = second.on_sent(Frame(send.raw, 1000, send.key, 99), NOW)

    assert [type(getattr(each, "event", each)) for each in told_] == [ev.FollowupOwnTurn, TurnBegan]


# -- turned down


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (-32600, "no active turn to steer", None),
        (-32600, "expected active turn id `x` but found `y`", None),
        (-32600, "missing field `expectedTurnId`", None),
        (-32600, "cannot steer", {"codexErrorInfo": {"activeTurnNotSteerable": {}}}),
        (-32603, "failed", None),
        (7, "", None),
    ],
)
def test_what_is_turned_down_is_returned(code: int, message: str, data: Any) -> None:
    talk = offering("o1")

    said = talk.hear(refusal("offer:o1", message, code, data=data))

    assert fates(said) == back("o1", message)
    assert talk.hear(user("o1", "o1"), MODEL) == []


@pytest.mark.parametrize("end", [completed("x"), interrupted(), failed()])
def test_accepted_and_not_taken_it_comes_back_with_the_end(end: Any) -> None:
    talk = accepted("o1")

    said = talk.hear(end)

    assert fates(said) == back("o1")
    assert isinstance(said[-1], TurnEnded)
    assert talk.dialect.is_ready


def test_the_next_turn_waits_for_an_answer_that_is_due() -> None:
    talk = offering("o1")

    said = talk.hear(completed())
    is_ready = talk.dialect.is_ready
    late = talk.hear(refusal("offer:o1", "no active turn to steer"))

    assert (fates(said), is_ready) == ([], False)
    assert fates(late) == back("o1", "no active turn to steer")
    assert talk.dialect.is_ready


def test_accepted_after_the_end_it_comes_back_at_once() -> None:
    talk = offering("o1")
    talk.hear(completed())

    assert fates(talk.hear(reply("offer:o1", turnId="turn1"))) == back("o1")
    assert talk.dialect.is_ready


@pytest.mark.parametrize("why", ["boom", {"code": -32600}, {"message": "x"}, [], 7])
def test_a_malformed_failure_still_returns_the_offer(why: Any) -> None:
    talk = offering("o1")

    said = talk.hear({"id": "offer:o1", "error": why}, completed())

    assert [type(each) for each in fates(said)] == [ev.FollowupReturned]
    assert talk.dialect.is_ready


@pytest.mark.parametrize("result", [None, {}, {"turnId": 7}, [], "x"])
def test_any_reply_accepts_an_offer(result: Any) -> None:
    talk = offering("o1")

    said = talk.hear({"id": "offer:o1", "result": result}, completed())

    assert fates(said) == back("o1")


def test_what_another_turn_or_conversation_shows_is_no_proof() -> None:
    talk = accepted("o1")
    item = {"type": "userMessage", "clientId": "o1", "content": []}

    said = talk.hear(
        news("item/started", threadId="th2", turnId="turn1", item=item),
        begun("userMessage", "u", "turn0", clientId="o1", content=[]),
    )

    assert fates(said) == []


def test_the_end_of_the_process_gives_everything_back() -> None:
    talk = accepted("o1")
    talk.tell(talk.dialect.steer(Offer("o2", "o2")))

    said = talk.dialect.on_exit(ProcessExit(0))

    assert fates(said) == [*back("o1", "the process ended"), *back("o2", "the process ended")]


def test_each_offer_has_one_fate_whatever_ends_it() -> None:
    turns = TurnTracker(accepted("o1").dialect)

    said = [each.event for each in turns.on_exited(ProcessExit(0), NOW) if hasattr(each, "event")]

    assert [type(each) for each in said].count(ev.FollowupReturned) == 1


# -- recordings have no names


def steer(words: str, **more: Any) -> Any:
    said = {"input": [{"type": "text", "text": words}], **more}
    return {"id": 4, "method": "turn/steer", "params": {"threadId": "th1", **said}}


def test_without_a_name_it_is_known_by_its_text() -> None:
    talk = working()
    [offered] = talk.write(steer("more", expectedTurnId="turn1"))
    assert isinstance(offered, ev.FollowupOffered)

    said = talk.hear({"id": 4, "result": {"turnId": "turn1"}}, user(None, "more"), MODEL)

    assert said == [ev.FollowupAbsorbed(offered.item, "more")]


def test_a_turn_sent_during_a_turn_is_a_follow_up() -> None:
    talk = working()
    words = {"threadId": "th1", "input": [{"type": "text", "text": "more"}]}

    said = talk.write({"id": 5, "method": "turn/start", "params": words})
    said += talk.hear({"id": 5, "result": {"turn": {"id": "turn1"}}}, user(None, "more"), MODEL)

    assert [type(each) for each in said] == [ev.FollowupOffered, ev.FollowupAbsorbed]


def test_what_was_queued_has_a_turn_of_its_own() -> None:
    talk = working()
    words = {"threadId": "th1", "input": [{"type": "text", "text": "more"}]}
    [offered] = talk.write({"id": 5, "method": "thread/queue/add", "params": words})
    assert isinstance(offered, ev.FollowupOffered)

    said = talk.hear({"id": 5, "result": {}}, completed(), started("turn2"))

    assert fates(said) == [ev.FollowupOwnTurn(offered.item, "more"), TurnBegan(offered.item)]


def test_a_queued_message_is_not_confused_with_an_equal_earlier_one() -> None:
    talk = working()
    words = {"threadId": "th1", "input": [{"type": "text", "text": "more"}]}
    [offered] = talk.write({"id": 5, "method": "thread/queue/add", "params": words})
    assert isinstance(offered, ev.FollowupOffered)

    said = talk.hear({"id": 5, "result": {}}, user(None, "more"), MODEL)
    later = talk.hear(completed(), started("turn2"))

    assert fates(said) == []
    assert fates(later) == [ev.FollowupOwnTurn(offered.item, "more"), TurnBegan(offered.item)]
