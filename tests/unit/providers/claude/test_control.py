"""Tests models, modes, interrupts and approvals of Claude Code."""

from typing import Any

import pytest

from steadyrun.dialect import Send, Turn, TurnEnded, Verdict
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost
from tests.support.claude_lines import (
    aborted,
    ask,
    init,
    ready,
    reply,
    result,
    system,
    text,
    the_end,
    told,
    used,
    working,
)

# -- model and mode


def requests(sends: list[Send]) -> list[Any]:
    return [told(send)["request"] for send in sends if "request" in told(send)]


def test_a_new_model_and_mode_are_set_before_the_turn() -> None:
    talk = ready()

    turn = Turn("t2", "x", model="m2", mode="full_auto")

    asking = talk.dialect.begin(turn)
    talk.tell(*asking)
    assert not talk.dialect.is_ready
    talk.hear(reply("mode:t2"))
    telling = talk.dialect.begin(turn)

    assert talk.dialect.is_ready
    assert requests(asking) == [{"subtype": "set_permission_mode", "mode": "bypassPermissions"}]
    assert len(asking) == 1
    assert requests(telling) == [{"subtype": "set_model", "model": "m2"}]
    assert telling[-1].key == "begin:t2"


def test_an_unchanged_model_and_mode_are_not_sent() -> None:
    talk = working()

    assert len(talk.dialect.begin(Turn("t2", "x", model="m1", mode="default"))) == 1
    assert len(talk.dialect.begin(Turn("t2", "x"))) == 1


def test_a_model_is_set_once_by_its_requested_name() -> None:
    talk = working()
    talk.tell(*talk.dialect.begin(Turn("t2", "x", model="opus")))
    talk.hear(reply("model:t2"), init(model="claude-opus-4-8[1m]"), result())

    assert requests(talk.dialect.begin(Turn("t3", "x", model="opus"))) == []
    assert requests(talk.dialect.begin(Turn("t3", "x", model="m1"))) != []


def test_a_turn_whose_mode_was_refused_fails_and_is_never_sent() -> None:
    talk = ready()
    turn = Turn("t2", "x", mode="full_auto")
    talk.tell(*talk.dialect.begin(turn))

    [end] = talk.hear(reply("mode:t2", error="not now"))

    assert isinstance(end, TurnEnded)
    assert end.error is not None
    assert (end.status, end.error.code) == ("failed", "mode_refused")
    assert end.error.message == "set_permission_mode was turned down: not now"
    assert talk.dialect.is_ready
    assert talk.dialect.begin(turn) == []
    # The next turn asks again.
    assert requests(talk.dialect.begin(Turn("t3", "x", mode="full_auto"))) != []


def test_a_foreign_refused_mode_is_noted() -> None:
    talk = working()
    request = {"subtype": "set_permission_mode", "mode": "plan"}
    talk.write({"type": "control_request", "request_id": "theirs", "request": request})

    assert talk.hear(reply("theirs", error="not now")) == [
        ev.Note("set_permission_mode was turned down: not now")
    ]


def test_a_mode_that_it_chose_itself_is_known() -> None:
    talk = working()
    talk.hear(system("status", status=None, permissionMode="plan"))

    assert requests(talk.dialect.begin(Turn("t2", "x", mode="plan"))) == []


@pytest.mark.parametrize("model", ["", "a\nb", "\x1b[2J"])
def test_nonsense_is_no_model(model: str) -> None:
    assert len(working().dialect.begin(Turn("t2", "x", model=model))) == 1


# -- interrupting


def test_an_interrupted_turn_is_cancelled_with_its_text() -> None:
    talk = working()
    talk.tell(talk.dialect.interrupt())

    end = the_end(talk.hear(reply("interrupt:t1"), text("s0 s1 "), aborted()))

    assert (end.status, end.text, end.error) == ("cancelled", "s0 s1 ", None)


def test_what_an_aborted_stream_has_cost_is_not_known() -> None:
    end = the_end(working().hear(aborted(modelUsage=used())))

    assert (end.usage, end.cost) == (None, Cost())


