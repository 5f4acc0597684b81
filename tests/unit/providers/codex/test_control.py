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
from tests.support.dialect_talker import the_end, told

# -- interrupting


def test_an_interrupt_names_the_turn() -> None:
    assert told(working().dialect.interrupt()) == {
        "id": "interrupt:t1",
        "method": "turn/interrupt",
        "params": {"threadId": "th1", "turnId": "turn1"},
    }


def test_a_turn_without_an_id_yet_is_interrupted_whatever_it_is() -> None:
    talk = ready()
    talk.turn()

    early = talk.dialect.interrupt()
    talk.tell(early)
    talk.hear(reply("begin:t1", turn={"id": "turn1"}))
    late = talk.dialect.interrupt()

    assert told(early)["params"]["turnId"] == ""
    assert told(late)["params"]["turnId"] == "turn1"
    assert early
    assert late
    assert early.key != late.key


def test_nothing_is_interrupted_without_a_turn() -> None:
    talk = working()
    talk.hear(completed())

    assert talk.dialect.interrupt() is None


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_interrupt_need_not_be_answered(is_answered: bool) -> None:
    talk = working()
    talk.tell(talk.dialect.interrupt())
    lines = [reply("interrupt:t1")] if is_answered else []

    end = the_end(talk.hear(text("so far"), *lines, interrupted()))

    assert (end.status, end.text, end.error) == ("cancelled", "so far", None)
    assert talk.dialect.is_ready


def test_commands_that_an_interrupted_turn_has_left_are_ended() -> None:
    talk = working()
    talk.hear(command("c1", "7"), command("c2", None), command("c3", "9"), done_command("c3"))

    said = talk.hear(interrupted())

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
    assert talk.tell(send) == []
    assert talk.hear(reply("terminate:c1", terminated=True)) == []


def done_command(item: str) -> Any:
    return done("commandExecution", item, status="completed", exitCode=0)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_commands_that_a_turn_leaves_on_purpose_are_left(status: str) -> None:
    talk = working()
    said = talk.hear(command(), completed(status=status))
    talk.turn("t2")
    talk.hear(reply("begin:t2", turn={"id": "turn2"}))

    said += talk.hear(interrupted("turn2"))

    assert not [each for each in said if isinstance(each, Send)]


def test_what_cannot_be_ended_is_a_note() -> None:
    talk = working()
    talk.hear(command())
    talk.tell(*(each for each in talk.hear(interrupted()) if isinstance(each, Send)))

    [note] = talk.hear(refusal("terminate:c1", "requires experimentalApi"))

    assert isinstance(note, ev.Note)


# -- approvals


def asked(*lines: Any) -> tuple[Talk, str]:
    """One that has asked, and the name of its question."""
    talk = working()
    return talk, approval_of(talk.hear(*lines))


def sends(said: list[DialectOutput]) -> list[Send]:
    return [each for each in said if isinstance(each, Send)]


def test_a_command_that_needs_approval_requests_it() -> None:
    talk = working()

    [_, said] = talk.hear(
        command(process=None),
        ask(command="ls -a", cwd="/w", reason="may I?", availableDecisions=[]),
    )

    assert isinstance(said, ev.ApprovalRequested)
    assert (said.tool_call_id, said.tool_name) == ("c1", "commandExecution")
    assert said.tool_input == {"command": "ls -a", "cwd": "/w", "reason": "may I?"}


def test_the_approval_of_a_file_change_has_the_changes_of_its_item() -> None:
    talk = working()
    changes = [{"path": "/w/a", "kind": {"type": "add"}, "diff": "x"}]

    [_, said] = talk.hear(
        begun("fileChange", "c1", changes=changes, status="inProgress"),
        ask(kind="fileChange", reason=None, grantRoot=None),
    )

    assert isinstance(said, ev.ApprovalRequested)
    assert (said.tool_name, said.tool_input) == ("fileChange", {"changes": changes})


def test_an_approval_of_an_unknown_item_is_requested() -> None:
    [said] = working().hear(ask(kind="fileChange", item="other"))

    assert isinstance(said, ev.ApprovalRequested)
    assert said.tool_input == {}


def test_a_question_of_another_conversation_is_asked_too() -> None:
    """Only this run can answer the question."""
    [said] = working().hear(ask(threadId="of a sub-agent"))

    assert isinstance(said, ev.ApprovalRequested)


