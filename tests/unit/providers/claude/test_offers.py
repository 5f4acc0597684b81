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
    talk.hear(echo(T1, "hello"))
    for each in offers:
        talk.tell(talk.dialect.steer(Offer(each, each)))
    return talk


def echo_of(offer: str, *others: str) -> Line:
    """The echo of an offer, with those before it that were taken together with it."""
    return echo(to_uuid(f"t1/{offer}"), *others, offer)


def own_turn(offer: str) -> list[DialectOutput]:
    return [ev.FollowupOwnTurn(offer, offer), TurnBegan(offer)]


def test_an_offer_is_reported() -> None:
    talk = working()

    said = talk.tell(talk.dialect.steer(Offer("o1", "and this")))

    assert said == [ev.FollowupOffered("o1", "and this")]


def test_an_offer_to_another_process_has_another_uuid() -> None:
    one, other = ready(), ready()
    one.turn("t1")
    other.turn("t2")

    sends = [talk.dialect.steer(Offer("o1", "x")) for talk in (one, other, one)]

    uuids = [json.loads(send.raw)["uuid"] for send in sends if isinstance(send, Send)]
    assert uuids[0] == uuids[2] != uuids[1]


def test_nothing_is_offered_without_a_turn() -> None:
    assert ready().dialect.steer(Offer("o1", "x")) == Refused("no turn is running")


def test_an_echo_in_the_turn_is_proof_of_being_absorbed() -> None:
    talk = offering("o1", "o2")

    said = talk.hear(tool(), tool_result(), echo_of("o1"), echo_of("o2"))

    assert fates(said) == [ev.FollowupAbsorbed("o1", "o1"), ev.FollowupAbsorbed("o2", "o2")]


def test_the_echo_of_the_prompt_is_no_proof_for_an_offer() -> None:
    assert offering("o1").hear(echo(T1, "hello")) == []


def test_an_unknown_echo_causes_no_event() -> None:
    assert offering("o1").hear(echo(to_uuid("other"), "o1")) == []


def test_one_offer_that_is_queued_becomes_the_next_turn_with_its_init() -> None:
    talk = offering("o1")

    said = talk.hear(result(), init(), echo_of("o1"), text("x"), result("x"))

    assert fates(said) == own_turn("o1")
    assert sum(isinstance(each, TurnEnded) for each in said) == 2


def test_of_many_the_first_has_the_turn_and_the_others_are_absorbed_by_it() -> None:
    talk = offering("o1", "o2", "o3")
    talk.hear(result())

    early = talk.hear(echo_of("o1"), echo_of("o2"))
    late = talk.hear(init(), echo_of("o3", "o1", "o2"), text("x"))

    assert fates(early) == [*own_turn("o1"), ev.FollowupAbsorbed("o2", "o2")]
    assert fates(late) == [ev.FollowupAbsorbed("o3", "o3")]


def test_the_echo_of_many_is_proof_for_each_of_them() -> None:
    talk = offering("o1", "o2", "o3")

    said = talk.hear(result(), init(), echo_of("o3", "o1", "o2"))

    absorbed = [ev.FollowupAbsorbed("o2", "o2"), ev.FollowupAbsorbed("o3", "o3")]
    assert fates(said) == [*own_turn("o1"), *absorbed]


def test_the_same_words_offered_later_are_not_taken_with_the_first() -> None:
    talk = working()
    for each in ("o1", "o2", "o3", "o4"):
        talk.tell(talk.dialect.steer(Offer(each, "go on")))

    said = talk.hear(result(), init(), echo(to_uuid("t1/o3"), "go on", "go on", "go on"))

    settled = [each.item for each in said if isinstance(each, ev.FollowupAbsorbed)]
    assert settled == ["o2", "o3"]
    assert talk.dialect.recall("o4")


def test_a_leading_slash_is_reported_without_the_added_space() -> None:
    talk = working()

    [offered] = talk.tell(talk.dialect.steer(Offer("o1", "/etc is full")))

    assert offered == ev.FollowupOffered("o1", "/etc is full")


def test_what_was_queued_may_become_two_turns() -> None:
    talk = offering("o1", "o2")
    talk.hear(result(), state("idle"), state("running"))

    first = talk.hear(init(), echo_of("o1"), aborted())
    second = talk.hear(init(), echo_of("o2"), result())

    assert fates(first) == own_turn("o1")
    assert fates(second) == own_turn("o2")


def test_what_is_queued_outlives_an_interrupt() -> None:
    talk = offering("o1")
    talk.tell(talk.dialect.interrupt())

    said = talk.hear(aborted(), init())

    assert fates(said) == own_turn("o1")


def test_what_is_queued_is_not_hit_by_a_second_interrupt() -> None:
    talk = ready()
    talk.turn()
    talk.tell(talk.dialect.steer(Offer("o1", "o1")), talk.dialect.interrupt())

    assert not [each for each in talk.hear(init()) if isinstance(each, Send)]


def test_no_turn_may_begin_before_what_is_queued() -> None:
    talk = offering("o1")

    talk.hear(result(), state("idle"))

    assert not talk.dialect.is_ready


