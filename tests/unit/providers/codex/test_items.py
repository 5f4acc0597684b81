"""Tests the items of Codex: text, thoughts, tools and compactions."""

from typing import Any

import pytest

from steadyrun.dialect import DialectOutput, ProcessExit, ProducedImage, Send, TurnEnded
from steadyrun.drivers.turn_tracker import TurnTracker
from steadyrun.model import event as ev
from steadyrun.model.event import Emitted
from tests.support.codex_lines import (
    Talk,
    begun,
    command,
    command_done,
    completed,
    delta,
    done,
    failed,
    interrupted,
    make_notification,
    ready,
    reply,
    started,
    text,
    tokens,
    usage,
    user,
    working,
)
from tests.support.dialect_talker import NOW, get_end, play

# -- words


def the_text(*lines: Any) -> str | None:
    return get_end(working().receive(*lines)).text


def test_text_is_reported_in_deltas_and_complete() -> None:
    talk = working()

    said = talk.receive(begun("agentMessage", "m1", text=""), delta("h"), delta("i"), text("hi"))

    assert said == [ev.TextDelta("h"), ev.TextDelta("i"), ev.TextFinal("hi")]


def test_unfinished_message_is_not_part_of_the_answer() -> None:
    talk = working()

    said = talk.receive(begun("agentMessage", "m1"), delta("ha"), begun("agentMessage", "m2"),
                     delta("hal"), interrupted())  # fmt: skip

    assert ev.TextFinal not in map(type, said)
    assert get_end(said).text is None


@pytest.mark.parametrize(
    ("spoken", "expected"),
    [
        ([("a", None), ("b", None)], "b"),
        ([("a", "final_answer"), ("b", "commentary")], "a"),
        ([("a", "final_answer"), ("b", None)], "a"),
        ([("a", "commentary"), ("b", None)], "b"),
        ([("a", None), ("b", "commentary")], "a"),
        ([("a", "partial_answer"), ("b", "commentary")], "a"),
        ([("a", "commentary"), ("b", "final_answer"), ("c", "final_answer")], "c"),
        ([("a", "commentary"), ("b", "commentary")], "b"),
        ([("a", None), ("", None)], "a"),
        ([], None),
    ],
)
@pytest.mark.parametrize("end", [completed(), interrupted(), failed()])
def test_answer_is_the_final_answer_or_the_last_text(
    spoken: list[tuple[str, str | None]], expected: str | None, end: Any
) -> None:
    assert the_text(*(text(*each) for each in spoken), end) == expected


def test_answer_stated_at_the_end_takes_precedence() -> None:
    assert the_text(text("a", "final_answer"), completed("b")) == "b"


@pytest.mark.parametrize("items", [None, 7, "x", [7], [{}], [{"type": "agentMessage", "text": 7}]])
def test_malformed_end_items_leave_the_last_text_as_the_answer(items: Any) -> None:
    assert the_text(text("a"), completed(items=items)) == "a"


def test_items_without_a_turn_cause_no_event() -> None:
    talk = working()
    talk.receive(completed())

    assert talk.receive(text("late"), delta("late"), begun("agentMessage", "m2")) == []


# -- thoughts


def thought(words: str, item: str = "r1", kind: str = "summaryText") -> Any:
    about = {"itemId": item, "delta": words, "turnId": "turn1"}
    return make_notification(f"item/reasoning/{kind}Delta", **about)


def part(index: int) -> Any:
    return make_notification(
        "item/reasoning/summaryPartAdded", itemId="r1", summaryIndex=index, turnId="turn1"
    )


def test_streamed_thoughts_are_reported_once() -> None:
    said = working().receive(
        begun("reasoning", "r1"), part(0), thought("a"), part(1), thought("b"),
        done("reasoning", "r1", summary=["a", "b"], content=[]), completed("x"),
    )  # fmt: skip

    thoughts = [each.text for each in said if isinstance(each, ev.ThinkingDelta)]
    assert "".join(thoughts) == "a\n\nb"
    assert get_end(said).text == "x"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"summary": ["a", "b"], "content": []}, "a\n\nb"),
        ({"summary": [], "content": ["raw"]}, "raw"),
        ({"summary": [{"type": "summary_text", "text": "a"}]}, "a"),
    ],
)
def test_thoughts_that_were_not_streamed_are_reported_at_their_end(
    fields: Any, expected: str
) -> None:
    said = working().receive(thought("other", "r0"), done("reasoning", "r1", **fields))

    assert said[1:] == [ev.ThinkingDelta(expected)]


@pytest.mark.parametrize("fields", [{}, {"summary": [], "content": []}, {"summary": 7}])
def test_empty_reasoning_causes_no_event(fields: Any) -> None:
    assert working().receive(done("reasoning", "r1", **fields)) == []


# -- tools


