"""The real Claude Code takes a simulated server for its model."""

from pathlib import Path

from steadyrun.testing.model_servers.content import AnswerTokens, answer, call, make_text
from steadyrun.testing.model_servers.faults import Break, Cut, Refusal, StreamGate
from steadyrun.testing.model_servers.model_server import MessagesServer
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.support.real_cli import (
    Frame,
    StartedClaude,
    control,
    is_idle,
    is_result,
    kind_of,
    user,
)

FIRST, SECOND = "0" * 7 + "1-0000-4000-8000-000000000001", "0" * 7 + "2-0000-4000-8000-000000000002"


def result_of(frames: list[Frame]) -> Frame:
    [result] = [frame for frame in frames if is_result(frame)]
    return result


def test_claude_runs_a_tool_and_a_second_turn_with_the_simulated_server(tmp_path: Path) -> None:
    script: ServerSteps = [
        answer(
            "I look.", call("Bash", command="echo from the shell"), tokens=AnswerTokens(100, 20)
        ),
        lambda ask: answer(f"It says: {ask.results[0]['content']}"),
        answer("Again."),
    ]
    with MessagesServer(script) as server, StartedClaude(tmp_path, server.url) as claude:
        claude.send(user("look", FIRST))
        first = claude.read_until(is_idle)
        claude.send(user("once more", SECOND))
        second = claude.read_until(is_idle)
        claude.end_input()

        assert claude.read_all() == []
        assert claude.wait_for_exit() == 0
        assert result_of(first)["result"] == "It says: from the shell"
        assert result_of(second)["result"] == "Again."
        assert [frame["uuid"] for frame in first + second if frame.get("isReplay")] == [
            FIRST,
            SECOND,
        ]
        assert len(server.main_requests) == 3
        assert "once more" in server.main_requests[2].user_text


def test_interrupt_of_claude_closes_a_request_at_its_gate(tmp_path: Path) -> None:
    gate = StreamGate()
    script = [answer(make_text("Hel", gate, "lo")), answer("Still here.")]
    with MessagesServer(script) as server, StartedClaude(tmp_path, server.url) as claude:
        claude.send(user("talk"))
        claude.read_until(lambda frame: "text_delta" in str(frame))
        claude.send(control("stop", "interrupt"))
        stopped = claude.read_until(is_idle)
        claude.send(user("and now?"))
        after = claude.read_until(is_idle)

        assert result_of(stopped)["terminal_reason"] == "aborted_streaming"
        server.wait_until(
            lambda: server.find_fate(server.main_requests[0].request.number) == "left"
        )
        assert result_of(after)["result"] == "Still here."


def test_each_retry_of_a_broken_stream_uses_a_step_of_the_script(tmp_path: Path) -> None:
    script: ServerSteps = [
        Refusal("overloaded"),
        answer(make_text("Hel", Cut())),
        answer("Hello."),
        answer(make_text("Bye", Break("server"))),
        answer("Bye-bye."),
    ]
    with MessagesServer(script) as server, StartedClaude(tmp_path, server.url) as claude:
        claude.send(user("greet"))
        first = claude.read_until(is_idle)
        claude.send(user("part"))
        second = claude.read_until(is_idle)

        assert "system/api_retry" in [kind_of(frame) for frame in first]
        assert [result_of(frames)["result"] for frames in (first, second)] == ["Hello.", "Bye-bye."]
        assert server.script.unused == 0


def test_token_count_uses_no_step_and_claude_without_tools_is_served(tmp_path: Path) -> None:
    with (
        MessagesServer([answer("Main.")]) as server,
        StartedClaude(tmp_path, server.url, "--tools", "") as claude,
    ):
        claude.send(user("/context"))
        claude.read_until(is_idle)
        claude.send(user("hello"))

        assert result_of(claude.read_until(is_idle))["result"] == "Main."
        assert len(server.main_requests) == 1
        assert len(server.side_requests) > 0
