"""Real CLIs keep approvals, schemas, images, limits and options of a run."""

import base64
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steadyrun.dialect import Image, Refused, Verdict
from steadyrun.errors import AbilityMissing
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import (
    AnswerTokens,
    CallBlock,
    ModelAnswer,
    answer,
    call,
    make_text,
    make_thinking,
)
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.openai_common import build_codex_limit_headers
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    PNG,
    Cli,
    RunRecord,
    approval_outcomes,
    cli_harness,
    count_sent,
    each_cli,
    each_codex,
    final_texts,
    list_names,
    run_with_verdicts,
    steer_and_wait,
    wait_for_event,
    wait_for_file,
    wait_for_gate,
)

RESETS_AT = 1794830000
# An MCP server with one tool, which repeats a text.
MCP_SERVER = """
import json, sys
TOOL = {"name": "echo", "description": "Say it.", "inputSchema": {
    "type": "object", "properties": {"text": {"type": "string"}}}}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    params = request.get("params") or {}
    if request["method"] == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "sim", "version": "1"}}
    elif request["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif request["method"] == "tools/call":
        text = params["arguments"]["text"]
        result = {"content": [{"type": "text", "text": "said " + text}], "isError": text == "no"}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def request_touch(cli: Cli, name: str) -> ModelAnswer:
    """The model makes a file by a command that must be approved."""
    return answer(cli.request_command(f"touch {name}"))


# -- approvals


@each_cli
def test_command_is_run_if_allowed_and_not_if_denied(tmp_path: Path, cli: Cli) -> None:
    verdicts = {"one": Verdict(True), "three": Verdict(False, "not on a Monday")}
    if cli is CLAUDE:
        changed = Verdict(True, input={"command": "touch other"})
        verdicts = {"one": verdicts["one"], "two": changed, "three": verdicts["three"]}
    script = [*(request_touch(cli, name) for name in verdicts), answer("So be it.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        record = run_with_verdicts(harness, list(verdicts.values()))

        assert (record.run.status, record.run.text) == ("completed", "So be it.")
        requests = record.events_of(ev.ApprovalRequested)
        commands = [each.tool_input["command"] for each in requests]
        assert [f"touch {name}" in commands[n] for n, name in enumerate(verdicts)] == [True] * len(
            verdicts
        )
        assert {each.tool_name for each in requests} == {cli.command_tool}
        tools = [tool.tool_call_id for tool in record.events_of(ev.ToolStarted)]
        assert [each.tool_call_id for each in requests] == tools
        allowed = [("allow", "library")] * (len(verdicts) - 1)
        assert approval_outcomes(record) == [*allowed, ("deny", "library")]
        done, [denied] = record.events_of(ev.ToolCompleted), record.events_of(ev.ToolFailed)
        assert [*(tool.tool_call_id for tool in done), denied.tool_call_id] == tools
        last = harness.server.main_requests[-1]
        if cli is CLAUDE:
            assert list_names(harness.cwd) == ["one", "other"]
            assert [tool.tool_input["command"] for tool in done] == ["touch one", "touch other"]
            assert denied.error == "not on a Monday"
            assert (last.outputs, last.results[0]["is_error"]) == (("not on a Monday",), True)
        else:
            assert list_names(harness.cwd) == ["one"]
            assert {each.tool_input["reason"] for each in requests} == {"may I?"}
            assert denied.error == "declined"
            assert "rejected" in last.outputs[0]


def test_codex_cannot_run_a_changed_command(tmp_path: Path) -> None:
    async def decide(run: RunHandle) -> None:
        request = await wait_for_event(run, ev.ApprovalRequested)
        with pytest.raises(AbilityMissing):
            await run.decide(request.approval, Verdict(True, input={"command": "touch other"}))
        await run.decide(request.approval, Verdict(False))

    script = [request_touch(CODEX, "one"), answer("So be it.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        record = harness.run("work", decide, mode="default")

        assert (record.run.status, record.run.text) == ("completed", "So be it.")
        assert approval_outcomes(record) == [("deny", "library")]
        assert list_names(harness.cwd) == []


@each_cli
def test_denial_can_end_the_turn(tmp_path: Path, cli: Cli) -> None:
    script = [request_touch(cli, "one"), answer("Never said.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        record = run_with_verdicts(harness, [Verdict(False, "enough", ends_turn=True)])

        assert (record.run.status, record.run.text) == ("cancelled", None)
        assert approval_outcomes(record) == [("deny", "library")]
        assert len(record.events_of(ev.ToolFailed)) == 1
        assert len(harness.server.main_requests) == 1
        assert list_names(harness.cwd) == []


@each_cli
def test_cancel_withdraws_a_requested_approval(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, [request_touch(cli, "one")], cli=cli) as harness:
        record = harness.run("work", cancel_at_approval, mode="default")

        assert (record.run.status, record.run.stop_reason) == ("cancelled", "user_stop")
        assert approval_outcomes(record) == [("cancelled", "provider")]
        assert len(harness.server.main_requests) == 1
        assert list_names(harness.cwd) == []


async def cancel_at_approval(run: RunHandle) -> None:
    await wait_for_event(run, ev.ApprovalRequested)
    await run.cancel("no user is there")


@each_cli
def test_message_sent_before_a_verdict_is_absorbed_after_it(tmp_path: Path, cli: Cli) -> None:
    script = [request_touch(cli, "one"), answer("Done.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def steer_and_allow(run: RunHandle) -> None:
            request = await wait_for_event(run, ev.ApprovalRequested)
            await steer_and_wait(harness, run, "hurry up")
            await run.decide(request.approval, Verdict(True))

        record = harness.run("work", steer_and_allow, mode="default")

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        deliveries = [(item.delivery, item.run) for item in record.items[1:]]
        assert deliveries == [("absorbed", record.run.id)]
        assert list_names(harness.cwd) == ["one"]
        assert count_sent(harness.server, "hurry up") == 1
        assert len(harness.server.main_requests) == 2


def add_file(path: Path) -> ModelAnswer:
    """The model adds a file by a patch."""
    patch = f"*** Begin Patch\n*** Add File: {path}\n+hello\n*** End Patch"
    return answer(CODEX.run_command(f"apply_patch <<'EOF'\n{patch}\nEOF"))


def test_patch_of_codex_is_allowed_or_denied(tmp_path: Path) -> None:
    # By default Codex writes to all of /tmp without an approval.
    table = {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}
    options = {"config": {"sandbox_workspace_write": table}}
    outside = tmp_path / "outside"
    outside.mkdir()
    paths = [outside / name for name in ("one", "two")]
    script = [*map(add_file, paths), answer("So be it.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        record = run_with_verdicts(harness, [Verdict(True), Verdict(False)])

        assert (record.run.status, record.run.text) == ("completed", "So be it.")
        requests = record.events_of(ev.ApprovalRequested)
        assert [each.tool_name for each in requests] == ["fileChange", "fileChange"]
        requested = [each.tool_input["changes"][0]["path"] for each in requests]
        assert requested == [*map(str, paths)]
        assert approval_outcomes(record) == [("allow", "library"), ("deny", "library")]
        assert list_names(outside) == ["one"]
        [denied] = record.events_of(ev.ToolFailed)
        assert (denied.tool_name, denied.error) == ("fileChange", "declined")


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "denied"])
def test_permissions_that_codex_requests_are_granted_or_denied(
    tmp_path: Path, is_allowed: bool
) -> None:
    permissions = {"network": {"enabled": True}}
    script = [
        answer(call("request_permissions", permissions=permissions, reason="I need it")),
        answer("So be it."),
    ]
    options = {"enabled_features": ["request_permissions_tool"]}
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        record = run_with_verdicts(harness, [Verdict(is_allowed)])

        assert (record.run.status, record.run.text) == ("completed", "So be it.")
        [request] = record.events_of(ev.ApprovalRequested)
        assert request.tool_name == "permissions"
        assert request.tool_input["permissions"]["network"] == {"enabled": True}
        assert request.tool_input["reason"] == "I need it"
        assert approval_outcomes(record) == [("allow" if is_allowed else "deny", "library")]
        granted = json.loads(harness.server.main_requests[1].outputs[0])["permissions"]
        assert bool(granted.get("network")) is is_allowed


# -- MCP servers of Codex


def configure_server(folder: Path) -> dict[str, Any]:
    """The options of a provider that has the MCP server."""
    program = folder / "server.py"
    program.write_text(MCP_SERVER)
    return {"mcp_servers": {"sim": {"command": sys.executable, "args": [str(program)]}}}


def call_echo(text: str) -> ModelAnswer:
    return answer(CallBlock("echo", {"text": text}, namespace="mcp__sim"))


def test_tools_of_an_mcp_server_are_used(tmp_path: Path) -> None:
    script, options = (
        [call_echo("yes"), call_echo("no"), answer("Done.")],
        configure_server(tmp_path),
    )
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        record = harness.run("say it")

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        names = [(tool.tool_name, tool.tool_input) for tool in record.events_of(ev.ToolStarted)]
        assert names == [("mcp__sim__echo", {"text": text}) for text in ("yes", "no")]
        [done], [failed] = record.events_of(ev.ToolCompleted), record.events_of(ev.ToolFailed)
        assert (done.tool_name, done.tool_output) == ("mcp__sim__echo", "said yes")
        assert (failed.tool_name, failed.tool_output) == ("mcp__sim__echo", "said no")
        first, second, _ = harness.server.main_requests
        assert "mcp__sim" in first.tools
        assert "said yes" in second.outputs[0]


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "denied"])
def test_tool_of_an_mcp_server_is_allowed_or_denied(tmp_path: Path, is_allowed: bool) -> None:
    script, options = [call_echo("yes"), answer("Done.")], configure_server(tmp_path)
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        record = run_with_verdicts(harness, [Verdict(is_allowed)])

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        [request] = record.events_of(ev.ApprovalRequested)
        assert (request.tool_name, request.tool_input) == ("mcp__sim__echo", {"text": "yes"})
        assert approval_outcomes(record) == [("allow" if is_allowed else "deny", "library")]
        done = [tool.tool_output for tool in record.events_of(ev.ToolCompleted)]
        assert done == (["said yes"] if is_allowed else [])
        assert ("said yes" in str(harness.server.main_requests[1].results)) is is_allowed


def test_mcp_server_that_does_not_start_is_noted(tmp_path: Path) -> None:
    options = {"mcp_servers": {"none": {"command": "/nonexistent"}}}
    with cli_harness(tmp_path, [answer("Without it.")], cli=CODEX, options=options) as harness:
        record = harness.run("go on")

        assert (record.run.status, record.run.text) == ("completed", "Without it.")
        assert any("none" in note.text for note in record.events_of(ev.Note))


# -- schemas

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
# Claude Code answers a schema by a tool, which a user may set to require an approval.
ASK_FOR_ANSWERS = {"settings": {"permissions": {"ask": ["StructuredOutput"]}}}


def answer_schema(value: Any) -> ModelAnswer:
    return answer(call("StructuredOutput", answer=value))


def tool_events(record: RunRecord) -> list[object]:
    kinds = (ev.ToolStarted, ev.ToolCompleted, ev.ToolFailed)
    return [seen.event for seen in record.stored if isinstance(seen.event, kinds)]


def test_claude_is_asked_again_until_its_answer_fits_the_schema(tmp_path: Path) -> None:
    script = [answer("Forty-two."), answer_schema("forty-two"), answer_schema(42)]
    with cli_harness(tmp_path, script) as harness:
        record = harness.run("What is six times seven?", schema=SCHEMA)

        assert (record.run.status, record.run.text) == ("completed", '{"answer":42}')
        assert final_texts(record) == ["Forty-two.", '{"answer":"forty-two"}', '{"answer":42}']
        [why] = record.events_of(ev.Note)
        assert "must be integer" in why.text
        assert (tool_events(record), record.run.tools) == ([], 0)
        assert len(harness.server.main_requests) == 3
        [mismatch] = harness.server.main_requests[2].results
        assert mismatch["is_error"]


def test_answer_that_never_fits_the_schema_fails_the_run(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer_schema("forty-two")] * 9) as harness:
        record = harness.run("What is six times seven?", schema=SCHEMA)

        assert record.run.status == "failed"
        assert record.run.error is not None
        assert record.run.error.code == "schema_unmet"
        requests = len(harness.server.main_requests)
        assert len(record.events_of(ev.Note)) == len(final_texts(record)) == requests
        assert tool_events(record) == []


def test_answer_for_a_schema_may_require_an_approval(tmp_path: Path) -> None:
    verdicts = [Verdict(False, "think again"), Verdict(True)]
    script = [answer_schema(41), answer_schema(42)]
    with cli_harness(tmp_path, script, options=ASK_FOR_ANSWERS) as harness:
        record = run_with_verdicts(harness, verdicts, schema=SCHEMA)

        assert (record.run.status, record.run.text) == ("completed", '{"answer":42}')
        assert approval_outcomes(record) == [("deny", "library"), ("allow", "library")]
        assert final_texts(record) == ['{"answer":41}', '{"answer":42}']
        assert [note.text.endswith(": think again") for note in record.events_of(ev.Note)] == [True]
        assert tool_events(record) == []


def test_cancel_withdraws_the_approval_of_an_answer_for_a_schema(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer_schema(42)], options=ASK_FOR_ANSWERS) as harness:
        record = harness.run("work", cancel_at_approval, mode="default", schema=SCHEMA)

        assert (record.run.status, record.run.stop_reason) == ("cancelled", "user_stop")
        assert approval_outcomes(record) == [("cancelled", "provider")]
        assert final_texts(record) == ['{"answer":42}']
        assert (tool_events(record), record.events_of(ev.Note)) == ([], [])


# -- images and options


def test_images_are_sent_to_claude_and_recorded_from_its_tools(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    script = [answer(call("Read", file_path=str(picture))), answer("Two dots.")]
    with cli_harness(tmp_path, script) as harness:
        record = harness.run("What is this?", images=[Image("image/png", PNG)])

        assert record.run.status == "completed"
        [produced] = record.events_of(ev.ImageProduced)
        assert (produced.media_type, produced.size_bytes) == ("image/png", len(PNG))
        assert produced.file is not None
        assert (harness.home / produced.file).read_bytes() == PNG
        [tool] = record.events_of(ev.ToolCompleted)
        image = {"type": "image", "media_type": "image/png", "name": produced.name}
        assert tool.tool_output == [image]
        first, second = harness.server.main_requests
        images = [each["source"]["data"] for each in first.new_items if each["type"] == "image"]
        assert images == [base64.b64encode(PNG).decode()]
        # The second request has the first image in its history, and that of the tool as new.
        assert [block["type"] for block in second.new_items] == ["tool_result"]
        assert [part["type"] for part in second.results[0]["content"]] == ["image"]


@each_codex
def test_options_of_a_run_reach_the_model_of_codex(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {**options, "effort": "high", "base_instructions": "You are all new."}
    with cli_harness(tmp_path, [answer('{"answer": 42}')], cli=CODEX, options=options) as harness:
        record = harness.run(
            "What is this?",
            schema=SCHEMA,
            model="gpt-5.5",
            system='You are a "test".\nIn two lines.',
            images=[Image("image/png", PNG), Image("image/png", PNG)],
        )

        assert record.run.status == "completed"
        assert json.loads(record.run.text or "") == {"answer": 42}
        [request] = harness.server.main_requests
        wanted = request.body["text"]["format"]
        assert (wanted["type"], wanted["schema"]) == ("json_schema", SCHEMA)
        assert request.model == "gpt-5.5"
        assert request.body["reasoning"]["effort"] == "high"
        instructions = [part["text"] for part in list_parts(request, "developer")]
        assert instructions[0] == "You are all new."
        assert 'You are a "test".\nIn two lines.' in instructions
        assert request.user_text.endswith("What is this?")
        url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
        images = [part for part in list_parts(request, "user") if part["type"] == "input_image"]
        assert [part["image_url"] for part in images] == [url] * 2


def list_parts(request: ModelRequest, role: str) -> list[Mapping[str, Any]]:
    """The parts of all messages of a role."""
    messages = [item for item in request.messages if item.get("role") == role]
    return [part for item in messages for part in item["content"]]


def test_system_prompt_and_tools_of_a_run_reach_the_model_of_claude(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("Yes.")]) as harness:
        run = harness.run("Are you?", system="You are a test.", tools=["Read", "Bash"]).run

        assert run.status == "completed"
        [request] = harness.server.main_requests
        assert sorted(request.tools) == ["Bash", "Read"]
        assert request.body["system"][-1]["text"] == "You are a test."
        assert "You are Claude Code" not in str(request.body["system"])


# -- limits


@pytest.mark.parametrize(
    ("limit", "code", "stop_reason", "rounds"),
    [
        ({"max_turns": 2}, "max_turns", None, 2),
        ({"max_cost_usd": 0.02}, "max_cost", "budget", 1),
    ],
    ids=["turns", "cost"],
)
def test_claude_ends_a_run_at_its_limit(
    tmp_path: Path, limit: dict[str, Any], code: str, stop_reason: str | None, rounds: int
) -> None:
    step = answer("Once more.", call("Bash", command="echo on"), tokens=AnswerTokens(1000, 1000))
    with cli_harness(tmp_path, lambda _: step) as harness:
        run = harness.run("go on", **limit).run

        assert (run.status, run.stop_reason, run.text) == ("failed", stop_reason, "Once more.")
        assert run.error
        assert (run.error.code, run.error.retryable) == (code, False)
        assert run.error.hint
        assert len(harness.server.main_requests) == rounds
        assert run.usage.output_tokens == 1000 * rounds
        assert run.cost.usd == pytest.approx(0.03 * rounds)


def test_tokens_context_window_and_limits_of_codex_are_recorded(tmp_path: Path) -> None:
    limits = {
        **build_codex_limit_headers(88, RESETS_AT),
        **build_codex_limit_headers(12, RESETS_AT, window_minutes=10080, slot="secondary"),
    }
    script = [
        answer(CODEX.run_command("true"), tokens=AnswerTokens(100, 20, 30, reasoning=7)),
        answer("Done.", tokens=AnswerTokens(200, 10, 60), headers=limits),
    ]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        record = harness.run("work", model="gpt-5.5")

        usage = record.run.usage
        assert (usage.input_tokens, usage.cache_read_tokens) == (300, 90)
        assert (usage.output_tokens, usage.cache_write_tokens) == (30, 0)
        updates = [each.usage.output_tokens for each in record.events_of(ev.UsageUpdated)]
        assert updates == [20, 30]
        # The cost is estimated by the price of this model.
        assert record.run.cost.kind == "estimated"
        assert record.run.cost.usd
        *_, stats = record.events_of(ev.StatsUpdated)
        assert (stats.model, stats.output_tokens, stats.cache_read_tokens) == ("gpt-5.5", 30, 90)
        assert (stats.context_window or 0) > 100_000
        resets = datetime.fromtimestamp(RESETS_AT, UTC)
        assert stats.limits == (
            ev.LimitWindow("primary", 88, 300, resets),
            ev.LimitWindow("secondary", 12, 10080, resets),
        )


# -- another process, and processes for one turn


@each_codex
def test_conversation_of_codex_continues_in_another_process(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    script = [answer("Noted."), answer(CODEX.run_command("echo hi")), answer("A cat.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        first = harness.run("Remember a cat.", model="one-model")
        token = first.run.resume_token
        second = harness.run("--What was it?", resume=token)

        assert (second.run.status, second.run.text) == ("completed", "A cat.")
        assert token
        assert second.run.resume_token == token
        assert [each.token for each in second.events_of(ev.TokenBound)] == [token]
        assert [tool.tool_output for tool in second.events_of(ev.ToolCompleted)] == ["hi\n"]
        requests = harness.server.main_requests
        assert ["Remember a cat." in str(request.messages) for request in requests] == [True] * 3
        assert ["Noted." in str(request.messages) for request in requests] == [False, True, True]
        texts = [request.user_text for request in requests]
        assert texts == ["Remember a cat.", "--What was it?", ""]
        assert [request.model for request in requests] == ["one-model"] * 3
        # The usage of the first run is not counted for the second.
        assert second.run.usage.input_tokens == (None if options else 20)


@each_cli
def test_process_for_one_turn_takes_a_long_prompt_and_no_message(tmp_path: Path, cli: Cli) -> None:
    gate = StreamGate()
    prompt = ("/many words " if cli is CLAUDE else "--many words ") * 33_000 + "end"

    async def steer(run: RunHandle) -> None:
        await wait_for_gate(gate)
        assert isinstance(await run.steer("one more"), Refused)
        gate.open()

    script = [
        answer(make_thinking("Hm."), "I look.", cli.run_command("echo hi; exit 3")),
        answer(make_text("All ", gate, "read."), tokens=AnswerTokens(100, 20, 30)),
    ]
    with cli_harness(tmp_path, script, cli=cli, options={"one_shot": True}) as harness:
        record = harness.run(prompt, steer)

        assert len(prompt) > 390_000
        assert (record.run.status, record.run.text) == ("completed", "All read.")
        assert final_texts(record) == ["I look.", "All read."]
        [failed] = record.events_of(ev.ToolFailed)
        assert failed.tool_name == cli.command_tool
        assert (failed.error or "").lower().startswith("exit code 3")
        first, _ = harness.server.main_requests
        assert first.user_text == prompt
        assert count_sent(harness.server, "one more") == 0
        if cli is CODEX:
            assert failed.tool_output == "hi\n"
            assert [record.run.usage.input_tokens, record.run.usage.cache_read_tokens] == [110, 30]


@pytest.mark.parametrize("is_in_tool", [False, True], ids=["in a stream", "in a command"])
def test_cancel_ends_a_codex_process_for_one_turn(tmp_path: Path, is_in_tool: bool) -> None:
    gate, begun = StreamGate(), tmp_path / "begun"
    command = CODEX.run_command(f"touch {begun}; sleep 1000")

    async def cancel(run: RunHandle) -> None:
        await (wait_for_file(begun) if is_in_tool else wait_for_gate(gate))
        await run.cancel("enough")

    step = answer(command if is_in_tool else make_text("Hel", gate, "lo."))
    with cli_harness(tmp_path, [step], cli=CODEX, options={"one_shot": True}) as harness:
        record = harness.run("work", cancel)

        # The harness checks that no process is left.
        assert (record.run.status, record.run.stop_reason) == ("cancelled", "user_stop")
        assert len(harness.server.main_requests) == 1
