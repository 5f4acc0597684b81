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
    make_notification,
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
from tests.support.dialect_talker import NOW, fates, get_end, told

UNTAKEN = "the turn ended before it was taken"


def offering(*offers: str) -> Talk:
    """One with a turn open and these offers made to it; each says its own name."""
    talk = working()
    for each in offers:
        talk.send(talk.dialect.steer(Offer(each, each)))
    return talk


def accepted(*offers: str) -> Talk:
    """The same, and Codex has accepted each of them."""
    talk = offering(*offers)
    talk.receive(*(reply(f"offer:{each}", turnId="turn1") for each in offers))
    return talk


MODEL = begun("agentMessage", "m9", text="")


def taken(*offers: str) -> list[DialectOutput]:
    return [ev.FollowupAbsorbed(each, each) for each in offers]


def back(offer: str, why: str = UNTAKEN) -> list[DialectOutput]:
    return [ev.FollowupReturned(offer, offer, why)]


def test_offer_names_the_open_turn() -> None:
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
    assert talk.send(send) == [ev.FollowupOffered("o1", "and this")]


def test_offer_without_a_turn_is_refused() -> None:
    talk = working()
    talk.receive(completed())

    assert talk.dialect.steer(Offer("o1", "x")) == Refused("no turn is running")


def test_offer_waits_until_the_turn_has_an_id() -> None:
    talk = ready()
    began = talk.turn()
    before = talk.dialect.steer(Offer("o1", "x"))

    talk.receive(reply("begin:t1", turn={"id": "turn1"}))

    assert before is None
    assert isinstance(talk.dialect.steer(Offer("o1", "x")), Send)
    # Nothing shows that it works before it can be told more.
    assert began == [TurnBegan("t1")]


def test_offer_during_a_compaction_is_refused() -> None:
    talk = ready()
    talk.write({"id": 9, "method": "thread/compact/start", "params": {"threadId": "th1"}})
    talk.receive({"id": 9, "result": {}}, started("own"))

    assert isinstance(talk.dialect.steer(Offer("o1", "x")), Refused)


def test_accepted_offer_is_not_yet_absorbed() -> None:
    assert offering("o1").receive(reply("offer:o1", turnId="turn1")) == []


def test_shown_and_answered_offer_is_absorbed() -> None:
    talk = accepted("o1")

    shown = talk.receive(command(), command_done(), user("o1", "o1"))
    answered = talk.receive(MODEL, text("ok"), completed("ok"))

    assert fates(shown) == []
    assert fates(answered) == taken("o1")
    assert talk.dialect.is_ready


@pytest.mark.parametrize(
    "sign",
    [MODEL, begun("reasoning", "r1"), command(), usage(tokens(5, 5)), error(),
     begun("webSearch", "w1")],
)  # fmt: skip
def test_next_action_of_the_model_absorbs_a_shown_offer(sign: Any) -> None:
    talk = accepted("o1")

    assert fates(talk.receive(user("o1", "o1"), sign)) == taken("o1")


@pytest.mark.parametrize("kind", ["newItem", "hookPrompt"])
def test_other_items_do_not_absorb_a_shown_offer(kind: str) -> None:
    """It is asked again, then: it never goes without an answer, and has one fate."""
    talk = accepted("o1")

    said = talk.receive(user("o1", "o1"), begun(kind), completed())
    began = talk.send(*(each for each in said if isinstance(each, Send)))

    assert fates(said) == []
    assert fates(began) == [ev.FollowupOwnTurn("o1", "o1"), TurnBegan("o1")]


@pytest.mark.parametrize(
    "sign",
    [done("agentMessage", "m0", text="so far"), command_done("c0"), delta("x"), usage(tokens()),
     make_notification("thread/status/changed", status={"type": "idle"}),
     make_notification("warning", message="x")],
)  # fmt: skip
def test_output_from_before_the_offer_does_not_absorb_it(sign: Any) -> None:
    talk = accepted("o1")

    assert fates(talk.receive(user("o1", "o1"), sign)) == []


def test_offer_may_be_shown_before_it_is_accepted() -> None:
    talk = offering("o1")

    said = talk.receive(user("o1", "o1"), MODEL, reply("offer:o1", turnId="turn1"), completed())

    assert fates(said) == taken("o1")
    assert talk.dialect.is_ready


def test_offer_is_matched_by_its_id_and_not_by_its_text() -> None:
    talk = accepted("o1")

    assert talk.receive(user(None, "o1"), user("t1", "o1"), user("other", "o1"), MODEL) == []


