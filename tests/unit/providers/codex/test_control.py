"""Tests interrupts, approvals and declined requests of Codex."""

from typing import Any

import pytest

from steadyrun.dialect import DialectOutput, Send, TurnEnded, Verdict
from steadyrun.model import event as ev
from tests.support.codex_lines import (
    ASKS,
    Talk,
    approval_of,
    ask,
    begun,
    command,
    completed,
    done,
    interrupted,
    question,
    ready,
    refusal,
    reply,
    resolved,
    text,
    working,
)
from tests.support.dialect_talker import get_end, told

# -- interrupting


def test_interrupt_names_the_turn() -> None:
    assert told(working().dialect.interrupt()) == {
        "id": "interrupt:t1",
        "method": "turn/interrupt",
        "params": {"threadId": "th1", "turnId": "turn1"},
    }


def test_interrupt_before_the_turn_has_an_id_has_another_key() -> None:
    talk = ready()
    talk.turn()

    early = talk.dialect.interrupt()
    talk.send(early)
    talk.receive(reply("begin:t1", turn={"id": "turn1"}))
    late = talk.dialect.interrupt()

    assert told(early)["params"]["turnId"] == ""
    assert told(late)["params"]["turnId"] == "turn1"
    assert early
    assert late
    assert early.key != late.key


def test_interrupt_without_a_turn_sends_nothing() -> None:
    talk = working()
    talk.receive(completed())

    assert talk.dialect.interrupt() is None


@pytest.mark.parametrize("is_answered", [True, False])
def test_interrupted_turn_ends_with_or_without_a_reply(is_answered: bool) -> None:
    talk = working()
    talk.send(talk.dialect.interrupt())
    lines = [reply("interrupt:t1")] if is_answered else []

    end = get_end(talk.receive(text("so far"), *lines, interrupted()))

    assert (end.status, end.text, end.error) == ("cancelled", "so far", None)
    assert talk.dialect.is_ready


def test_interrupt_terminates_commands_that_are_still_running() -> None:
    talk = working()
    talk.receive(command("c1", "7"), command("c2", None), command("c3", "9"), done_command("c3"))

    said = talk.receive(interrupted())

    closed = [each for each in said if isinstance(each, ev.ToolFailed)]
    assert [(each.tool_call_id, each.error) for each in closed] == [
        ("c1", "still_running"),
        ("c2", "still_running"),
    ]
    [send] = [each for each in said if isinstance(each, Send)]
    assert told(send) == {
        "id": "terminate:c1",
        "method": "thread/backgroundTerminals/terminate",
        "params": {"threadId": "th1", "processId": "7"},
    }
    assert isinstance(said[-1], TurnEnded)
    assert talk.send(send) == []
    assert talk.receive(reply("terminate:c1", terminated=True)) == []


def done_command(item: str) -> Any:
    return done("commandExecution", item, status="completed", exitCode=0)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_commands_left_running_by_a_normal_end_are_not_terminated(status: str) -> None:
    talk = working()
    said = talk.receive(command(), completed(status=status))
    talk.turn("t2")
    talk.receive(reply("begin:t2", turn={"id": "turn2"}))

    said += talk.receive(interrupted("turn2"))

    assert not [each for each in said if isinstance(each, Send)]


def test_refused_termination_is_noted() -> None:
    talk = working()
    talk.receive(command())
    talk.send(*(each for each in talk.receive(interrupted()) if isinstance(each, Send)))

    [note] = talk.receive(refusal("terminate:c1", "requires experimentalApi"))

    assert isinstance(note, ev.Note)


# -- approvals


def asked(*lines: Any) -> tuple[Talk, str]:
    """One that has asked, and the name of its question."""
    talk = working()
    return talk, approval_of(talk.receive(*lines))


def sends(said: list[DialectOutput]) -> list[Send]:
    return [each for each in said if isinstance(each, Send)]


def test_command_approval_has_the_command_and_the_reason() -> None:
    talk = working()

    [_, said] = talk.receive(
        command(process=None),
        ask(command="ls -a", cwd="/w", reason="may I?", availableDecisions=[]),
    )

    assert isinstance(said, ev.ApprovalRequested)
    assert (said.tool_call_id, said.tool_name) == ("c1", "commandExecution")
    assert said.tool_input == {"command": "ls -a", "cwd": "/w", "reason": "may I?"}