def tools(said: list[DialectOutput]) -> list[DialectOutput]:
    return [x for x in said if isinstance(x, ev.ToolStarted | ev.ToolCompleted | ev.ToolFailed)]


def test_command_is_reported_as_a_tool() -> None:
    said = working().receive(command(), command_done())

    given = {"command": "ls", "cwd": "/w"}
    assert said[0] == ev.ToolStarted("c1", "commandExecution", given)
    [end] = said[1:]
    assert isinstance(end, ev.ToolCompleted)
    assert (end.tool_call_id, end.tool_output) == ("c1", "a\n")


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [("failed", 3, "exit code 3"), ("failed", -1, "exit code -1"), ("declined", None, "declined"),
     ("failed", None, "failed"), ("news", None, "news")],
)  # fmt: skip
def test_status_of_a_command_is_the_error_of_the_tool(
    status: str, code: int | None, why: str
) -> None:
    [end] = tools(working().receive(command(), command_done("c1", status, code)))[1:]

    assert isinstance(end, ev.ToolFailed)
    assert end.error == why


MCP: dict[str, Any] = {"server": "sim", "tool": "echo", "arguments": {"a": 1}}


@pytest.mark.parametrize(
    ("kind", "fields", "name", "given"),
    [
        ("fileChange", {"changes": [{"path": "/a"}]}, "fileChange", {"changes": [{"path": "/a"}]}),
        ("mcpToolCall", MCP, "mcp__sim__echo", {"a": 1}),
        ("webSearch", {"query": "cats"}, "webSearch", {"query": "cats"}),
        ("imageView", {"path": "/a.png"}, "viewImage", {"path": "/a.png"}),
        ("sleep", {"durationMs": 5}, "sleep", {"duration_ms": 5}),
        ("collabAgentToolCall", {"tool": "spawnAgent", "prompt": "x"}, "agent",
         {"tool": "spawnAgent", "prompt": "x"}),
        ("dynamicToolCall", {"namespace": "n", "tool": "t", "arguments": 7}, "n.t", 7),
    ],
)  # fmt: skip
def test_every_tool_has_a_name_and_an_input(kind: str, fields: Any, name: str, given: Any) -> None:
    start, end = tools(working().receive(begun(kind, "c1", **fields), done(kind, "c1", **fields)))

    assert start == ev.ToolStarted("c1", name, given)
    assert isinstance(end, ev.ToolCompleted)
    assert (end.tool_name, end.tool_input) == (name, given)


def test_tool_reported_only_at_its_end_has_a_start() -> None:
    said = working().receive(command_done())

    assert [type(each) for each in said] == [ev.ToolStarted, ev.ToolCompleted]


def test_mcp_tool_fails_with_an_error_or_with_output() -> None:
    output = {"content": [{"type": "text", "text": "no such thing"}]}

    said = working().receive(
        done("mcpToolCall", "c1", **MCP, status="failed", error={"message": "gone"}),
        done("mcpToolCall", "c2", **MCP, status="failed", error=None, result=output),
    )

    ends = [each for each in said if isinstance(each, ev.ToolFailed)]
    assert [(end.error, end.tool_output) for end in ends] == [
        ("gone", None), ("failed", "no such thing"),
    ]  # fmt: skip


