"""Tests tools, sub-agents, tasks and images of Claude Code."""

from typing import Any

import msgspec
import pytest

from steadyrun.dialect import ProcessExit, ProducedImage, TurnEnded
from steadyrun.model import event as ev
from steadyrun.providers.claude.state import ClaudeState
from steadyrun.providers.shared.images import LARGEST_IMAGE_CHARS
from tests.support.claude_lines import (
    Line,
    aborted,
    assistant,
    delta,
    get_end,
    result,
    stream,
    system,
    text,
    tool,
    tool_result,
    user,
    working,
)

# -- tools


def test_tool_is_reported_at_its_start_and_end() -> None:
    given_ = {"command": "ls", "n": 10**30}

    said = working().receive(tool(given=given_), tool_result(content="a b"))

    assert said == [
        ev.ToolStarted("c1", "Bash", given_),
        ev.ToolCompleted("c1", "Bash", given_, "a b"),
    ]


def test_failed_tool_has_its_error_text() -> None:
    blocks = [{"type": "text", "text": "not"}, {"type": "text", "text": "there"}, 3]
    talk = working()
    talk.receive(tool())

    [failed] = talk.receive(tool_result(content=blocks, is_error=True))

    assert failed == ev.ToolFailed("c1", "Bash", {"command": "ls"}, blocks, "not\nthere")


def test_parallel_tools_end_in_any_order() -> None:
    talk = working()
    talk.receive(tool("c1", "Read"), tool("c2", "Grep"))
    blocks = [
        {"type": "tool_result", "tool_use_id": call, "content": call} for call in ("c2", "c1")
    ]

    said = talk.receive(user(*blocks))

    ends = [(each.tool_call_id, each.tool_name) for each in said
            if isinstance(each, ev.ToolCompleted)]  # fmt: skip
    assert ends == [("c2", "Grep"), ("c1", "Read")]


def test_server_tool_ends_within_the_assistant_message() -> None:
    use = {"type": "server_tool_use", "id": "c1", "name": "web_search", "input": {"query": "x"}}
    end = {"type": "web_search_tool_result", "tool_use_id": "c1", "content": []}

    said = working().receive(assistant(use, end))

    assert [type(each) for each in said] == [ev.ToolStarted, ev.ToolCompleted]


def test_result_of_an_unknown_tool_is_reported_only_during_a_turn() -> None:
    talk = working()

    assert talk.receive(tool_result("c9")) == [ev.ToolCompleted("c9", "unknown", None, "done")]
    assert talk.receive(result(), tool_result("c8"))[-1:] != [
        ev.ToolCompleted("c8", "unknown", None, "done")
    ]


# -- the tool that is an answer


def in_form(call: str = "c1", **fields: Any) -> Line:
    return tool(call, "StructuredOutput", {"a": [1, 2.5], "n": 10**30}, **fields)


IN_FORM = '{"a":[1,2.5],"n":1000000000000000000000000000000}'


def test_structured_answer_is_reported_as_text() -> None:
    talk = working()

    said = talk.receive(in_form(), tool_result("c1", "Structured output provided successfully"))

    assert said == [ev.TextFinal(IN_FORM)]
    assert talk.dialect.state.tools == {}


def test_invalid_structured_answer_is_noted_with_the_reason() -> None:
    said = working().receive(in_form(), tool_result(content="/n: must be string", is_error=True))

    assert said[1:] == [ev.Note("the answer was refused: /n: must be string")]


def test_structured_answer_is_the_text_of_an_aborted_turn() -> None:
    talk = working()
    talk.receive(text("so far"), in_form())

    assert get_end(talk.receive(aborted())).text == IN_FORM


@pytest.mark.parametrize("lines", [[], [tool_result(content="STOP", is_error=True)]])
def test_interrupted_structured_answer_leaves_no_open_tool(lines: list[Line]) -> None:
    talk = working()
    talk.receive(in_form())
    stop = talk.dialect.interrupt()
    assert stop
    talk.send(stop)

    said = talk.receive(*lines, aborted())

    assert {type(each) for each in said} == {ev.StatsUpdated, TurnEnded}
    assert talk.dialect.state.tools == {}


def test_structured_answer_survives_a_saved_state() -> None:
    talk = working()
    talk.receive(in_form())
    saved = msgspec.msgpack.encode(talk.dialect.state)

    talk.dialect.state = msgspec.msgpack.decode(saved, type=ClaudeState)

    assert talk.receive(tool_result()) == []


def test_structured_answer_of_a_sub_agent_is_not_reported() -> None:
    talk = working()
    talk.receive(tool("c1", "Task"))

    said = talk.receive(
        in_form("c2", parent="c1"),
        tool_result("c2", "must be string", is_error=True, parent="c1"),
        in_form("c3", parent="c1"),
        tool_result("c3", parent="c1"),
    )

    assert said == []
    assert get_end(talk.receive(aborted())).text is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("tool_use", "mcp__forms__StructuredOutput"),
        ("tool_use", "structuredoutput"),
        ("mcp_tool_use", "StructuredOutput"),
        ("server_tool_use", "StructuredOutput"),
    ],
)
def test_other_tools_named_structured_output_are_reported(kind: str, name: str) -> None:
    use = {"type": kind, "id": "c1", "name": name, "input": {}}

    said = working().receive(assistant(use), tool_result())

    assert said == [ev.ToolStarted("c1", name, {}), ev.ToolCompleted("c1", name, {}, "done")]


