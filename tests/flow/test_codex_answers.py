"""The real Codex keeps approvals, schemas, images, MCP servers and limits of a run."""

import base64
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.dialect import Image, Refused, Verdict
from steadyrun.errors import AbilityMissing
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import (
    AnswerTokens,
    CallBlock,
    ModelAnswer,
    answer,
    call,
    text,
    thinking,
)
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.openai_common import build_codex_limit_headers
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep
from tests.support.real_cli_harness import (
    CODEX,
    PNG,
    CliHarness,
    RunRecord,
    approval_outcomes,
    cli_harness,
    count_sent,
    is_approval_request,
    run_with_verdicts,
    steer_and_wait,
    wait_for_event,
    wait_for_file,
    wait_for_gate,
)

RESETS_AT = 1794830000
# A child that speaks MCP: it has one tool, which says what it is told.
MCP_SERVER = """
import json, sys
TOOL = {"name": "echo", "description": "Say it.", "inputSchema": {
    "type": "object", "properties": {"text": {"type": "string"}}}}
for line in sys.stdin:
    told = json.loads(line)
    if "id" not in told:
        continue
    params = told.get("params") or {}
    if told["method"] == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "sim", "version": "1"}}
    elif told["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif told["method"] == "tools/call":
        text = params["arguments"]["text"]
        result = {"content": [{"type": "text", "text": "said " + text}], "isError": text == "no"}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": told["id"], "result": result}), flush=True)
"""


def escalated(command: str) -> ModelAnswer:
    """The model wants to run something that has to be asked for."""
    wish = {"sandbox_permissions": "require_escalated", "justification": "may I?"}
    return answer(call("exec_command", cmd=command, **wish))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- approvals


