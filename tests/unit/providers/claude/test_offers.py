"""Tests the fate of follow-ups in Claude Code, decided by evidence."""

import json

from steadyrun.dialect import DialectOutput, Offer, ProcessExit, Refused, Send, TurnBegan, TurnEnded
from steadyrun.model import event as ev
from steadyrun.providers.claude.launch import to_uuid
from tests.support.claude_lines import (
    T1,
    Line,
    Talk,
    aborted,
    echo,
    init,
    ready,
    reply,
    result,
    state,
    system,
    text,
    tool,
    tool_result,
    working,
)
from tests.support.dialect_talker import fates


def offering(*offers: str) -> Talk:
    """One with a turn open and these offers made to it; each says its own name."""
    talk = working()
    talk.receive(echo(T1, "hello"))
    for each in offers:
        talk.send(talk.dialect.steer(Offer(each, each)))
    return talk


def echo_of(offer: str, *others: str) -> Line:
    """The echo of an offer, with those before it that were taken together with it."""
    return echo(to_uuid(f"t1/{offer}"), *others, offer)


def own_turn(offer: str) -> list[DialectOutput]:
    return [ev.FollowupOwnTurn(offer, offer), TurnBegan(offer)]


def test_sent_offer_is_reported() -> None:
    talk = working()

    said = talk.send(talk.dialect.steer(Offer("o1", "and this")))

    assert said == [ev.FollowupOffered("o1", "and this")]


def test_same_offer_has_another_uuid_in_another_process() -> None:
    one, other = ready(), ready()
    one.turn("t1")
    other.turn("t2")

    sends = [talk.dialect.steer(Offer("o1", "x")) for talk in (one, other, one)]

    uuids = [json.loads(send.raw)["uuid"] for send in sends if isinstance(send, Send)]
    assert uuids[0] == uuids[2] != uuids[1]


def test_offer_without_a_turn_is_refused() -> None:
    assert ready().dialect.steer(Offer("o1", "x")) == Refused("no turn is running")


def test_echo_during_the_turn_proves_that_an_offer_was_absorbed() -> None:
    talk = offering("o1", "o2")

    said = talk.receive(tool(), tool_result(), echo_of("o1"), echo_of("o2"))

    assert fates(said) == [ev.FollowupAbsorbed("o1", "o1"), ev.FollowupAbsorbed("o2", "o2")]


def test_echo_of_the_prompt_does_not_settle_an_offer() -> None:
    assert offering("o1").receive(echo(T1, "hello")) == []


def test_echo_with_an_unknown_uuid_causes_no_event() -> None:
    assert offering("o1").receive(echo(to_uuid("other"), "o1")) == []


def test_queued_offer_becomes_the_next_turn() -> None:
    talk = offering("o1")

    said = talk.receive(result(), init(), echo_of("o1"), text("x"), result("x"))

    assert fates(said) == own_turn("o1")
    assert sum(isinstance(each, TurnEnded) for each in said) == 2


def test_first_queued_offer_gets_the_turn_and_the_others_are_absorbed() -> None:
    talk = offering("o1", "o2", "o3")
    talk.receive(result())

    early = talk.receive(echo_of("o1"), echo_of("o2"))
    late = talk.receive(init(), echo_of("o3", "o1", "o2"), text("x"))

    assert fates(early) == [*own_turn("o1"), ev.FollowupAbsorbed("o2", "o2")]
    assert fates(late) == [ev.FollowupAbsorbed("o3", "o3")]


def test_joint_echo_settles_every_queued_offer() -> None:
    talk = offering("o1", "o2", "o3")

    said = talk.receive(result(), init(), echo_of("o3", "o1", "o2"))

    absorbed = [ev.FollowupAbsorbed("o2", "o2"), ev.FollowupAbsorbed("o3", "o3")]
    assert fates(said) == [*own_turn("o1"), *absorbed]