def test_offers_are_settled_in_any_order() -> None:
    talk = accepted("o1", "o2", "o3")

    said = talk.receive(user("o3"), MODEL, user("o1"), MODEL, interrupted())

    assert fates(said) == [*taken("o3", "o1"), *back("o2")]


def test_offer_shown_twice_is_absorbed_once() -> None:
    talk = accepted("o1")
    content = [{"type": "text", "text": "o1"}]

    said = talk.receive(user("o1"), done("userMessage", "u-o1", clientId="o1", content=content))
    said += talk.receive(MODEL, user("o1"), MODEL, completed())

    assert fates(said) == taken("o1")


# -- taken at the very end


def unanswered(*offers: str) -> tuple[Talk, list[DialectOutput]]:
    """One that has taken these as the last thing of a turn, and what it has said then."""
    talk = accepted(*offers)
    return talk, talk.receive(text("x"), *(user(each, each) for each in offers), completed("x"))


def test_unanswered_offer_gets_a_turn() -> None:
    talk, said = unanswered("o1")
    [send] = [each for each in said if isinstance(each, Send)]
    is_ready = talk.dialect.is_ready

    began = talk.send(send)
    end = get_end(talk.receive(reply("again:o1", turn={"id": "turn2"}), started("turn2"),
                            text("y", turn="turn2"), completed("y", turn="turn2")))  # fmt: skip

    assert (fates(said), is_ready) == ([], False)
    assert told(send)["params"] == {"threadId": "th1", "input": []}
    assert began == [ev.FollowupOwnTurn("o1", "o1"), TurnBegan("o1")]
    assert (end.status, end.text) == ("completed", "y")
    assert talk.dialect.is_ready


def test_first_unanswered_offer_gets_the_turn_and_the_others_are_absorbed() -> None:
    talk, said = unanswered("o1", "o2")

    began = talk.send(*(each for each in said if isinstance(each, Send)))
    more = talk.receive(reply("again:o1", turn={"id": "turn2"}), started("turn2"),
                     begun("agentMessage", "m3", "turn2"), completed(turn="turn2"))  # fmt: skip

    assert fates(began) == [ev.FollowupOwnTurn("o1", "o1"), TurnBegan("o1")]
    assert fates(more) == taken("o2")
    assert talk.dialect.is_ready


def test_refused_turn_for_an_unanswered_offer_fails() -> None:
    talk, said = unanswered("o1", "o2")
    talk.send(*(each for each in said if isinstance(each, Send)))

    more = talk.receive(refusal("again:o1", "no"))

    assert get_end(more).status == "failed"
    assert fates(more) == taken("o2")
    assert talk.dialect.is_ready


@pytest.mark.parametrize("end", [interrupted(), failed()])
def test_shown_offer_of_an_interrupted_or_failed_turn_is_absorbed(end: Any) -> None:
    talk = accepted("o1")

    said = talk.receive(user("o1", "o1"), end)

    assert fates(said) == taken("o1")
    assert not [each for each in said if isinstance(each, Send)]
    assert talk.dialect.is_ready


def test_exit_settles_a_shown_offer_as_absorbed() -> None:
    talk, _ = unanswered("o1")

    assert fates(talk.dialect.on_exit(ProcessExit(0))) == taken("o1")


def test_restored_state_requests_the_missing_turn() -> None:
    """The answer was saved with the end of the turn and not sent: the next driver must send it."""
    talk, said = unanswered("o1")
    first, second = TurnTracker(talk.dialect), TurnTracker(Talk().dialect)
    second.restore(first.save())
    [send] = [each for each in said if isinstance(each, Send)]

    told_ = second.on_sent(Frame(send.raw, 1000, send.key, 99), NOW)

    assert [type(getattr(each, "event", each)) for each in told_] == [ev.FollowupOwnTurn, TurnBegan]


# -- refused


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
def test_refused_offer_is_returned(code: int, message: str, data: Any) -> None:
    talk = offering("o1")

    said = talk.receive(refusal("offer:o1", message, code, data=data))

    assert fates(said) == back("o1", message)
    assert talk.receive(user("o1", "o1"), MODEL) == []


@pytest.mark.parametrize("end", [completed("x"), interrupted(), failed()])
def test_accepted_offer_is_returned_at_the_end_of_the_turn(end: Any) -> None:
    talk = accepted("o1")

    said = talk.receive(end)

    assert fates(said) == back("o1")
    assert isinstance(said[-1], TurnEnded)
    assert talk.dialect.is_ready