@pytest.mark.parametrize("request_id", [0, 1, -1, "0", "", "decide:10", None])
@pytest.mark.parametrize("kind", ASKS)
def test_a_question_is_answered_under_its_own_id(request_id: Any, kind: str) -> None:
    talk, approval = asked(ask(request_id, kind))

    [send] = talk.dialect.decide(approval, Verdict(True))
    said = talk.tell(send)

    assert send.key == f"decide:{approval}"
    assert told(send)["id"] == request_id
    assert type(told(send)["id"]) is type(request_id)
    assert said == [ev.ApprovalResolved(approval, "allow" if kind != "permissions" else "deny",
                                        "user")]  # fmt: skip


def test_0_and_the_text_0_are_different_questions() -> None:
    talk = working()
    one, other = approval_of(talk.hear(ask(0))), approval_of(talk.hear(ask("0")))

    said = talk.tell(*talk.dialect.decide(other, Verdict(True))) + talk.hear(resolved(0))

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
def test_a_verdict_is_a_decision(kind: str, verdict: Verdict, decision: str, outcome: str) -> None:
    """What is to be done instead cannot be told: so nothing is done."""
    talk, approval = asked(ask(kind=kind))

    [send] = talk.dialect.decide(approval, verdict)

    assert told(send)["result"] == {"decision": decision}
    assert talk.tell(send) == [ev.ApprovalResolved(approval, outcome, "user")]


WANTED = {"network": {"enabled": True}, "fileSystem": {"write": ["/w", 10**30]}}


@pytest.mark.parametrize(
    ("verdict", "granted"),
    [(Verdict(True), WANTED), (Verdict(False), {}), (Verdict(True, input={"x": 1}), {})],
)
def test_permissions_are_granted_as_asked_or_not_at_all(verdict: Verdict, granted: Any) -> None:
    talk = working()
    [question_] = talk.hear(ask(kind="permissions", permissions=WANTED, reason="to fetch"))
    assert isinstance(question_, ev.ApprovalRequested)

    [send] = talk.dialect.decide(question_.approval, verdict)

    assert (question_.tool_name, question_.tool_input) == (
        "permissions", {"permissions": WANTED, "reason": "to fetch"},
    )  # fmt: skip
    assert told(send)["result"] == {"permissions": granted, "scope": "turn"}
    outcome = "allow" if granted else "deny"
    assert talk.tell(send) == [ev.ApprovalResolved(question_.approval, outcome, "user")]


def test_permissions_that_are_refused_for_good_end_the_turn_by_an_interrupt() -> None:
    talk, approval = asked(ask(kind="permissions", permissions=WANTED))

    answer, end = talk.dialect.decide(approval, Verdict(False, ends_turn=True))

    assert told(answer)["result"]["permissions"] == {}
    assert told(end)["method"] == "turn/interrupt"


def test_a_question_is_answered_once() -> None:
    talk, approval = asked(ask())
    talk.tell(*talk.dialect.decide(approval, Verdict(True)))

    assert talk.dialect.decide(approval, Verdict(False)) == []
    assert talk.hear(resolved()) == []
    assert talk.dialect.decide("unknown", Verdict(True)) == []


def test_a_question_that_is_withdrawn_is_cancelled() -> None:
    talk, approval = asked(ask())

    assert talk.hear(resolved()) == [ev.ApprovalResolved(approval, "cancelled", "provider")]
    assert talk.dialect.decide(approval, Verdict(True)) == []


def test_the_end_of_the_turn_withdraws_its_questions_first() -> None:
    talk, approval = asked(ask())

    said = talk.hear(interrupted(), resolved())

    gone = ev.ApprovalResolved(approval, "cancelled", "provider")
    assert [each for each in said if isinstance(each, ev.ApprovalResolved | TurnEnded)] == [
        gone, the_end(said),
    ]  # fmt: skip
    assert talk.dialect.decide(approval, Verdict(True)) == []


