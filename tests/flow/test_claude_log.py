"""The session log of Claude Code has nothing that it did not print.

Its log would be a second witness of the tools that were used. As long as this holds, the
provider does not need to read it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import ModelAnswer, answer, call
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.support.real_cli_harness import CliHarness, RunRecord, cli_harness

SEARCH = "find out what is in the file"


def logged(harness: CliHarness) -> Iterator[dict[str, Any]]:
    """The blocks of all messages in all logs, those of sub-agents too."""
    for file in harness.user.glob(".claude/projects/**/*.jsonl"):
        for line in file.read_text().splitlines():
            content = json.loads(line).get("message", {}).get("content", ())
            yield from (block for block in content if isinstance(block, dict))


def tools_in_log(harness: CliHarness) -> tuple[set[str], set[str]]:
    """The tools that were called, and those that have ended."""
    blocks = list(logged(harness))
    called = {block["id"] for block in blocks if block.get("type") == "tool_use"}
    ended = {block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"}
    return called, ended


def tools_in_record(record: RunRecord) -> tuple[set[str], set[str]]:
    called = {tool.tool_call_id for tool in record.events_of(ev.ToolStarted)}
    ended = {tool.tool_call_id for tool in record.events_of(ev.ToolCompleted)}
    return called, ended | {tool.tool_call_id for tool in record.events_of(ev.ToolFailed)}


def delegate(ask: ModelRequest) -> ModelAnswer:
    """The first agent asks another one to look; that one reads a file."""
    is_delegate = SEARCH in str(ask.messages[0])
    if ask.results:
        return answer("It says: in a." if is_delegate else "Done.")
    if is_delegate:
        return answer(call("Bash", command="echo in a"), call("Bash", command="exit 3"))
    return answer(
        call("Agent", description="look", prompt=SEARCH, subagent_type="general-purpose"),
        call("Bash", command="echo in parallel"),
    )


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["many turns", "one shot"])
def test_every_tool_in_the_log_is_in_the_record(tmp_path: Path, is_one_shot: bool) -> None:
    options = {"one_shot": is_one_shot}
    with cli_harness(tmp_path, delegate, options=options) as harness:
        record = harness.run("ask an agent to look")

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        assert [text.text for text in record.events_of(ev.TextFinal)] == ["Done."]
        assert [tool.tool_name for tool in record.events_of(ev.ToolFailed)] == ["Bash"]
        called, ended = tools_in_log(harness)
        assert len(called) == 4
        assert (called, ended) == tools_in_record(record)
