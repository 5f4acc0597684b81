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
    result,
    stream,
    system,
    text,
    the_end,
    tool,
    tool_result,
    user,
    working,
)

# -- tools


def test_a_tool_is_reported_at_its_start_and_end() -> None:
    given_ = {"command": "ls", "n": 10**30}

    said = working().hear(tool(given=given_), tool_result(content="a b"))

    assert said == [
        ev.ToolStarted("c1", "Bash", given_),
        ev.ToolCompleted("c1", "Bash", given_, "a b"),
    ]


def test_a_failed_tool_has_its_error() -> None:
    blocks = [{"type": "text", "text": "not"}, {"type": "text", "text": "there"}, 3]
    talk = working()
    talk.hear(tool())

    [failed] = talk.hear(tool_result(content=blocks, is_error=True))

    assert failed == ev.ToolFailed("c1", "Bash", {"command": "ls"}, blocks, "not\nthere")


def test_tools_side_by_side_end_in_any_order() -> None:
    talk = working()
    talk.hear(tool("c1", "Read"), tool("c2", "Grep"))
    blocks = [
        {"type": "tool_result", "tool_use_id": call, "content": call} for call in ("c2", "c1")
    ]

    said = talk.hear(user(*blocks))

    ends = [(each.tool_call_id, each.tool_name) for each in said
            if isinstance(each, ev.ToolCompleted)]  # fmt: skip
    assert ends == [("c2", "Grep"), ("c1", "Read")]


def test_a_tool_of_the_server_ends_in_the_answer() -> None:
    use = {"type": "server_tool_use", "id": "c1", "name": "web_search", "input": {"query": "x"}}
    end = {"type": "web_search_tool_result", "tool_use_id": "c1", "content": []}

    said = working().hear(assistant(use, end))

    assert [type(each) for each in said] == [ev.ToolStarted, ev.ToolCompleted]


def test_the_end_of_an_unknown_tool_is_reported_during_a_turn() -> None:
    talk = working()

    assert talk.hear(tool_result("c9")) == [ev.ToolCompleted("c9", "unknown", None, "done")]
    assert talk.hear(result(), tool_result("c8"))[-1:] != [
        ev.ToolCompleted("c8", "unknown", None, "done")
    ]


# -- the tool that is an answer


def in_form(call: str = "c1", **fields: Any) -> Line:
    return tool(call, "StructuredOutput", {"a": [1, 2.5], "n": 10**30}, **fields)


IN_FORM = '{"a":[1,2.5],"n":1000000000000000000000000000000}'


def test_a_structured_answer_is_reported_as_text() -> None:
    talk = working()

    said = talk.hear(in_form(), tool_result("c1", "Structured output provided successfully"))

    assert said == [ev.TextFinal(IN_FORM)]
    assert talk.dialect.state.tools == {}


def test_an_answer_that_does_not_fit_is_turned_down_with_the_reason() -> None:
    said = working().hear(in_form(), tool_result(content="/n: must be string", is_error=True))

    assert said[1:] == [ev.Note("the answer was turned down: /n: must be string")]


def test_an_answer_in_a_form_is_the_text_of_a_turn_that_ends_without() -> None:
    talk = working()
    talk.hear(text("so far"), in_form())

    assert the_end(talk.hear(aborted())).text == IN_FORM


@pytest.mark.parametrize("lines", [[], [tool_result(content="STOP", is_error=True)]])
def test_an_answer_that_was_cut_off_leaves_nothing_behind(lines: list[Line]) -> None:
    talk = working()
    talk.hear(in_form())
    stop = talk.dialect.interrupt()
    assert stop
    talk.tell(stop)

    said = talk.hear(*lines, aborted())

    assert {type(each) for each in said} == {ev.StatsUpdated, TurnEnded}
    assert talk.dialect.state.tools == {}


def test_a_structured_answer_survives_a_takeover() -> None:
    talk = working()
    talk.hear(in_form())
    saved = msgspec.msgpack.encode(talk.dialect.state)

    talk.dialect.state = msgspec.msgpack.decode(saved, type=ClaudeState)

    assert talk.hear(tool_result()) == []


def test_a_sub_agent_answers_the_agent_that_has_sent_it() -> None:
    talk = working()
    talk.hear(tool("c1", "Task"))

    said = talk.hear(
        in_form("c2", parent="c1"),
        tool_result("c2", "must be string", is_error=True, parent="c1"),
        in_form("c3", parent="c1"),
        tool_result("c3", parent="c1"),
    )

    assert said == []
    assert the_end(talk.hear(aborted())).text is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("tool_use", "mcp__forms__StructuredOutput"),
        ("tool_use", "structuredoutput"),
        ("mcp_tool_use", "StructuredOutput"),
        ("server_tool_use", "StructuredOutput"),
    ],
)
def test_an_mcp_tool_of_the_same_name_is_a_tool(kind: str, name: str) -> None:
    use = {"type": kind, "id": "c1", "name": name, "input": {}}

    said = working().hear(assistant(use), tool_result())

    assert said == [ev.ToolStarted("c1", name, {}), ev.ToolCompleted("c1", name, {}, "done")]