def test_a_command_is_allowed_or_denied(tmp_path: Path) -> None:
    script = [escalated("touch one"), escalated("touch two"), answer("So be it.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        played = run_with_verdicts(harness, [Verdict(True), Verdict(False, "not on a Monday")])

        assert (played.run.status, played.run.text) == ("completed", "So be it.")
        requests = played.events_of(ev.ApprovalRequested)
        assert ["touch one" in each.tool_input["command"] for each in requests] == [True, False]
        assert {(each.tool_name, each.tool_input["reason"]) for each in requests} == {
            ("commandExecution", "may I?")
        }
        tools = [tool.tool_call_id for tool in played.events_of(ev.ToolStarted)]
        assert [each.tool_call_id for each in requests] == tools
        assert approval_outcomes(played) == [("allow", "library"), ("deny", "library")]
        assert names_in(harness.cwd) == ["one"]
        [done], [denied] = played.events_of(ev.ToolCompleted), played.events_of(ev.ToolFailed)
        assert [done.tool_call_id, denied.tool_call_id] == tools
        assert denied.error == "declined"
        assert "rejected" in harness.server.main_requests[2].outputs[0]


def test_codex_cannot_run_a_changed_command(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work", mode="default")
            asking = await wait_for_event(run, is_approval_request)
            with pytest.raises(AbilityMissing):
                await run.decide(asking.approval, Verdict(True, input={"command": "touch other"}))
            await run.decide(asking.approval, Verdict(False))
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [escalated("touch one"), answer("So be it.")], cli=CODEX) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.text) == ("completed", "So be it.")
        assert approval_outcomes(played) == [("deny", "library")]
        assert names_in(harness.cwd) == []


def test_a_denial_may_end_the_turn(tmp_path: Path) -> None:
    with cli_harness(
        tmp_path, [escalated("touch one"), answer("Never said.")], cli=CODEX
    ) as harness:
        played = run_with_verdicts(harness, [Verdict(False, "enough", ends_turn=True)])

        assert (played.run.status, played.run.text) == ("cancelled", None)
        assert approval_outcomes(played) == [("deny", "library")]
        assert len(played.events_of(ev.ToolFailed)) == 1
        assert len(harness.server.main_requests) == 1
        assert names_in(harness.cwd) == []


def test_a_run_is_stopped_while_it_asks(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work", mode="default")
            await wait_for_event(run, is_approval_request)
            await run.cancel("no user is there")
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [escalated("touch one")], cli=CODEX) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert approval_outcomes(played) == [("cancelled", "provider")]
        assert len(harness.server.main_requests) == 1
        assert names_in(harness.cwd) == []


def test_a_follow_up_while_it_asks_is_taken_in_once_it_is_answered(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work", mode="default")
            asking = await wait_for_event(run, is_approval_request)
            await steer_and_wait(harness, run, "hurry up")
            await run.decide(asking.approval, Verdict(True))
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [escalated("touch one"), answer("Done.")], cli=CODEX) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        assert [(item.delivery, item.run) for item in played.items[1:]] == [
            ("absorbed", played.run.id)
        ]
        assert names_in(harness.cwd) == ["one"]
        assert count_sent(harness.server, "hurry up") == 1
        assert len(harness.server.main_requests) == 2


def adding(path: Path) -> ModelAnswer:
    """The model wants to add a file."""
    patch = f"*** Begin Patch\n*** Add File: {path}\n+hello\n*** End Patch"
    return answer(call("exec_command", cmd=f"apply_patch <<'EOF'\n{patch}\nEOF"))


def test_a_change_of_files_is_allowed_or_denied(tmp_path: Path) -> None:
    # Where it may write without a question: not all of /tmp, as it does by itself.
    table = {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}
    options = {"config": {"sandbox_workspace_write": table}}
    outside = tmp_path / "outside"
    outside.mkdir()
    script = [*(adding(outside / name) for name in ("one", "two")), answer("So be it.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        played = run_with_verdicts(harness, [Verdict(True), Verdict(False)])

        assert (played.run.status, played.run.text) == ("completed", "So be it.")
        requests = played.events_of(ev.ApprovalRequested)
        assert [each.tool_name for each in requests] == ["fileChange", "fileChange"]
        assert [each.tool_input["changes"][0]["path"] for each in requests] == [
            str(outside / "one"),
            str(outside / "two"),
        ]
        assert approval_outcomes(played) == [("allow", "library"), ("deny", "library")]
        assert names_in(outside) == ["one"]
        [denied] = played.events_of(ev.ToolFailed)
        assert (denied.tool_name, denied.error) == ("fileChange", "declined")


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "denied"])
def test_more_permissions_are_granted_or_not(tmp_path: Path, is_allowed: bool) -> None:
    wish = {"network": {"enabled": True}}
    script = [
        answer(call("request_permissions", permissions=wish, reason="I need it")),
        answer("So be it."),
    ]
    options = {"enabled_features": ["request_permissions_tool"]}
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        played = run_with_verdicts(harness, [Verdict(is_allowed)])

        assert (played.run.status, played.run.text) == ("completed", "So be it.")
        [request] = played.events_of(ev.ApprovalRequested)
        assert request.tool_name == "permissions"
        assert request.tool_input["permissions"]["network"] == {"enabled": True}
        assert request.tool_input["reason"] == "I need it"
        assert approval_outcomes(played) == [("allow" if is_allowed else "deny", "library")]
        granted = json.loads(harness.server.main_requests[1].outputs[0])["permissions"]
        assert bool(granted.get("network")) is is_allowed


# -- servers of tools


def served(folder: Path) -> dict[str, Any]:
    """The options of a provider that has our server."""
    program = folder / "server.py"
    program.write_text(MCP_SERVER)
    return {"mcp_servers": {"sim": {"command": sys.executable, "args": [str(program)]}}}


def echoing(words: str) -> ModelAnswer:
    return answer(CallBlock("echo", {"text": words}, namespace="mcp__sim"))


def test_the_tools_of_a_server_are_used(tmp_path: Path) -> None:
    script = [echoing("yes"), echoing("no"), answer("Done.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=served(tmp_path)) as harness:
        played = harness.run("say it")

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        names = [(tool.tool_name, tool.tool_input) for tool in played.events_of(ev.ToolStarted)]
        assert names == [("mcp__sim__echo", {"text": word}) for word in ("yes", "no")]
        [done], [failed] = played.events_of(ev.ToolCompleted), played.events_of(ev.ToolFailed)
        assert (done.tool_name, done.tool_output) == ("mcp__sim__echo", "said yes")
        assert (failed.tool_name, failed.tool_output) == ("mcp__sim__echo", "said no")
        first, second, _ = harness.server.main_requests
        assert "mcp__sim" in first.tools
        assert "said yes" in second.outputs[0]


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "denied"])
def test_the_tool_of_a_server_is_asked_for(tmp_path: Path, is_allowed: bool) -> None:
    script = [echoing("yes"), answer("Done.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=served(tmp_path)) as harness:
        played = run_with_verdicts(harness, [Verdict(is_allowed)])

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        [request] = played.events_of(ev.ApprovalRequested)
        assert (request.tool_name, request.tool_input) == ("mcp__sim__echo", {"text": "yes"})
        assert approval_outcomes(played) == [("allow" if is_allowed else "deny", "library")]
        done = [tool.tool_output for tool in played.events_of(ev.ToolCompleted)]
        assert done == (["said yes"] if is_allowed else [])
        assert ("said yes" in str(harness.server.main_requests[1].results)) is is_allowed


def test_a_server_that_does_not_start_is_noted(tmp_path: Path) -> None:
    options = {"mcp_servers": {"none": {"command": "/nonexistent"}}}
    with cli_harness(tmp_path, [answer("Without it.")], cli=CODEX, options=options) as harness:
        played = harness.run("go on")

        assert (played.run.status, played.run.text) == ("completed", "Without it.")
        assert any("none" in note.text for note in played.events_of(ev.Note))


# -- what is asked for

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
def test_options_of_a_run_reach_the_model(tmp_path: Path, is_one_shot: bool) -> None:
    options = {"one_shot": is_one_shot, "effort": "high", "base_instructions": "You are all new."}
    script = [answer('{"answer": 42}')]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        played = harness.run(
            "What is this?",
            schema=SCHEMA,
            model="gpt-5.5",
            system='You are a "test".\nIn two lines.',
            images=[Image("image/png", PNG), Image("image/png", PNG)],
        )

        assert played.run.status == "completed"
        assert json.loads(played.run.text or "") == {"answer": 42}
        [ask] = harness.server.main_requests
        wanted = ask.body["text"]["format"]
        assert (wanted["type"], wanted["schema"]) == ("json_schema", SCHEMA)
        assert ask.model == "gpt-5.5"
        assert ask.body["reasoning"]["effort"] == "high"
        told = developer_texts(ask)
        assert told[0] == "You are all new."
        assert 'You are a "test".\nIn two lines.' in told
        assert ask.user_text.endswith("What is this?")
        url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
        assert [url_of(part) for part in parts_of(ask) if part["type"] == "input_image"] == [
            url
        ] * 2


def parts_of(ask: ModelRequest) -> list[Mapping[str, Any]]:
    """The parts of all that was said."""
    return [part for item in ask.messages for part in item.get("content") or ()]


def url_of(part: Mapping[str, Any]) -> str:
    return str(part["image_url"])


def developer_texts(ask: ModelRequest) -> list[str]:
    told = [item for item in ask.messages if item.get("role") == "developer"]
    return [part["text"] for item in told for part in item["content"]]


def test_tokens_context_window_and_limits_are_recorded(tmp_path: Path) -> None:
    limits = {
        **build_codex_limit_headers(88, RESETS_AT),
        **build_codex_limit_headers(12, RESETS_AT, window_minutes=10080, slot="secondary"),
    }
    script = [
        answer(call("exec_command", cmd="true"), tokens=AnswerTokens(100, 20, 30, reasoning=7)),
        answer("Done.", tokens=AnswerTokens(200, 10, 60), headers=limits),
    ]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        played = harness.run("work", model="gpt-5.5")

        used = played.run.usage
        assert (used.input_tokens, used.cache_read_tokens) == (300, 90)
        assert (used.output_tokens, used.cache_write_tokens) == (30, 0)
        assert [each.usage.output_tokens for each in played.events_of(ev.UsageUpdated)] == [20, 30]
        # There is a price for this model, by which it is estimated.
        assert played.run.cost.kind == "estimated"
        assert played.run.cost.usd
        *_, stats = played.events_of(ev.StatsUpdated)
        assert (stats.model, stats.output_tokens, stats.cache_read_tokens) == ("gpt-5.5", 30, 90)
        assert (stats.context_window or 0) > 100_000
        resets = datetime.fromtimestamp(RESETS_AT, UTC)
        assert stats.limits == (
            ev.LimitWindow("primary", 88, 300, resets),
            ev.LimitWindow("secondary", 12, 10080, resets),
        )


# -- compaction


def compacting(ask: ModelRequest) -> ServerStep:
    """A model that works in rounds that fill its window, until it is compacted."""
    if "CONTEXT CHECKPOINT COMPACTION" in str(ask.messages[-1]):
        return answer("SO FAR: one round.", tokens=AnswerTokens(100, 50))
    if "SO FAR" in str(ask.messages):
        return answer("At last.")
    return answer(call("exec_command", cmd="echo round"), tokens=AnswerTokens(60_000, 10))


def test_a_conversation_is_compacted_in_mid_turn_and_goes_on(tmp_path: Path) -> None:
    options = {"auto_compact_token_limit": 50_000}
    with cli_harness(tmp_path, compacting, cli=CODEX, options=options) as harness:
        played = harness.run("work FOR LONG")

        assert (played.run.status, played.run.text) == ("completed", "At last.")
        assert [each.trigger for each in played.events_of(ev.CompactionStarted)] == ["auto"]
        [done] = played.events_of(ev.CompactionCompleted)
        assert done.tokens_before == 60_010
        assert 0 < (done.tokens_after or 0) < 50_000
        assert played.events_of(ev.CompactionFailed) == []
        _, summary, after = harness.server.main_requests
        assert summary.tools == ()
        assert count_sent(harness.server, "SO FAR: one round.") == 1
        assert "SO FAR: one round." in str(after.messages)
        # It has one token, and all that was used is counted.
        assert len(played.events_of(ev.TokenBound)) == 1
        assert played.events_of(ev.TokenRotated) == []
        assert played.run.usage.input_tokens == 60_000 + 100 + 10
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["At last."]


# -- going on


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
def test_a_conversation_goes_on_in_another_process(tmp_path: Path, is_one_shot: bool) -> None:
    options = {"one_shot": is_one_shot}
    script = [answer("Noted."), answer(call("exec_command", cmd="echo hi")), answer("A cat.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        first = harness.run("Remember a cat.", model="one-model")
        token = first.run.resume_token
        second = harness.run("--What was it?", resume=token)

        assert (second.run.status, second.run.text) == ("completed", "A cat.")
        assert token
        assert second.run.resume_token == token
        assert [each.token for each in second.events_of(ev.TokenBound)] == [token]
        assert [tool.tool_output for tool in second.events_of(ev.ToolCompleted)] == ["hi\n"]
        asks = harness.server.main_requests
        assert ["Remember a cat." in str(ask.messages) for ask in asks] == [True] * 3
        assert ["Noted." in str(ask.messages) for ask in asks] == [False, True, True]
        assert [ask.user_text for ask in asks] == ["Remember a cat.", "--What was it?", ""]
        assert [ask.model for ask in asks] == ["one-model"] * 3
        # What the first has used is not said to be used by the second.
        assert second.run.usage.input_tokens == (None if is_one_shot else 20)


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
@pytest.mark.parametrize("token", ["01a1e3f4-0000-7000-8000-000000000000", "no-id"])
def test_a_conversation_that_is_not_there_is_refused_or_begun_anew(
    tmp_path: Path, is_one_shot: bool, token: str
) -> None:
    options = {"one_shot": is_one_shot}
    with cli_harness(tmp_path, [answer("Anew.")], cli=CODEX, options=options) as harness:
        refused = harness.run("What was it?", resume=token).run
        asked_then = len(harness.server.main_requests)
        anew = harness.run("What was it?", resume=token, or_fresh=True)

        assert refused.status == "failed"
        assert refused.error
        assert (refused.error.code, refused.error.retryable) == ("resume_not_found", False)
        assert refused.error.hint
        assert asked_then == 0
        assert (anew.run.status, anew.run.text) == ("completed", "Anew.")
        assert anew.run.resume_token not in {None, token}
        assert [ask.user_text for ask in harness.server.main_requests] == ["What was it?"]


# -- a process for one turn


def test_a_process_for_one_turn_takes_a_long_prompt_and_no_follow_up(tmp_path: Path) -> None:
    gate, prompt = StreamGate(), "--many words " * 26_000 + "end"

    async def main(harness: CliHarness) -> tuple[RunRecord, object]:
        async with harness.library() as library:
            run = await harness.start(library, prompt)
            await wait_for_gate(gate)
            offered = await run.steer("one more")
            gate.open()
            return await harness.read_record(await run.result()), offered

    script = [
        answer(thinking("Hm."), "I look.", call("exec_command", cmd="echo hi; exit 3")),
        answer(text("All ", gate, "read."), tokens=AnswerTokens(100, 20, 30)),
    ]
    with cli_harness(tmp_path, script, cli=CODEX, options={"one_shot": True}) as harness:
        played, offered = anyio.run(main, harness)

        assert len(prompt) > 300_000
        assert isinstance(offered, Refused)
        assert (played.run.status, played.run.text) == ("completed", "All read.")
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["I look.", "All read."]
        [failed] = played.events_of(ev.ToolFailed)
        assert (failed.tool_name, failed.tool_output) == ("commandExecution", "hi\n")
        assert failed.error == "exit code 3"
        assert [played.run.usage.input_tokens, played.run.usage.cache_read_tokens] == [110, 30]
        first, _ = harness.server.main_requests
        assert first.user_text == prompt
        assert count_sent(harness.server, "one more") == 0


@pytest.mark.parametrize("is_in_tool", [False, True], ids=["streaming", "in a command"])
def test_a_process_for_one_turn_is_stopped(tmp_path: Path, is_in_tool: bool) -> None:
    begun = tmp_path / "begun"
    step = call("exec_command", cmd=f"touch {begun}; sleep 1000")

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work")
            await (wait_for_file(begun) if is_in_tool else wait_for_gate(gate))
            await run.cancel("enough")
            return await harness.read_record(await run.result())

    gate = StreamGate()
    said = answer(step) if is_in_tool else answer(text("Hel", gate, "lo."))
    with cli_harness(tmp_path, [said], cli=CODEX, options={"one_shot": True}) as harness:
        played = anyio.run(main, harness)

        # That nothing is left of it is what a stage looks for.
        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert len(harness.server.main_requests) == 1