def test_file_change_approval_has_the_changes_of_its_item() -> None:
    talk = working()
    changes = [{"path": "/w/a", "kind": {"type": "add"}, "diff": "x"}]

    [_, said] = talk.receive(
        begun("fileChange", "c1", changes=changes, status="inProgress"),
        ask(kind="fileChange", reason=None, grantRoot=None),
    )

    assert isinstance(said, ev.ApprovalRequested)
    assert (said.tool_name, said.tool_input) == ("fileChange", {"changes": changes})


def test_approval_for_an_unknown_item_has_an_empty_input() -> None:
    [said] = working().receive(ask(kind="fileChange", item="other"))

    assert isinstance(said, ev.ApprovalRequested)
    assert said.tool_input == {}


def test_approval_request_of_another_thread_is_reported() -> None:
    """Only this run can answer the question."""
    [said] = working().receive(ask(threadId="of a sub-agent"))

    assert isinstance(said, ev.ApprovalRequested)


@pytest.mark.parametrize("request_id", [0, 1, -1, "0", "", "decide:10", None])
@pytest.mark.parametrize("kind", ASKS)
def test_approval_is_answered_with_the_id_of_its_request(request_id: Any, kind: str) -> None:
    talk, approval = asked(ask(request_id, kind))

    [send] = talk.dialect.decide(approval, Verdict(True))
    said = talk.send(send)

    assert send.key == f"decide:{approval}"
    assert told(send)["id"] == request_id
    assert type(told(send)["id"]) is type(request_id)
    assert said == [ev.ApprovalResolved(approval, "allow" if kind != "permissions" else "deny",
                                        "user")]  # fmt: skip


def test_request_ids_zero_and_text_zero_are_different() -> None:
    talk = working()
    one, other = approval_of(talk.receive(ask(0))), approval_of(talk.receive(ask("0")))

    said = talk.send(*talk.dialect.decide(other, Verdict(True))) + talk.receive(resolved(0))

    assert said == [
        ev.ApprovalResolved(other, "allow", "user"),
        ev.ApprovalResolved(one, "cancelled", "provider"),
    ]


@pytest.mark.parametrize(
    ("verdict", "decision", "outcome"),
    [
        (Verdict(True), "accept", "allow"),
        (Verdict(True, "go on"), "accept", "allow"),
        (Verdict(False), "decline", "deny"),
        (Verdict(False, "no", ends_turn=True), "cancel", "deny"),
        (Verdict(True, input={"command": "ls"}), "decline", "deny"),
        (Verdict(True, input={}), "decline", "deny"),
    ],
)
@pytest.mark.parametrize("kind", ASKS[:2])
def test_verdict_becomes_a_decision(
    kind: str, verdict: Verdict, decision: str, outcome: str
) -> None:
    """What is to be done instead cannot be told: so nothing is done."""
    talk, approval = asked(ask(kind=kind))

    [send] = talk.dialect.decide(approval, verdict)

    assert told(send)["result"] == {"decision": decision}
    assert talk.send(send) == [ev.ApprovalResolved(approval, outcome, "user")]


WANTED = {"network": {"enabled": True}, "fileSystem": {"write": ["/w", 10**30]}}


@pytest.mark.parametrize(
    ("verdict", "granted"),
    [(Verdict(True), WANTED), (Verdict(False), {}), (Verdict(True, input={"x": 1}), {})],
)
def test_permissions_are_granted_completely_or_denied(verdict: Verdict, granted: Any) -> None:
    talk = working()
    [question_] = talk.receive(ask(kind="permissions", permissions=WANTED, reason="to fetch"))
    assert isinstance(question_, ev.ApprovalRequested)

    [send] = talk.dialect.decide(question_.approval, verdict)

    assert (question_.tool_name, question_.tool_input) == (
        "permissions", {"permissions": WANTED, "reason": "to fetch"},
    )  # fmt: skip
    assert told(send)["result"] == {"permissions": granted, "scope": "turn"}
    outcome = "allow" if granted else "deny"
    assert talk.send(send) == [ev.ApprovalResolved(question_.approval, outcome, "user")]