def test_image_is_reported_once() -> None:
    shown = {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    talk = working()

    said = talk.receive(*(done("mcpToolCall", f"c{n}", **MCP, result=shown) for n in range(2)))
    said += talk.receive(done("imageGeneration", "c9", result="AAAB", status="completed"))

    assert [each.name for each in said if isinstance(each, ProducedImage)] == [
        "image-1.png", "image-2.png",
    ]  # fmt: skip


TEXT = [{"type": "text", "text": '{"a": 1}'}]
FOUND = [{"title": "cats", "url": "http://cats"}]


@pytest.mark.parametrize(
    ("kind", "fields", "output"),
    [
        ("webSearch", {"query": "cats", "results": FOUND}, FOUND),
        ("webSearch", {"query": "cats", "results": None}, None),
        ("mcpToolCall", {"result": {"content": [], "structuredContent": {"a": 1}}}, {"a": 1}),
        ("mcpToolCall", {"result": {"content": [], "structured_content": {"a": 1}}}, {"a": 1}),
        ("mcpToolCall", {"result": {"content": TEXT, "structuredContent": {"a": 1}}}, '{"a": 1}'),
        ("mcpToolCall", {"result": {"content": TEXT, "structuredContent": {"a": 2}}},
         {"content": '{"a": 1}', "structured_content": {"a": 2}}),
        ("mcpToolCall", {"result": {"content": TEXT, "structuredContent": None}}, '{"a": 1}'),
        ("mcpToolCall", {"result": {"content": []}}, []),
        ("mcpToolCall", {"result": None}, None),
        ("dynamicToolCall", {"tool": "t", "contentItems": [
            {"type": "inputText", "text": "a"}, {"type": "inputText", "text": "b"}]}, "a\nb"),
        ("dynamicToolCall", {"tool": "t", "contentItems": None}, None),
        ("dynamicToolCall", {"tool": "t", "contentItems": [
            {"type": "inputImage", "imageUrl": "http://cats"}]},
         [{"type": "inputImage", "imageUrl": "http://cats"}]),
    ],
)  # fmt: skip
def test_output_of_a_tool_is_reported(kind: str, fields: Any, output: Any) -> None:
    _, end = tools(working().receive(done(kind, "c1", status="completed", **fields)))

    assert isinstance(end, ev.ToolCompleted)
    assert end.tool_output == output


def test_image_of_a_dynamic_tool_is_reported() -> None:
    items = [{"type": "inputText", "text": "see"},
             {"type": "inputImage", "imageUrl": "data:image/jpeg;base64,AAAA"}]  # fmt: skip

    said = working().receive(done("dynamicToolCall", "c1", tool="t", contentItems=items))

    assert ProducedImage("image-1.jpg", "image/jpeg", b"\0\0\0") in said
    named = {"type": "image", "media_type": "image/jpeg", "name": "image-1.jpg"}
    end = said[-1]
    assert isinstance(end, ev.ToolCompleted)
    assert end.tool_output == [items[0], named]


@pytest.mark.parametrize(("status", "why"), [("completed", "failed"), (None, "failed"), ("x", "x")])
def test_dynamic_tool_without_success_fails(status: Any, why: str) -> None:
    words = [{"type": "inputText", "text": "boo"}]
    fields = {"status": status, "success": False, "contentItems": words}

    _, end = tools(working().receive(done("dynamicToolCall", "c1", tool="t", **fields)))

    assert isinstance(end, ev.ToolFailed)
    assert (end.error, end.tool_output) == (why, "boo")


PNG = "iVBORw0KGgo="


@pytest.mark.parametrize("status", ["completed", "generating", "failed", "news"])
def test_generated_image_is_reported_with_any_status(status: str) -> None:
    fields = {"status": status, "revisedPrompt": "a cat", "result": PNG}

    start, picture, end = working().receive(done("imageGeneration", **fields))

    given = {"revised_prompt": "a cat"}
    assert start == ev.ToolStarted("i1", "imageGeneration", given)
    assert picture == ProducedImage("image-1.png", "image/png", b"\x89PNG\r\n\x1a\n")
    assert end == ev.ToolCompleted("i1", "imageGeneration", given, "image-1.png")


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"result": "", "savedPath": "/a.png"}, {"saved_path": "/a.png"}),
        ({"fileId": "f1", "savedPath": "/a.png"}, {"saved_path": "/a.png", "file_id": "f1"}),
        ({"fileId": "f1", "status": "failed"}, {"file_id": "f1"}),
        ({"result": ""}, None),
        ({"result": "!"}, None),
        ({"result": "!", "savedPath": "/a.png"}, {"saved_path": "/a.png"}),
        ({"status": "generating"}, None),
    ],
)
def test_generated_image_without_data_is_named_by_its_file(fields: Any, output: Any) -> None:
    _, end = working().receive(done("imageGeneration", **{"status": "completed", **fields}))

    assert end == ev.ToolCompleted("i1", "imageGeneration", {}, output)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "failed", "result": ""}, "failed"),
        ({"status": "incomplete"}, "incomplete"),
        ({"failure": {"type": "usageLimitExceeded", "limitId": "x"}}, "usageLimitExceeded"),
        ({"failure": {"type": "usageLimitExceeded"}, "result": PNG}, "usageLimitExceeded"),
        ({"failure": {}, "status": "failed"}, "failed"),
        ({"failure": 7}, "failed"),
    ],
)
def test_failed_image_generation_has_its_reason(fields: Any, why: str) -> None:
    *_, end = working().receive(done("imageGeneration", **{"status": "completed", **fields}))

    assert isinstance(end, ev.ToolFailed)
    assert end.error == why


def test_tool_without_a_turn_is_not_reported() -> None:
    talk = working()
    talk.receive(completed())

    assert talk.receive(command(), command_done()) == []


def test_tool_that_ends_after_its_turn_is_noted() -> None:
    talk = working()
    talk.receive(command(), interrupted())
    talk.turn("t2")
    talk.receive(reply("begin:t2", turn={"id": "turn2"}), started("turn2"))

    late = talk.receive(command_done("c1", "failed", -1))
    end = get_end(talk.receive(completed(turn="turn2")))

    assert [type(each) for each in late] == [ev.Note]
    assert end.text is None