def test_an_interrupt_before_the_turn_began_is_repeated() -> None:
    talk = ready()
    talk.turn()
    talk.tell(talk.dialect.interrupt())

    again = [each for each in talk.hear(init()) if isinstance(each, Send)]
    more = talk.tell(*again) + talk.hear(init())

    assert [send.key for send in again] == ["interrupt:t1:2"]
    assert told(again[0])["request"] == {"subtype": "interrupt"}
    assert more == []


def test_an_interrupt_during_a_turn_is_sent_once() -> None:
    talk = working()
    talk.tell(talk.dialect.interrupt())

    assert talk.hear(init()) == []


def test_an_interrupted_compaction_is_no_success() -> None:
    talk = working()
    talk.tell(talk.dialect.interrupt())

    said = talk.hear(
        system("status", status=None, compact_result="failed", compact_error="aborted"),
        result(None, terminal_reason=None),
    )

    assert said[0] == ev.CompactionFailed("aborted")
    assert the_end(said).status == "cancelled"


def test_there_is_nothing_to_interrupt_without_a_turn() -> None:
    assert ready().dialect.interrupt() is None


# -- approvals


def test_an_approval_is_asked_for_and_given_with_the_input_as_it_was() -> None:
    talk = working()

    [asked] = talk.hear(ask(input={"n": 10**30}))
    [send] = talk.dialect.decide("40", Verdict(True))

    assert asked == ev.ApprovalRequested("40", "c1", "Bash", {"n": 10**30})
    assert told(send)["response"] == {
        "subtype": "success",
        "request_id": "q1",
        "response": {"behavior": "allow", "updatedInput": {"n": 10**30}},
    }
    assert talk.tell(send) == [ev.ApprovalResolved("40", "allow", "user")]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (
            Verdict(True, input={"command": "pwd"}),
            {"behavior": "allow", "updatedInput": {"command": "pwd"}},
        ),
        (Verdict(False, "no"), {"behavior": "deny", "message": "no"}),
        (Verdict(False), {"behavior": "deny", "message": "this was not allowed"}),
        (
            Verdict(False, "stop", ends_turn=True),
            {"behavior": "deny", "message": "stop", "interrupt": True},
        ),
    ],
)
def test_an_approval_may_be_changed_or_denied(verdict: Verdict, expected: Any) -> None:
    talk = working()
    talk.hear(ask())

    [send] = talk.dialect.decide("40", verdict)
    [resolved] = talk.tell(send)

    assert told(send)["response"]["response"] == expected
    assert resolved == ev.ApprovalResolved("40", expected["behavior"], "user")


def test_an_approval_may_be_called_off() -> None:
    talk = working()
    talk.hear(ask())

    said = talk.hear({"type": "control_cancel_request", "request_id": "q1"})

    assert said == [ev.ApprovalResolved("40", "cancelled", "provider")]
    assert talk.dialect.decide("40", Verdict(True)) == []


def test_an_approval_ends_with_its_turn() -> None:
    talk = working()
    talk.hear(ask())

    assert ev.ApprovalResolved("40", "cancelled", "provider") in talk.hear(result())


def test_a_sub_agent_may_still_ask_when_the_turn_is_over() -> None:
    talk = working()
    talk.hear(ask(agent_id="a1"), result())

    assert talk.dialect.decide("40", Verdict(True))


@pytest.mark.parametrize("request_", [{"subtype": "hook_callback"}, {"subtype": 3}, "x"])
def test_what_else_is_asked_is_declined(request_: Any) -> None:
    talk = working()

    line = {"type": "control_request", "request_id": "q1", "request": request_}
    send, unknown = talk.hear(line)

    assert isinstance(unknown, ev.Unknown)
    assert isinstance(send, Send)
    assert told(send)["response"] == {
        "subtype": "error",
        "request_id": "q1",
        "error": "this is not supported",
    }
    assert talk.tell(send) == []