def test_permissions_denied_with_ends_turn_interrupt_the_turn() -> None:
    talk, approval = asked(ask(kind="permissions", permissions=WANTED))

    answer, end = talk.dialect.decide(approval, Verdict(False, ends_turn=True))

    assert told(answer)["result"]["permissions"] == {}
    assert told(end)["method"] == "turn/interrupt"


def test_approval_is_answered_once() -> None:
    talk, approval = asked(ask())
    talk.send(*talk.dialect.decide(approval, Verdict(True)))

    assert talk.dialect.decide(approval, Verdict(False)) == []
    assert talk.receive(resolved()) == []
    assert talk.dialect.decide("unknown", Verdict(True)) == []


def test_withdrawn_approval_is_cancelled() -> None:
    talk, approval = asked(ask())

    assert talk.receive(resolved()) == [ev.ApprovalResolved(approval, "cancelled", "provider")]
    assert talk.dialect.decide(approval, Verdict(True)) == []


def test_end_of_the_turn_cancels_open_approvals_first() -> None:
    talk, approval = asked(ask())

    said = talk.receive(interrupted(), resolved())

    gone = ev.ApprovalResolved(approval, "cancelled", "provider")
    assert [each for each in said if isinstance(each, ev.ApprovalResolved | TurnEnded)] == [
        gone, get_end(said),
    ]  # fmt: skip
    assert talk.dialect.decide(approval, Verdict(True)) == []


def test_request_id_may_be_used_for_another_approval() -> None:
    talk, first = asked(ask(0))
    talk.send(*talk.dialect.decide(first, Verdict(True)))

    second = approval_of(talk.receive(ask(0)))

    assert second != first
    assert talk.send(*talk.dialect.decide(second, Verdict(False))) == [
        ev.ApprovalResolved(second, "deny", "user")
    ]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"decision": "acceptForSession"}, "allow"),
        ({"decision": {"acceptWithExecpolicyAmendment": {}}}, "allow"),
        ({"decision": {"applyNetworkPolicyAmendment": {}}}, "allow"),
        ({"decision": "cancel"}, "deny"),
        ({"decision": None}, "deny"),
        (None, "deny"),
    ],
)
def test_recorded_decisions_are_classified(answer: Any, outcome: str) -> None:
    talk, approval = asked(ask())

    assert talk.write({"id": 0, "result": answer}) == [
        ev.ApprovalResolved(approval, outcome, "user")
    ]


def test_recorded_error_reply_denies_the_approval() -> None:
    talk, approval = asked(ask())

    said = talk.write({"id": 0, "error": {"code": 1, "message": "x"}})

    assert said == [ev.ApprovalResolved(approval, "deny", "user")]


# -- other questions

MCP = {"codex_approval_kind": "mcp_tool_call", "tool_params": {"text": "hi"}, "tool_name": "echo"}


def elicitation(**more: Any) -> Any:
    form = {"serverName": "sim", "mode": "form", "message": "Allow it?", "requestedSchema": {}}
    return question("mcpServer/elicitation/request", 0, threadId="th1", **form, **more)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("item/tool/requestUserInput", {"answers": {}}),
        ("applyPatchApproval", {"decision": {"denied": {"rejection": "this is not supported"}}}),
        ("execCommandApproval", {"decision": {"denied": {"rejection": "this is not supported"}}}),
        ("mcpServer/elicitation/request", {"action": "decline", "content": None}),
    ],
)
def test_unsupported_server_request_is_declined(method: str, answer: Any) -> None:
    talk = working()

    [send] = sends(talk.receive(question(method, 3, questions=[])))

    assert told(send) == {"id": 3, "result": answer}
    assert talk.send(send) == []