def test_later_offer_with_the_same_text_stays_open() -> None:
    talk = working()
    for each in ("o1", "o2", "o3", "o4"):
        talk.send(talk.dialect.steer(Offer(each, "go on")))

    said = talk.receive(result(), init(), echo(to_uuid("t1/o3"), "go on", "go on", "go on"))

    settled = [each.item for each in said if isinstance(each, ev.FollowupAbsorbed)]
    assert settled == ["o2", "o3"]
    assert talk.dialect.recall("o4")


def test_offer_with_a_leading_slash_is_reported_unchanged() -> None:
    talk = working()

    [offered] = talk.send(talk.dialect.steer(Offer("o1", "/etc is full")))

    assert offered == ev.FollowupOffered("o1", "/etc is full")


def test_queued_offers_may_become_two_turns() -> None:
    talk = offering("o1", "o2")
    talk.receive(result(), state("idle"), state("running"))

    first = talk.receive(init(), echo_of("o1"), aborted())
    second = talk.receive(init(), echo_of("o2"), result())

    assert fates(first) == own_turn("o1")
    assert fates(second) == own_turn("o2")


def test_queued_offer_survives_an_interrupt() -> None:
    talk = offering("o1")
    talk.send(talk.dialect.interrupt())

    said = talk.receive(aborted(), init())

    assert fates(said) == own_turn("o1")


def test_queued_offer_is_not_interrupted_a_second_time() -> None:
    talk = ready()
    talk.turn()
    talk.send(talk.dialect.steer(Offer("o1", "o1")), talk.dialect.interrupt())

    assert not [each for each in talk.receive(init()) if isinstance(each, Send)]


def test_dialect_is_not_ready_while_an_offer_is_queued() -> None:
    talk = offering("o1")

    talk.receive(result(), state("idle"))

    assert not talk.dialect.is_ready


def test_unprompted_turn_absorbs_a_queued_offer() -> None:
    talk = offering("o1")
    notice = system("task_notification", task_id="b1", tool_use_id="long ago")

    said = talk.receive(result(), notice, init(), echo_of("o1"))

    assert fates(said) == [TurnBegan(None), ev.FollowupAbsorbed("o1", "o1")]


def test_recalled_offer_is_returned() -> None:
    talk = offering("o1")
    talk.send(talk.dialect.recall("o1"))

    said = talk.receive(reply("recall:o1", {"cancelled": True}))

    assert said == [ev.FollowupReturned("o1", "o1", "it was withdrawn")]
    assert talk.dialect.recall("o1") is None


def test_recalled_offer_that_left_the_queue_is_absorbed_by_the_open_turn() -> None:
    talk = offering("o1")
    talk.send(talk.dialect.recall("o1"))

    early = talk.receive(reply("recall:o1", {"cancelled": False}))
    late = talk.receive(result())

    assert early == []
    assert fates(late) == [ev.FollowupAbsorbed("o1", "o1")]


def test_recalled_offer_that_left_the_queue_was_absorbed_if_idle() -> None:
    talk = offering("o1")
    talk.receive(result(), state("idle"))
    talk.send(talk.dialect.recall("o1"))

    said = talk.receive(reply("recall:o1", {"cancelled": False}))

    assert said == [ev.FollowupAbsorbed("o1", "o1")]


def test_recalled_offer_that_left_the_queue_between_turns_is_the_next_turn() -> None:
    talk = offering("o1")
    talk.receive(result())
    talk.send(talk.dialect.recall("o1"))

    said = talk.receive(reply("recall:o1", {"cancelled": False}), init())

    assert fates(said) == own_turn("o1")


def test_unreadable_answer_to_a_recall_changes_nothing() -> None:
    talk = offering("o1")
    talk.send(talk.dialect.recall("o1"))

    assert talk.receive(reply("recall:o1", ["cancelled"])) == []


def test_refused_recall_leaves_the_offer_open() -> None:
    talk = offering("o1")
    talk.send(talk.dialect.recall("o1"))

    said = talk.receive(reply("recall:o1", error="no"))

    assert said == [ev.Note("cancel_async_message was refused: no")]
    assert talk.dialect.recall("o1")