def test_a_turn_about_something_else_does_not_take_an_offer() -> None:
    talk = offering("o1")
    notice = system("task_notification", task_id="b1", tool_use_id="long ago")

    said = talk.hear(result(), notice, init(), echo_of("o1"))

    assert fates(said) == [TurnBegan(None), ev.FollowupAbsorbed("o1", "o1")]


def test_an_offer_is_taken_back_from_the_queue() -> None:
    talk = offering("o1")
    talk.tell(talk.dialect.recall("o1"))

    said = talk.hear(reply("recall:o1", {"cancelled": True}))

    assert said == [ev.FollowupReturned("o1", "o1", "it was taken back")]
    assert talk.dialect.recall("o1") is None


def test_what_is_in_no_queue_is_absorbed_by_the_turn_that_is_open() -> None:
    talk = offering("o1")
    talk.tell(talk.dialect.recall("o1"))

    early = talk.hear(reply("recall:o1", {"cancelled": False}))
    late = talk.hear(result())

    assert early == []
    assert fates(late) == [ev.FollowupAbsorbed("o1", "o1")]


def test_what_is_in_no_queue_while_it_is_idle_was_absorbed() -> None:
    talk = offering("o1")
    talk.hear(result(), state("idle"))
    talk.tell(talk.dialect.recall("o1"))

    said = talk.hear(reply("recall:o1", {"cancelled": False}))

    assert said == [ev.FollowupAbsorbed("o1", "o1")]


def test_what_is_in_no_queue_between_two_turns_is_the_next() -> None:
    talk = offering("o1")
    talk.hear(result())
    talk.tell(talk.dialect.recall("o1"))

    said = talk.hear(reply("recall:o1", {"cancelled": False}), init())

    assert fates(said) == own_turn("o1")


def test_an_answer_that_cannot_be_read_takes_nothing_back() -> None:
    talk = offering("o1")
    talk.tell(talk.dialect.recall("o1"))

    assert talk.hear(reply("recall:o1", ["cancelled"])) == []


def test_a_recall_that_is_turned_down_changes_nothing() -> None:
    talk = offering("o1")
    talk.tell(talk.dialect.recall("o1"))

    said = talk.hear(reply("recall:o1", error="no"))

    assert said == [ev.Note("cancel_async_message was turned down: no")]
    assert talk.dialect.recall("o1")


def test_being_idle_settles_no_offer() -> None:
    assert fates(offering("o1").hear(result(), state("idle"))) == []


def test_what_was_not_taken_is_lost_with_the_process() -> None:
    talk = offering("o1", "o2")
    talk.hear(tool(), tool_result(), echo_of("o1"))

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
    talk.hear(init(), *lines)
    return talk


def test_a_line_without_a_key_is_a_turn_or_an_offer() -> None:
    talk = Talk()

    assert talk.write(written("a")) == [TurnBegan("line1")]
    assert talk.write(written("b")) == [ev.FollowupOffered("line2", "b")]
    assert talk.write(written("c", uuid="u3")) == [ev.FollowupOffered("u3", "c")]


def test_an_offer_without_a_uuid_is_known_by_its_text() -> None:
    talk = recorded(tool())
    talk.write(written("and this"))

    said = talk.hear(tool_result(), echo("own", "and this"))

    assert fates(said) == [ev.FollowupAbsorbed("line2", "and this")]


def test_without_echoes_a_tool_and_an_answer_after_it_are_the_proof() -> None:
    talk = recorded(tool())
    talk.write(written("and this"))

    said = talk.hear(tool_result(is_error=True), text("x"), result())

    assert fates(said) == [ev.FollowupAbsorbed("line2", "and this")]


def test_without_echoes_a_tool_alone_is_no_proof() -> None:
    talk = recorded(tool())
    talk.write(written("and this"))

    said = talk.hear(tool_result(), aborted(), init())

    assert fates(said) == [ev.FollowupOwnTurn("line2", "and this"), TurnBegan("line2")]


def test_what_was_to_come_later_is_not_taken_by_a_tool() -> None:
    talk = recorded(tool())
    talk.write(written("and this", priority="later"))

    said = talk.hear(tool_result(), text("x"), result(), init())

    assert fates(said) == [ev.FollowupOwnTurn("line2", "and this"), TurnBegan("line2")]


def test_without_echoes_all_that_was_queued_is_one_turn() -> None:
    talk = recorded()
    talk.write(written("a"))
    talk.write(written("b"))

    said = talk.hear(text("x"), result(), init(), text("y"), result())

    own = [ev.FollowupOwnTurn("line2", "a"), TurnBegan("line2")]
    assert fates(said) == [*own, ev.FollowupAbsorbed("line3", "b")]


def test_what_is_just_to_be_remembered_is_a_turn_without_an_answer() -> None:
    talk = Talk()
    talk.write(written("remember this", shouldQuery=False))

    assert isinstance(talk.hear(init(), result("", num_turns=0))[-1], TurnEnded)


def test_a_doubtful_end_counts_if_another_message_follows() -> None:
    talk = recorded(result("", num_turns=0))

    before, began = talk.write(written("go on"))

    assert isinstance(before, TurnEnded)
    assert began == TurnBegan("line2")


def test_lines_that_we_would_never_write_are_borne() -> None:
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

    assert talk.hear(init(), result())