@pytest.mark.parametrize(
    ("questions", "words"),
    [
        ([{"id": "q", "question": "Which?"}, {"question": "Why?"}], "Which? Why?"),
        ([{"question": 7}, 7], "it has no text"),
        (7, "it has no text"),
        (None, "it has no text"),
    ],
)
def test_declined_question_to_the_user_is_noted(questions: Any, words: str) -> None:
    asking = question("item/tool/requestUserInput", 3, questions=questions)

    said = working().receive(asking)

    [send] = sends(said)
    assert told(send)["result"] == {"answers": {}}
    assert said[1] == ev.Note(f"a question from Codex to the user was declined: {words}")


def test_call_of_a_client_tool_fails() -> None:
    [send] = sends(working().receive(question("item/tool/call", 3, tool="x", arguments={})))

    assert told(send)["result"]["success"] is False


@pytest.mark.parametrize(
    "method",
    ["currentTime/read", "attestation/generate", "account/chatgptAuthTokens/refresh", "news/ask"],
)
def test_unknown_server_request_is_answered_with_an_error(method: str) -> None:
    talk = working()
    heard = talk.receive(question(method, "x"))
    [send] = sends(heard)

    assert told(send)["error"]["code"] == -32601
    assert told(send)["id"] == "x"
    assert [type(each) for each in heard if each is not send] == [ev.Unknown]


def test_declined_requests_have_different_keys() -> None:
    keys = {send.key for send in sends(working().receive(question("a/b"), question("a/b")))}

    assert len(keys) == 2


def test_mcp_tool_call_requests_an_approval() -> None:
    """Codex asks for it as for a form to be filled in."""
    talk = working()
    talk.receive(begun("mcpToolCall", "c1", server="sim", tool="echo", arguments={"text": "hi"}))

    said = talk.receive(elicitation(_meta=MCP))

    [question_] = said
    assert isinstance(question_, ev.ApprovalRequested)
    assert question_.tool_input == {"text": "hi"}
    assert "sim" in question_.tool_name


def test_equal_mcp_tool_calls_request_one_approval_each() -> None:
    talk = working()
    call: dict[str, Any] = {"server": "sim", "tool": "echo", "arguments": {"text": "hi"}}
    talk.receive(*(begun("mcpToolCall", f"c{number}", **call) for number in (1, 2)))

    said = talk.receive(*[elicitation(_meta=MCP)] * 3)

    asking = [each for each in said if isinstance(each, ev.ApprovalRequested)]
    assert [(each.tool_call_id, each.tool_name) for each in asking] == [
        ("c1", "mcp__sim__echo"),
        ("c2", "mcp__sim__echo"),
        (None, "mcp__sim"),
    ]


@pytest.mark.parametrize(
    ("verdict", "action", "outcome"),
    [
        (Verdict(True), "accept", "allow"),
        (Verdict(False), "decline", "deny"),
        (Verdict(False, ends_turn=True), "decline", "deny"),
        (Verdict(True, input={}), "decline", "deny"),
    ],
)
def test_verdict_answers_an_mcp_elicitation(verdict: Verdict, action: str, outcome: str) -> None:
    talk, approval = asked(elicitation(_meta=MCP))

    first, *more = talk.dialect.decide(approval, verdict)

    assert told(first)["result"]["action"] == action
    assert len(more) == verdict.ends_turn
    assert talk.send(first) == [ev.ApprovalResolved(approval, outcome, "user")]


ODD: list[Any] = [None, 7, "x", [], [{}], True, {"x": {}}]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("kind", ASKS)
def test_malformed_approval_request_is_declined_or_asked_once(kind: str, value: Any) -> None:
    for name in ("threadId", "itemId", "reason", "command", "cwd", "permissions", "message"):
        talk = working()
        said = talk.receive(ask(kind=kind, **{"itemId": "c1", name: value}))
        open_asks = list(talk.dialect.state.asks)

        assert len(sends(said)) + len(open_asks) == 1
        for approval in open_asks:
            assert len(talk.dialect.decide(approval, Verdict(True))) == 1


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(
    "method",
    [*(f"item/{kind}/requestApproval" for kind in ASKS), "mcpServer/elicitation/request", "x/y"],
)
def test_approval_request_with_malformed_parameters_is_answered_once(
    method: str, value: Any
) -> None:
    talk = working()

    said = talk.receive({"id": 0, "method": method, "params": value})

    assert len(sends(said)) + len(talk.dialect.state.asks) == 1