def test_next_turn_waits_for_the_reply_to_an_offer() -> None:
    talk = offering("o1")

    said = talk.receive(completed())
    is_ready = talk.dialect.is_ready
    late = talk.receive(refusal("offer:o1", "no active turn to steer"))

    assert (fates(said), is_ready) == ([], False)
    assert fates(late) == back("o1", "no active turn to steer")
    assert talk.dialect.is_ready


def test_offer_accepted_after_the_turn_is_returned() -> None:
    talk = offering("o1")
    talk.receive(completed())

    assert fates(talk.receive(reply("offer:o1", turnId="turn1"))) == back("o1")
    assert talk.dialect.is_ready


@pytest.mark.parametrize("why", ["boom", {"code": -32600}, {"message": "x"}, [], 7])
def test_malformed_error_reply_returns_the_offer(why: Any) -> None:
    talk = offering("o1")

    said = talk.receive({"id": "offer:o1", "error": why}, completed())

    assert [type(each) for each in fates(said)] == [ev.FollowupReturned]
    assert talk.dialect.is_ready


@pytest.mark.parametrize("result", [None, {}, {"turnId": 7}, [], "x"])
def test_any_successful_reply_accepts_an_offer(result: Any) -> None:
    talk = offering("o1")

    said = talk.receive({"id": "offer:o1", "result": result}, completed())

    assert fates(said) == back("o1")


def test_message_of_another_turn_or_thread_does_not_settle_an_offer() -> None:
    talk = accepted("o1")
    item = {"type": "userMessage", "clientId": "o1", "content": []}

    said = talk.receive(
        make_notification("item/started", threadId="th2", turnId="turn1", item=item),
        begun("userMessage", "u", "turn0", clientId="o1", content=[]),
    )

    assert fates(said) == []


def test_exit_returns_every_open_offer() -> None:
    talk = accepted("o1")
    talk.send(talk.dialect.steer(Offer("o2", "o2")))

    said = talk.dialect.on_exit(ProcessExit(0))

    assert fates(said) == [*back("o1", "the process ended"), *back("o2", "the process ended")]


def test_offer_is_settled_once_at_the_exit() -> None:
    turns = TurnTracker(accepted("o1").dialect)

    said = [each.event for each in turns.on_exited(ProcessExit(0), NOW) if hasattr(each, "event")]

    assert [type(each) for each in said].count(ev.FollowupReturned) == 1


# -- recordings have no names


def steer(words: str, **more: Any) -> Any:
    said = {"input": [{"type": "text", "text": words}], **more}
    return {"id": 4, "method": "turn/steer", "params": {"threadId": "th1", **said}}


def test_recorded_offer_without_an_id_is_matched_by_its_text() -> None:
    talk = working()
    [offered] = talk.write(steer("more", expectedTurnId="turn1"))
    assert isinstance(offered, ev.FollowupOffered)

    said = talk.receive({"id": 4, "result": {"turnId": "turn1"}}, user(None, "more"), MODEL)

    assert said == [ev.FollowupAbsorbed(offered.item, "more")]


def test_turn_sent_during_a_turn_is_a_follow_up() -> None:
    talk = working()
    words = {"threadId": "th1", "input": [{"type": "text", "text": "more"}]}

    said = talk.write({"id": 5, "method": "turn/start", "params": words})
    said += talk.receive({"id": 5, "result": {"turn": {"id": "turn1"}}}, user(None, "more"), MODEL)

    assert [type(each) for each in said] == [ev.FollowupOffered, ev.FollowupAbsorbed]


def test_queued_message_becomes_an_own_turn() -> None:
    talk = working()
    words = {"threadId": "th1", "input": [{"type": "text", "text": "more"}]}
    [offered] = talk.write({"id": 5, "method": "thread/queue/add", "params": words})
    assert isinstance(offered, ev.FollowupOffered)

    said = talk.receive({"id": 5, "result": {}}, completed(), started("turn2"))

    assert fates(said) == [ev.FollowupOwnTurn(offered.item, "more"), TurnBegan(offered.item)]


def test_queued_message_is_not_confused_with_an_equal_earlier_one() -> None:
    talk = working()
    words = {"threadId": "th1", "input": [{"type": "text", "text": "more"}]}
    [offered] = talk.write({"id": 5, "method": "thread/queue/add", "params": words})
    assert isinstance(offered, ev.FollowupOffered)

    said = talk.receive({"id": 5, "result": {}}, user(None, "more"), MODEL)
    later = talk.receive(completed(), started("turn2"))

    assert fates(said) == []
    assert fates(later) == [ev.FollowupOwnTurn(offered.item, "more"), TurnBegan(offered.item)]