# -- sub-agents


def test_the_tools_of_a_sub_agent_are_reported() -> None:
    talk = working()
    talk.hear(tool("c1", "Task"))

    said = talk.hear(tool("c2", "Read", parent="c1"), tool_result("c2", parent="c1"))

    assert [type(each) for each in said] == [ev.ToolStarted, ev.ToolCompleted]


def test_the_text_of_a_sub_agent_is_not_reported() -> None:
    talk = working()
    talk.hear(tool("c1", "Task"))

    said = talk.hear(
        user({"type": "text", "text": "look at this"}, parent="c1"),
        text("among ourselves", parent="c1"),
        text("overloaded", parent="c1", error="overloaded"),
        assistant({"type": "thinking", "thinking": "hm"}, parent="c1"),
        delta("among", parent="c1"),
        stream("message_delta", parent="c1", usage={"output_tokens": 5}),
    )
    end = the_end(talk.hear(result(None, is_error=True)))

    assert said == []
    assert end.error
    assert (end.text, end.error.code) == (None, "provider_error")


def test_a_sub_agent_that_outlives_the_turn_begins_no_tool() -> None:
    talk = working()
    talk.hear(result())

    assert talk.hear(tool("c2", parent="c1"), tool_result("c2", parent="c1")) == []


# -- in the background


def test_a_task_that_goes_on_is_known_until_it_ends() -> None:
    talk = working()
    talk.hear(system("task_started", task_id="b1", tool_use_id="c1"), tool_result("c1"), result())
    before = talk.dialect.has_background

    talk.hear(system("task_notification", task_id="b1", tool_use_id="c1", status="completed"))

    assert (before, talk.dialect.has_background) == (True, False)


@pytest.mark.parametrize(
    "line",
    [
        system("task_updated", task_id="b1", patch={"status": "killed"}),
        system("background_tasks_changed", tasks=[]),
        system("background_tasks_changed", tasks=[{"id": "b2"}]),
    ],
)
def test_a_task_ends_in_many_ways(line: Line) -> None:
    talk = working()
    talk.hear(system("task_started", task_id="b1", tool_use_id="c1"))

    talk.hear(line)

    assert "b1" not in talk.dialect.state.tasks


def test_a_task_whose_tool_was_cut_off_is_not_in_the_background() -> None:
    talk = working()
    talk.hear(tool(), system("task_started", task_id="b1", tool_use_id="c1"))
    before = talk.dialect.has_background

    talk.hear(aborted())

    assert (before, talk.dialect.has_background) == (False, False)


def test_nothing_is_in_the_background_of_a_process_that_is_gone() -> None:
    talk = working()
    talk.hear(system("task_started", task_id="b1"))

    talk.dialect.on_exit(ProcessExit(0))

    assert not talk.dialect.has_background


# -- pictures


def picture(data: str = "iVBORw==", kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def test_an_image_is_reported_and_its_name_takes_its_place() -> None:
    talk = working()
    talk.hear(tool("c1", "Read"))

    said = talk.hear(tool_result("c1", [{"type": "text", "text": "see"}, picture()]))

    named = {"type": "image", "media_type": "image/png", "name": "image-1.png"}
    assert said[0] == ProducedImage("image-1.png", "image/png", b"\x89PNG")
    assert isinstance(said[1], ev.ToolCompleted)
    assert said[1].tool_output == [{"type": "text", "text": "see"}, named]


def test_the_same_image_is_reported_once_in_a_turn() -> None:
    talk = working()
    content = [picture(), picture("iVBORx==", "image/jpeg"), picture()]

    said = talk.hear(tool(), tool_result("c1", content), result())
    talk.turn("t2")
    again = talk.hear(tool(), tool_result("c1", content))

    names = [each.name for each in said if isinstance(each, ProducedImage)]
    assert names == ["image-1.png", "image-2.jpg"]
    assert [type(each) for each in again].count(ProducedImage) == 2


def test_there_is_an_end_to_pictures() -> None:
    content = [picture(f"AAA{number}") for number in range(15)]

    said = working().hear(tool(), tool_result("c1", content))

    kinds = [type(each) for each in said]
    assert (kinds.count(ProducedImage), kinds.count(ev.Note)) == (10, 1)


def test_a_picture_may_be_too_large() -> None:
    said = working().hear(tool(), tool_result("c1", [picture("A" * (LARGEST_IMAGE_CHARS + 1))]))

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
def test_what_has_not_the_shape_of_a_picture_is_none(part: Any) -> None:
    said = working().hear(tool(), tool_result("c1", [part]))

    assert isinstance(said[-1], ev.ToolCompleted)
    assert said[-1].tool_output == [part]
    assert len(said) == 2
