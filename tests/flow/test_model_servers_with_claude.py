"""The real Claude Code takes a simulated server for its model."""

from pathlib import Path

from steadyrun.testing.model_servers.anthropic import (
    AnswerTokens,
    MessagesServer,
    ServerSteps,
    answer,
    call,
    text,
)
from steadyrun.testing.model_servers.faults import Break, Cut, StreamGate, refuse_overloaded
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


def test_a_turn_with_a_tool_call_and_a_second_turn_on_one_process(tmp_path: Path) -> None:
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


def test_an_interrupt_at_a_gate_leaves_the_request(tmp_path: Path) -> None:
    gate = StreamGate()
    script = [answer(text("Hel", gate, "lo")), answer("Still here.")]
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


def test_broken_streams_are_asked_again_as_steps_of_their_own(tmp_path: Path) -> None:
    script: ServerSteps = [
        refuse_overloaded(),
        answer(text("Hel", Cut())),
        answer("Hello."),
        answer(text("Bye", Break("server"))),
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


def test_counting_tokens_eats_no_step_and_a_process_without_tools_is_served(tmp_path: Path) -> None:
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