def test_tool_left_running_by_its_turn_is_closed_once() -> None:
    talk = working()
    talk.receive(command(), completed("x"), command_done())

    heard = [getattr(each, "event", None) for each in play(TurnTracker(Talk().dialect), talk.log)]

    ends = [each for each in heard if isinstance(each, ev.ToolFailed | ev.ToolCompleted)]
    assert [type(each) for each in ends] == [ev.ToolFailed]
    assert ev.Note in map(type, heard)


def test_open_tool_is_closed_when_the_process_ends() -> None:
    talk = working()
    talk.receive(command())
    turns = TurnTracker(Talk().dialect)
    play(turns, talk.log)

    told = turns.on_exited(ProcessExit(0), NOW)

    [closed] = [each.event for each in told if isinstance(each, Emitted)]
    assert isinstance(closed, ev.ToolFailed)
    assert closed.error == "still_running"
    assert isinstance(told[-1], TurnEnded)


def test_internal_items_cause_no_event() -> None:
    kinds = ("hookPrompt", "functionCallOutput", "enteredReviewMode", "exitedReviewMode",
             "subAgentActivity")  # fmt: skip

    assert working().receive(*(make(kind) for kind in kinds for make in (begun, done))) == []


def test_plan_is_noted() -> None:
    assert working().receive(begun("plan", text=""), done("plan", text="first this")) == [
        ev.Note("first this")
    ]


def test_plan_is_the_answer_without_other_text() -> None:
    plan = done("plan", text="first this")

    assert get_end(working().receive(plan, completed())).text == "first this"
    assert get_end(working().receive(text("hm", "commentary"), plan, completed())).text == "hm"


@pytest.mark.parametrize(
    "method",
    ["turn/diff/updated", "item/commandExecution/outputDelta", "thread/queue/changed",
     "thread/goal/updated", "hook/started", "item/plan/delta", "thread/realtime/started",
     "item/mcpToolCall/progress", "turn/plan/updated", "thread/compacted"],
)  # fmt: skip
@pytest.mark.parametrize("params", [{}, {"x": 1}])
def test_redundant_notifications_cause_no_event(method: str, params: Any) -> None:
    assert working().receive(make_notification(method, **params)) == []


# -- compactions


def compacting(talk: Talk, turn: str) -> list[DialectOutput]:
    before, after = tokens(90, 10), {**tokens(), "totalTokens": 60}
    total = tokens(90, 10)
    return talk.receive(
        usage(total, before, turn),
        begun("contextCompaction", "k", turn),
        usage(total, before, turn),
        usage(tokens(150, 20), tokens(60, 10), turn),
        usage(tokens(150, 20), after, turn),
        done("contextCompaction", "k", turn),
    )


def compactions(said: list[DialectOutput]) -> list[DialectOutput]:
    kinds = (ev.CompactionStarted, ev.CompactionCompleted, ev.CompactionFailed)
    return [each for each in said if isinstance(each, kinds)]


def test_compaction_is_reported_with_its_token_counts() -> None:
    talk = working()

    said = compacting(talk, "turn1")

    assert compactions(said) == [
        ev.CompactionStarted("auto"), ev.CompactionCompleted("auto", 100, 60),
    ]  # fmt: skip
    assert (the_usage := get_end(talk.receive(completed())).usage)
    assert (the_usage.input_tokens, the_usage.output_tokens) == (150, 20)


def test_compaction_may_precede_the_user_message() -> None:
    talk = ready()
    talk.turn()
    talk.receive(reply("begin:t1", turn={"id": "turn1"}), started())

    said = talk.receive(begun("contextCompaction", "k"), done("contextCompaction", "k"), user("t1"))

    assert [type(each) for each in said] == [ev.CompactionStarted, ev.CompactionCompleted]


def test_requested_compaction_is_an_own_turn() -> None:
    talk = ready()
    talk.write({"id": 9, "method": "thread/compact/start", "params": {"threadId": "th1"}})
    talk.receive({"id": 9, "result": {}}, started("own"))

    said = compacting(talk, "own")
    end = get_end(talk.receive(completed(turn="own")))

    assert compactions(said) == [
        ev.CompactionStarted("manual"), ev.CompactionCompleted("manual", 100, 60),
    ]  # fmt: skip
    assert (end.status, end.text) == ("completed", None)


@pytest.mark.parametrize(
    ("end", "why"), [(failed("serverOverloaded"), "overloaded"), (interrupted(), "cancelled")]
)
def test_unfinished_compaction_fails(end: Any, why: str) -> None:
    said = working().receive(begun("contextCompaction", "k"), end)

    assert compactions(said) == [ev.CompactionStarted("auto"), ev.CompactionFailed(why)]


def test_completed_command_is_not_terminated() -> None:
    said = working().receive(command(), command_done(), interrupted())

    assert not [each for each in said if isinstance(each, Send)]