def test_the_same_id_may_ask_again() -> None:
    talk, first = asked(ask(0))
    talk.tell(*talk.dialect.decide(first, Verdict(True)))

    second = approval_of(talk.hear(ask(0)))

    assert second != first
    assert talk.tell(*talk.dialect.decide(second, Verdict(False))) == [
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
def test_answers_of_others_are_read(answer: Any, outcome: str) -> None:
    talk, approval = asked(ask())

    assert talk.write({"id": 0, "result": answer}) == [
        ev.ApprovalResolved(approval, outcome, "user")
    ]


def test_an_error_is_an_answer_too() -> None:
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
def test_what_is_not_for_us_to_answer_is_declined(method: str, answer: Any) -> None:
    talk = working()

    [send] = sends(talk.hear(question(method, 3, questions=[])))

    assert told(send) == {"id": 3, "result": answer}
    assert talk.tell(send) == []


@pytest.mark.parametrize(
    ("questions", "words"),
    [
        ([{"id": "q", "question": "Which?"}, {"question": "Why?"}], "Which? Why?"),
        ([{"question": 7}, 7], "it has no text"),
        (7, "it has no text"),
        (None, "it has no text"),
    ],
)
def test_a_declined_question_to_the_user_is_noted(questions: Any, words: str) -> None:
    asking = question("item/tool/requestUserInput", 3, questions=questions)

    said = working().hear(asking)

    [send] = sends(said)
    assert told(send)["result"] == {"answers": {}}
    assert said[1] == ev.Note(f"a question from Codex to the user was declined: {words}")


def test_a_tool_of_ours_there_is_none() -> None:
    [send] = sends(working().hear(question("item/tool/call", 3, tool="x", arguments={})))

    assert told(send)["result"]["success"] is False


@pytest.mark.parametrize(
    "method",
    ["currentTime/read", "attestation/generate", "account/chatgptAuthTokens/refresh", "news/ask"],
)
def test_any_other_question_has_an_error_for_an_answer(method: str) -> None:
    talk = working()
    heard = talk.hear(question(method, "x"))
    [send] = sends(heard)

    assert told(send)["error"]["code"] == -32601
    assert told(send)["id"] == "x"
    assert [type(each) for each in heard if each is not send] == [ev.Unknown]


def test_two_questions_are_declined_under_different_keys() -> None:
    keys = {send.key for send in sends(working().hear(question("a/b"), question("a/b")))}

    assert len(keys) == 2


def test_a_tool_of_an_mcp_server_needs_leave_as_any_other() -> None:
    """Codex asks for it as for a form to be filled in."""
    talk = working()
    talk.hear(begun("mcpToolCall", "c1", server="sim", tool="echo", arguments={"text": "hi"}))

    said = talk.hear(elicitation(_meta=MCP))

    [question_] = said
    assert isinstance(question_, ev.ApprovalRequested)
    assert question_.tool_input == {"text": "hi"}
    assert "sim" in question_.tool_name


def test_of_two_calls_that_are_the_same_each_is_asked_for_once() -> None:
    talk = working()
    call: dict[str, Any] = {"server": "sim", "tool": "echo", "arguments": {"text": "hi"}}
    talk.hear(*(begun("mcpToolCall", f"c{number}", **call) for number in (1, 2)))

    said = talk.hear(*[elicitation(_meta=MCP)] * 3)

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
def test_a_tool_of_an_mcp_server_is_allowed_as_any_other(
    verdict: Verdict, action: str, outcome: str
) -> None:
    talk, approval = asked(elicitation(_meta=MCP))

    first, *more = talk.dialect.decide(approval, verdict)

    assert told(first)["result"]["action"] == action
    assert len(more) == verdict.ends_turn
    assert talk.tell(first) == [ev.ApprovalResolved(approval, outcome, "user")]


ODD: list[Any] = [None, 7, "x", [], [{}], True, {"x": {}}]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("kind", ASKS)
def test_a_question_of_an_odd_shape_has_one_answer_or_one_asker(kind: str, value: Any) -> None:
    for name in ("threadId", "itemId", "reason", "command", "cwd", "permissions", "message"):
        talk = working()
        said = talk.hear(ask(kind=kind, **{"itemId": "c1", name: value}))
        open_asks = list(talk.dialect.state.asks)

        assert len(sends(said)) + len(open_asks) == 1
        for approval in open_asks:
            assert len(talk.dialect.decide(approval, Verdict(True))) == 1


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(
    "method",
    [*(f"item/{kind}/requestApproval" for kind in ASKS), "mcpServer/elicitation/request", "x/y"],
)
def test_a_question_without_parameters_has_an_answer_too(method: str, value: Any) -> None:
    talk = working()

    said = talk.hear({"id": 0, "method": method, "params": value})

    assert len(sends(said)) + len(talk.dialect.state.asks) == 1