def test_idle_state_does_not_settle_an_offer() -> None:
    assert fates(offering("o1").receive(result(), state("idle"))) == []


def test_exit_returns_offers_that_were_not_absorbed() -> None:
    talk = offering("o1", "o2")
    talk.receive(tool(), tool_result(), echo_of("o1"))

    assert talk.dialect.on_exit(ProcessExit(None, 9)) == [
        ev.FollowupReturned("o2", "o2", "the process ended")
    ]


# -- recordings: no keys, often no uuids, sometimes no echoes


def written(words: str, **fields: object) -> Line:
    return {"type": "user", "message": {"role": "user", "content": words}, **fields}


def recorded(*lines: Line) -> Talk:
    """The first line is a prompt; the others were printed."""
    talk = Talk()
    talk.write(written("hello"))
    talk.receive(init(), *lines)
    return talk


def test_recorded_line_without_a_key_is_a_turn_or_an_offer() -> None:
    talk = Talk()

    assert talk.write(written("a")) == [TurnBegan("line1")]
    assert talk.write(written("b")) == [ev.FollowupOffered("line2", "b")]
    assert talk.write(written("c", uuid="u3")) == [ev.FollowupOffered("u3", "c")]


def test_recorded_offer_without_a_uuid_is_matched_by_its_text() -> None:
    talk = recorded(tool())
    talk.write(written("and this"))

    said = talk.receive(tool_result(), echo("own", "and this"))

    assert fates(said) == [ev.FollowupAbsorbed("line2", "and this")]


def test_without_echoes_a_tool_result_and_an_answer_prove_an_absorbed_offer() -> None:
    talk = recorded(tool())
    talk.write(written("and this"))

    said = talk.receive(tool_result(is_error=True), text("x"), result())

    assert fates(said) == [ev.FollowupAbsorbed("line2", "and this")]


def test_without_echoes_a_tool_result_alone_proves_nothing() -> None:
    talk = recorded(tool())
    talk.write(written("and this"))

    said = talk.receive(tool_result(), aborted(), init())

    assert fates(said) == [ev.FollowupOwnTurn("line2", "and this"), TurnBegan("line2")]


def test_offer_with_priority_later_is_not_absorbed_after_a_tool() -> None:
    talk = recorded(tool())
    talk.write(written("and this", priority="later"))

    said = talk.receive(tool_result(), text("x"), result(), init())

    assert fates(said) == [ev.FollowupOwnTurn("line2", "and this"), TurnBegan("line2")]


def test_without_echoes_all_queued_offers_become_one_turn() -> None:
    talk = recorded()
    talk.write(written("a"))
    talk.write(written("b"))

    said = talk.receive(text("x"), result(), init(), text("y"), result())

    own = [ev.FollowupOwnTurn("line2", "a"), TurnBegan("line2")]
    assert fates(said) == [*own, ev.FollowupAbsorbed("line3", "b")]


def test_recorded_message_without_a_query_is_a_turn() -> None:
    talk = Talk()
    talk.write(written("remember this", shouldQuery=False))

    assert isinstance(talk.receive(init(), result("", num_turns=0))[-1], TurnEnded)


def test_doubtful_result_ends_the_turn_when_another_message_is_written() -> None:
    talk = recorded(result("", num_turns=0))

    before, began = talk.write(written("go on"))

    assert isinstance(before, TurnEnded)
    assert began == TurnBegan("line2")


def test_malformed_written_lines_are_ignored() -> None:
    talk = Talk()

    for line in (
        b"this is not json",
        b"\xff",
        b"[" * 100_000,
        b'{"type":"user"}',
        b'{"type":"user","message":{"role":"user","content":[{"type":"text"},3]}}',
        b'{"type":"control_request","request_id":3}',
        b'{"type":"control_response","response":{}}',
        b'{"type":"keep_alive"}',
    ):
        talk.write(line)

    assert talk.receive(init(), result())
