"""Tests models, modes, interrupts and approvals of Claude Code."""

from typing import Any

import pytest

from steadyrun.dialect import Send, Turn, TurnEnded, Verdict
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost
from tests.support.claude_lines import (
    aborted,
    ask,
    get_end,
    init,
    ready,
    reply,
    result,
    system,
    text,
    told,
    used,
    working,
)

# -- model and mode


def requests(sends: list[Send]) -> list[Any]:
    return [told(send)["request"] for send in sends if "request" in told(send)]


def test_new_mode_and_model_are_set_before_the_turn() -> None:
    talk = ready()

    turn = Turn("t2", "x", model="m2", mode="full_auto")

    asking = talk.dialect.begin(turn)
    talk.send(*asking)
    assert not talk.dialect.is_ready
    talk.receive(reply("mode:t2"))
    telling = talk.dialect.begin(turn)

    assert talk.dialect.is_ready
    assert requests(asking) == [{"subtype": "set_permission_mode", "mode": "bypassPermissions"}]
    assert len(asking) == 1
    assert requests(telling) == [{"subtype": "set_model", "model": "m2"}]
    assert telling[-1].key == "begin:t2"


def test_unchanged_model_and_mode_are_not_sent() -> None:
    talk = working()

    assert len(talk.dialect.begin(Turn("t2", "x", model="m1", mode="default"))) == 1
    assert len(talk.dialect.begin(Turn("t2", "x"))) == 1


def test_requested_model_alias_is_set_once() -> None:
    talk = working()
    talk.send(*talk.dialect.begin(Turn("t2", "x", model="opus")))
    talk.receive(reply("model:t2"), init(model="claude-opus-4-8[1m]"), result())

    assert requests(talk.dialect.begin(Turn("t3", "x", model="opus"))) == []
    assert requests(talk.dialect.begin(Turn("t3", "x", model="m1"))) != []


def test_turn_fails_if_its_mode_is_refused() -> None:
    talk = ready()
    turn = Turn("t2", "x", mode="full_auto")
    talk.send(*talk.dialect.begin(turn))

    [end] = talk.receive(reply("mode:t2", error="not now"))

    assert isinstance(end, TurnEnded)
    assert end.error is not None
    assert (end.status, end.error.code) == ("failed", "mode_refused")
    assert end.error.message == "set_permission_mode was refused: not now"
    assert talk.dialect.is_ready
    assert talk.dialect.begin(turn) == []
    # The next turn asks again.
    assert requests(talk.dialect.begin(Turn("t3", "x", mode="full_auto"))) != []


def test_refusal_of_a_mode_from_a_recording_is_noted() -> None:
    talk = working()
    request = {"subtype": "set_permission_mode", "mode": "plan"}
    talk.write({"type": "control_request", "request_id": "theirs", "request": request})

    assert talk.receive(reply("theirs", error="not now")) == [
        ev.Note("set_permission_mode was refused: not now")
    ]


def test_mode_that_the_cli_changed_itself_is_not_set_again() -> None:
    talk = working()
    talk.receive(system("status", status=None, permissionMode="plan"))

    assert requests(talk.dialect.begin(Turn("t2", "x", mode="plan"))) == []


@pytest.mark.parametrize("model", ["", "a\nb", "\x1b[2J"])
def test_invalid_model_name_is_not_sent(model: str) -> None:
    assert len(working().dialect.begin(Turn("t2", "x", model=model))) == 1


# -- interrupting


def test_interrupted_turn_is_cancelled_and_keeps_its_text() -> None:
    talk = working()
    talk.send(talk.dialect.interrupt())

    end = get_end(talk.receive(reply("interrupt:t1"), text("s0 s1 "), aborted()))

    assert (end.status, end.text, end.error) == ("cancelled", "s0 s1 ", None)


def test_usage_and_cost_of_an_aborted_stream_are_unknown() -> None:
    end = get_end(working().receive(aborted(modelUsage=used())))

    assert (end.usage, end.cost) == (None, Cost())


def test_interrupt_before_the_turn_started_is_sent_again() -> None:
    talk = ready()
    talk.turn()
    talk.send(talk.dialect.interrupt())

    again = [each for each in talk.receive(init()) if isinstance(each, Send)]
    more = talk.send(*again) + talk.receive(init())

    assert [send.key for send in again] == ["interrupt:t1:2"]
    assert told(again[0])["request"] == {"subtype": "interrupt"}
    assert more == []


def test_interrupt_during_a_turn_is_sent_once() -> None:
    talk = working()
    talk.send(talk.dialect.interrupt())

    assert talk.receive(init()) == []


def test_interrupted_compaction_cancels_the_turn() -> None:
    talk = working()
    talk.send(talk.dialect.interrupt())

    said = talk.receive(
        system("status", status=None, compact_result="failed", compact_error="aborted"),
        result(None, terminal_reason=None),
    )

    assert said[0] == ev.CompactionFailed("aborted")
    assert get_end(said).status == "cancelled"


def test_interrupt_without_a_turn_sends_nothing() -> None:
    assert ready().dialect.interrupt() is None


# -- approvals


def test_allowed_approval_returns_the_input_unchanged() -> None:
    talk = working()

    [asked] = talk.receive(ask(input={"n": 10**30}))
    [send] = talk.dialect.decide("40", Verdict(True))

    assert asked == ev.ApprovalRequested("40", "c1", "Bash", {"n": 10**30})
    assert told(send)["response"] == {
        "subtype": "success",
        "request_id": "q1",
        "response": {"behavior": "allow", "updatedInput": {"n": 10**30}},
    }
    assert talk.send(send) == [ev.ApprovalResolved("40", "allow", "user")]


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
def test_verdict_may_change_the_input_or_deny(verdict: Verdict, expected: Any) -> None:
    talk = working()
    talk.receive(ask())

    [send] = talk.dialect.decide("40", verdict)
    [resolved] = talk.send(send)

    assert told(send)["response"]["response"] == expected
    assert resolved == ev.ApprovalResolved("40", expected["behavior"], "user")


def test_approval_cancelled_by_the_cli_cannot_be_answered() -> None:
    talk = working()
    talk.receive(ask())

    said = talk.receive({"type": "control_cancel_request", "request_id": "q1"})

    assert said == [ev.ApprovalResolved("40", "cancelled", "provider")]
    assert talk.dialect.decide("40", Verdict(True)) == []


def test_open_approval_is_cancelled_at_the_end_of_its_turn() -> None:
    talk = working()
    talk.receive(ask())

    assert ev.ApprovalResolved("40", "cancelled", "provider") in talk.receive(result())


def test_approval_of_a_sub_agent_stays_open_after_the_turn() -> None:
    talk = working()
    talk.receive(ask(agent_id="a1"), result())

    assert talk.dialect.decide("40", Verdict(True))


@pytest.mark.parametrize("request_", [{"subtype": "hook_callback"}, {"subtype": 3}, "x"])
def test_unsupported_control_request_is_declined(request_: Any) -> None:
    talk = working()

    line = {"type": "control_request", "request_id": "q1", "request": request_}
    send, unknown = talk.receive(line)

    assert isinstance(unknown, ev.Unknown)
    assert isinstance(send, Send)
    assert told(send)["response"] == {
        "subtype": "error",
        "request_id": "q1",
        "error": "this is not supported",
    }
    assert talk.send(send) == []