# -- sub-agents


def test_tools_of_a_sub_agent_are_reported() -> None:
    talk = working()
    talk.receive(tool("c1", "Task"))

    said = talk.receive(tool("c2", "Read", parent="c1"), tool_result("c2", parent="c1"))

    assert [type(each) for each in said] == [ev.ToolStarted, ev.ToolCompleted]


def test_text_of_a_sub_agent_is_not_reported() -> None:
    talk = working()
    talk.receive(tool("c1", "Task"))

    said = talk.receive(
        user({"type": "text", "text": "look at this"}, parent="c1"),
        text("among ourselves", parent="c1"),
        text("overloaded", parent="c1", error="overloaded"),
        assistant({"type": "thinking", "thinking": "hm"}, parent="c1"),
        delta("among", parent="c1"),
        stream("message_delta", parent="c1", usage={"output_tokens": 5}),
    )
    end = get_end(talk.receive(result(None, is_error=True)))

    assert said == []
    assert end.error
    assert (end.text, end.error.code) == (None, "provider_error")


def test_tool_of_a_sub_agent_after_the_turn_is_not_reported() -> None:
    talk = working()
    talk.receive(result())

    assert talk.receive(tool("c2", parent="c1"), tool_result("c2", parent="c1")) == []


# -- in the background


def test_background_task_is_tracked_until_its_notification() -> None:
    talk = working()
    talk.receive(
        system("task_started", task_id="b1", tool_use_id="c1"), tool_result("c1"), result()
    )
    before = talk.dialect.has_background

    talk.receive(system("task_notification", task_id="b1", tool_use_id="c1", status="completed"))

    assert (before, talk.dialect.has_background) == (True, False)


@pytest.mark.parametrize(
    "line",
    [
        system("task_updated", task_id="b1", patch={"status": "killed"}),
        system("background_tasks_changed", tasks=[]),
        system("background_tasks_changed", tasks=[{"id": "b2"}]),
    ],
)
def test_background_task_ends_by_update_or_missing_from_the_list(line: Line) -> None:
    talk = working()
    talk.receive(system("task_started", task_id="b1", tool_use_id="c1"))

    talk.receive(line)

    assert "b1" not in talk.dialect.state.tasks


def test_task_of_an_aborted_tool_is_not_in_the_background() -> None:
    talk = working()
    talk.receive(tool(), system("task_started", task_id="b1", tool_use_id="c1"))
    before = talk.dialect.has_background

    talk.receive(aborted())

    assert (before, talk.dialect.has_background) == (False, False)


def test_exited_process_has_no_background_tasks() -> None:
    talk = working()
    talk.receive(system("task_started", task_id="b1"))

    talk.dialect.on_exit(ProcessExit(0))

    assert not talk.dialect.has_background


# -- pictures


def picture(data: str = "iVBORw==", kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def test_image_is_reported_and_replaced_by_its_name() -> None:
    talk = working()
    talk.receive(tool("c1", "Read"))

    said = talk.receive(tool_result("c1", [{"type": "text", "text": "see"}, picture()]))

    named = {"type": "image", "media_type": "image/png", "name": "image-1.png"}
    assert said[0] == ProducedImage("image-1.png", "image/png", b"\x89PNG")
    assert isinstance(said[1], ev.ToolCompleted)
    assert said[1].tool_output == [{"type": "text", "text": "see"}, named]


def test_same_image_is_reported_once_in_a_turn() -> None:
    talk = working()
    content = [picture(), picture("iVBORx==", "image/jpeg"), picture()]

    said = talk.receive(tool(), tool_result("c1", content), result())
    talk.turn("t2")
    again = talk.receive(tool(), tool_result("c1", content))

    names = [each.name for each in said if isinstance(each, ProducedImage)]
    assert names == ["image-1.png", "image-2.jpg"]
    assert [type(each) for each in again].count(ProducedImage) == 2


def test_at_most_ten_images_of_a_tool_are_reported() -> None:
    content = [picture(f"AAA{number}") for number in range(15)]

    said = working().receive(tool(), tool_result("c1", content))

    kinds = [type(each) for each in said]
    assert (kinds.count(ProducedImage), kinds.count(ev.Note)) == (10, 1)


def test_too_large_image_is_noted_and_left_out() -> None:
    said = working().receive(tool(), tool_result("c1", [picture("A" * (LARGEST_IMAGE_CHARS + 1))]))

    assert isinstance(said[1], ev.Note)
    assert len(msgspec.json.encode(said[2])) < 1000


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image"},
        {"type": "image", "source": {"type": "url", "url": "https://example.org"}},
        {"type": "image", "source": {"type": "base64", "media_type": 3, "data": "AAAA"}},
        picture(kind="text/html"),
        None,
    ],
)
def test_malformed_image_block_is_left_unchanged(part: Any) -> None:
    said = working().receive(tool(), tool_result("c1", [part]))

    assert isinstance(said[-1], ev.ToolCompleted)
    assert said[-1].tool_output == [part]
    assert len(said) == 2
