"""The real Codex takes a simulated server for its model."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from steadyrun.testing.model_servers.content import (
    AnswerTokens,
    answer,
    call,
    make_raw,
    make_text,
    make_thinking,
)
from steadyrun.testing.model_servers.faults import (
    Cut,
    Hang,
    Refusal,
)
from steadyrun.testing.model_servers.model_server import ResponsesServer
from steadyrun.testing.model_servers.openai_common import build_codex_limit_headers
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep, ServerSteps
from tests.support.real_cli import Frame, is_kind, kind_of
from tests.support.real_codex import StartedAppServer, StartedExec, is_turn_end

RESETS_AT = 1794830000


def items_of(frames: list[Frame], kind: str) -> list[Frame]:
    """The items of a kind that `exec` has completed."""
    done = [frame["item"] for frame in frames if kind_of(frame) == "item.completed"]
    return [item for item in done if item["type"] == kind]


def test_text_of_the_simulated_server_is_the_answer_of_codex(tmp_path: Path) -> None:
    script = [
        answer(make_text("Hel", "lo."), tokens=AnswerTokens(100, 20, cache_read=30, reasoning=7))
    ]
    with (
        ResponsesServer(script) as server,
        StartedExec(tmp_path, server.url, "say hello") as codex,
    ):
        frames = codex.read_all()

        assert codex.wait_for_exit() == 0
        assert [item["text"] for item in items_of(frames, "agent_message")] == ["Hello."]
        assert frames[-1]["usage"] == {
            "input_tokens": 130,
            "cached_input_tokens": 30,
            "cache_write_input_tokens": 0,
            "output_tokens": 20,
            "reasoning_output_tokens": 7,
        }
        [ask] = server.main_requests
        assert ask.user_text == "say hello"
        assert "exec_command" in ask.tools
        assert "sk-dummy" not in str(server.requests)


def test_codex_runs_a_command_and_returns_its_output_to_the_server(tmp_path: Path) -> None:
    script: ServerSteps = [
        answer(make_thinking("hm"), "I look.", call("exec_command", cmd="echo from the shell")),
        lambda ask: answer(f"It says: {ask.outputs[0].splitlines()[-1]}"),
    ]
    with ResponsesServer(script) as server, StartedExec(tmp_path, server.url, "look") as codex:
        frames = codex.read_all()

        [command] = items_of(frames, "command_execution")
        assert (command["aggregated_output"], command["exit_code"]) == ("from the shell\n", 0)
        assert [item["text"] for item in items_of(frames, "reasoning")] == ["hm"]
        texts = [item["text"] for item in items_of(frames, "agent_message")]
        assert texts == ["I look.", "It says: from the shell"]


def test_openai_provider_of_codex_works_with_the_simulated_server(tmp_path: Path) -> None:
    def step(ask: ModelRequest) -> ServerStep:
        if ask.messages[-1].get("type") == "compaction_trigger":
            return answer(make_raw(type="compaction", id="cmp_1", encrypted_content="c2lt"))
        return answer("Here.")

    with (
        ResponsesServer(step) as server,
        StartedAppServer(
            tmp_path,
            server.url,
            *("-c", 'model_provider="openai"'),
            *("-c", f'openai_base_url="{server.url}/v1"'),
        ) as codex,
    ):
        thread = codex.start_thread()
        codex.start_turn(thread, "where?")
        codex.read_until(is_turn_end)
        codex.ask("thread/compact/start", threadId=thread)
        *_, compacted = codex.read_until(is_turn_end)
        codex.start_turn(thread, "and now?")
        codex.read_until(is_turn_end)

        assert compacted["params"]["turn"]["status"] == "completed"
        assert "error" not in codex.outline()
        assert "compaction" in [item["type"] for item in server.main_requests[-1].messages]


def test_codex_requests_approvals_of_tools_from_the_simulated_server(tmp_path: Path) -> None:
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a\n+b\n*** End Patch\nEOF"
    escalated = {"sandbox_permissions": "require_escalated", "justification": "may I?"}
    script = [
        answer(call("exec_command", cmd=patch)),
        answer(call("exec_command", cmd="echo hi", **escalated)),
        answer(call("request_permissions", permissions={"network": {"enabled": True}})),
        answer("Refused."),
    ]
    declined = {"decision": "decline"}
    refusals: list[Frame] = [declined, declined, {"permissions": {}}]
    asked = []
    with (
        ResponsesServer(script) as server,
        StartedAppServer(tmp_path, server.url, "--enable", "request_permissions_tool") as codex,
    ):
        thread = codex.start_thread(approvalPolicy="on-request", sandbox="read-only")
        codex.start_turn(thread, "change it")
        for refusal in refusals:
            *_, request = codex.read_until(lambda frame: "id" in frame and "method" in frame)
            asked.append(request["method"])
            codex.send({"id": request["id"], "result": refusal})
        codex.read_until(is_turn_end)

        assert asked == [
            "item/fileChange/requestApproval",
            "item/commandExecution/requestApproval",
            "item/permissions/requestApproval",
        ]
        assert not (codex.cwd / "a").exists()


def test_failed_turn_of_codex_exec_has_the_exit_code_one(tmp_path: Path) -> None:
    with (
        ResponsesServer([Refusal("too_long")]) as server,
        StartedExec(tmp_path, server.url, "hi") as codex,
    ):
        assert kind_of(codex.read_all()[-1]) == "turn.failed"
        assert codex.wait_for_exit() == 1


def test_interrupt_of_codex_closes_a_request_that_is_never_answered(tmp_path: Path) -> None:
    hang = Hang()
    with (
        ResponsesServer([hang, answer("Still here.")]) as server,
        StartedAppServer(tmp_path, server.url) as codex,
    ):
        thread = codex.start_thread()
        turn = codex.start_turn(thread, "hi")
        hang.gate.wait_until_reached()
        codex.ask("turn/interrupt", threadId=thread, turnId=turn)
        *_, stopped = codex.read_until(is_turn_end)
        server.wait_until(lambda: server.find_fate(0) == "left")
        codex.start_turn(thread, "and now?")
        *_, ended = codex.read_until(is_turn_end)

        assert stopped["params"]["turn"]["status"] == "interrupted"
        assert ended["params"]["turn"]["items"][-1]["text"] == "Still here."


def test_broken_stream_is_retried_and_limits_are_reported(tmp_path: Path) -> None:
    limits = {
        **build_codex_limit_headers(88, RESETS_AT),
        **build_codex_limit_headers(12, RESETS_AT, window_minutes=10080, slot="secondary"),
    }
    script: Sequence[ServerStep] = [
        answer(make_text("Hel", Cut())),
        answer("Hello.", headers=limits),
    ]
    with (
        ResponsesServer(script) as server,
        StartedAppServer(tmp_path, server.url) as codex,
    ):
        codex.start_turn(codex.start_thread(), "greet")
        codex.read_until(is_kind("error"))
        *_, update = codex.read_until(is_kind("account/rateLimits/updated"))
        *_, ended = codex.read_until(is_turn_end)

        assert update["params"]["rateLimits"]["primary"] == {
            "usedPercent": 88,
            "windowDurationMins": 300,
            "resetsAt": RESETS_AT,
        }
        assert ended["params"]["turn"]["items"][-1]["text"] == "Hello."
        assert server.script.unused == 0


@pytest.mark.parametrize(
    ("picture", "is_taken"),
    [
        ({"type": "image", "url": "https://example.com/cat.png"}, False),
        ({"type": "image", "url": "data:image/png;base64,iVBORw0KGgo="}, True),
        ({"type": "localImage", "path": "/nonexistent/cat.png"}, True),
    ],
    ids=["an address", "inline", "a file that is not there"],
)
def test_codex_refuses_an_image_by_its_address(
    tmp_path: Path, picture: dict[str, str], is_taken: bool
) -> None:
    """So ours are always inline, and read by ourselves: a file that is not there is no error."""
    with ResponsesServer([answer("Fine.")]) as server, StartedAppServer(tmp_path, server.url) as cx:
        thread = cx.start_thread()
        content = [{"type": "text", "text": "look"}, picture]
        asked = cx.ask("turn/start", threadId=thread, input=content)
        *_, reply = cx.read_until(lambda frame: frame.get("id") == asked)

        assert ("result" in reply) is is_taken
        if is_taken:
            cx.read_until(is_turn_end)
        assert len(server.main_requests) == is_taken
