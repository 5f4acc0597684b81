"""The same user actions have the same outcome with Claude Code and with Codex.

What each CLI is like stays its own: when it counts tokens, and what it finds worth a note. All else
is told by the same events in the same order, and tokens are counted as often: once for each answer
of the model.
"""

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from steadyrun.dialect import Image
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.model.event import get_type
from steadyrun.testing.model_servers.anthropic import answer, call
from steadyrun.testing.model_servers.content import CallBlock, ModelAnswer
from steadyrun.testing.model_servers.faults import refuse_rate_limit
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    Cli,
    CliHarness,
    RunRecord,
    cli_harness,
    wait_for_event,
)

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
UNTIL_GO = "until test -e go; do sleep 0.01; done"
THEIR_OWN = frozenset({"note", "usage.updated"})
BEGUN = ["run.started", "token.bound", "stats.updated"]
ENDED = ["stats.updated", "run.completed"]
TOOL = ["tool.started", "tool.completed"]
RETRIES = 2


def shell(cli: Cli, command: str) -> CallBlock:
    return call("Bash", command=command) if cli is CLAUDE else call("exec_command", cmd=command)


def in_form(cli: Cli) -> ModelAnswer:
    """What has a form is answered through a tool by a model of Claude Code."""
    return answer(call("StructuredOutput", n=42)) if cli is CLAUDE else answer('{"n":42}')


def told(played: RunRecord) -> list[str]:
    types = [get_type(seen.event) for seen in played.stored]
    return [each for each in types if each not in THEIR_OWN]


def counted(played: RunRecord) -> int:
    """How often tokens were counted."""
    return len(played.events_of(ev.UsageUpdated))


def acted(harness: CliHarness, act: Callable[[RunHandle], Awaitable[object]]) -> RunRecord:
    """Do something as soon as a tool runs."""

    async def main() -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "do it")
            await wait_for_event(run, lambda event: isinstance(event, ev.ToolStarted))
            await act(run)
            return await harness.read_record(await run.result())

    return anyio.run(main)


@pytest.fixture(params=[CLAUDE, CODEX], ids=lambda cli: cli.name)
def cli(request: pytest.FixtureRequest) -> Cli:
    found: Cli = request.param
    return found


def script(cli: Cli, action: str) -> ServerSteps:
    match action:
        case "tool":
            return [answer("I look.", shell(cli, "echo hi")), answer("Done.")]
        case "steer":
            return [answer(shell(cli, UNTIL_GO)), answer("Done.")]
        case "interrupt":
            return [answer(shell(cli, "sleep 600")), answer("Done.")]
        case "schema":
            return [in_form(cli), answer("Done.")]
        case "limit":
            return [refuse_rate_limit(retry_after=0)] * (2 * RETRIES + 2)
        case _:
            return [answer("Done."), answer("Again.")]


def test_a_turn(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "turn"), cli=cli) as harness:
        played = harness.run("do it")

    assert told(played) == [*BEGUN, "text.final", *ENDED]
    assert counted(played) == 1


def test_a_tool(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "tool"), cli=cli) as harness:
        played = harness.run("do it")

    assert told(played) == [*BEGUN, "text.final", *TOOL, "text.final", *ENDED]
    assert counted(played) == 2
    assert played.run.text == "Done."
    assert [tool.tool_output.strip() for tool in played.events_of(ev.ToolCompleted)] == ["hi"]


def test_a_follow_up(tmp_path: Path, cli: Cli) -> None:
    async def steer(run: RunHandle) -> None:
        await run.steer("and more")
        (tmp_path / "work" / "go").touch()

    with cli_harness(tmp_path, script(cli, "steer"), cli=cli) as harness:
        played = acted(harness, steer)

    steered = ["tool.started", "followup.offered", "tool.completed", "followup.absorbed"]
    assert told(played) == [*BEGUN, *steered, "text.final", *ENDED]
    assert counted(played) == 2


def test_a_stop(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "interrupt"), cli=cli) as harness:
        played = acted(harness, lambda run: run.cancel("enough"))

    stopped = ["tool.started", "tool.failed", "stats.updated", "run.cancelled"]
    assert told(played) == [*BEGUN, *stopped]
    assert counted(played) == 1
    assert played.run.stop_reason == "user_stop"


def test_a_conversation_that_is_gone_on_with(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "resume"), cli=cli) as harness:
        first = harness.run("do it")
        second = harness.run("and again", resume=first.run.resume_token)

    assert told(second) == [*BEGUN, "text.final", *ENDED]
    assert [counted(first), counted(second)] == [1, 1]
    assert second.run.text == "Again."
    assert second.run.resume_token == first.run.resume_token


def test_an_answer_in_a_form(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "schema"), cli=cli) as harness:
        played = harness.run("do it", schema=SCHEMA)

    assert told(played) == [*BEGUN, "text.final", *ENDED]
    assert counted(played) == 1
    assert (
        [text.text for text in played.events_of(ev.TextFinal)] == [played.run.text] == ['{"n":42}']
    )


def test_a_picture(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "image"), cli=cli) as harness:
        played = harness.run("what is it?", images=[Image("image/png", DOT)])

        assert told(played) == [*BEGUN, "text.final", *ENDED]
        assert counted(played) == 1
        [ask] = harness.server.main_requests
        assert base64.b64encode(DOT).decode() in str(ask.messages)


def test_a_limit(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "limit"), cli=cli) as harness:
        played = harness.run("do it")

    limited = [*["provider.retrying"] * RETRIES, "stats.updated", "run.rate_limited"]
    assert told(played) == [*BEGUN, *limited]
    assert counted(played) == 0
    assert played.run.error is not None
    assert (played.run.error.code, played.run.error.retryable) == ("rate_limited", True)
