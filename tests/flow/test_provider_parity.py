"""The same user actions have the same outcome with Claude Code and with Codex.

What each CLI is like stays its own: when it counts tokens, and what it finds worth a note. All else
is shown by the same events in the same order, and tokens are counted as often: once for each answer
of the model.
"""

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

from steadyrun.dialect import Image
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.model.event import get_type
from steadyrun.testing.model_servers.content import ModelAnswer, answer, call
from steadyrun.testing.model_servers.faults import refuse_rate_limit
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.support.real_cli_harness import (
    CLAUDE,
    PNG,
    Cli,
    CliHarness,
    RunRecord,
    cli_harness,
    each_cli,
    wait_for_event,
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


def answer_schema(cli: Cli) -> ModelAnswer:
    """The model of Claude Code answers a schema by a tool."""
    return answer(call("StructuredOutput", n=42)) if cli is CLAUDE else answer('{"n":42}')


def list_event_types(record: RunRecord) -> list[str]:
    types = [get_type(seen.event) for seen in record.stored]
    return [each for each in types if each not in THEIR_OWN]


def count_usage_updates(record: RunRecord) -> int:
    """How often the usage of tokens was reported."""
    return len(record.events_of(ev.UsageUpdated))


def run_and_act(harness: CliHarness, act: Callable[[RunHandle], Awaitable[object]]) -> RunRecord:
    """Do something as soon as a tool runs."""

    async def act_in_tool(run: RunHandle) -> None:
        await wait_for_event(run, ev.ToolStarted)
        await act(run)

    return harness.run("do it", act_in_tool)


def script(cli: Cli, action: str) -> ServerSteps:
    match action:
        case "tool":
            return [answer("I look.", cli.run_command("echo hi")), answer("Done.")]
        case "steer":
            return [answer(cli.run_command(UNTIL_GO)), answer("Done.")]
        case "interrupt":
            return [answer(cli.run_command("sleep 600")), answer("Done.")]
        case "schema":
            return [answer_schema(cli), answer("Done.")]
        case "limit":
            return [refuse_rate_limit(retry_after=0)] * (2 * RETRIES + 2)
        case _:
            return [answer("Done."), answer("Again.")]


@each_cli
def test_turn_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "turn"), cli=cli) as harness:
        record = harness.run("do it")

    assert list_event_types(record) == [*BEGUN, "text.final", *ENDED]
    assert count_usage_updates(record) == 1


@each_cli
def test_tool_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "tool"), cli=cli) as harness:
        record = harness.run("do it")

    assert list_event_types(record) == [*BEGUN, "text.final", *TOOL, "text.final", *ENDED]
    assert count_usage_updates(record) == 2
    assert record.run.text == "Done."
    assert [tool.tool_output.strip() for tool in record.events_of(ev.ToolCompleted)] == ["hi"]


@each_cli
def test_message_in_a_tool_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    async def steer(run: RunHandle) -> None:
        await run.steer("and more")
        (tmp_path / "work" / "go").touch()

    with cli_harness(tmp_path, script(cli, "steer"), cli=cli) as harness:
        record = run_and_act(harness, steer)

    steered = ["tool.started", "followup.offered", "tool.completed", "followup.absorbed"]
    assert list_event_types(record) == [*BEGUN, *steered, "text.final", *ENDED]
    assert count_usage_updates(record) == 2


@each_cli
def test_cancel_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "interrupt"), cli=cli) as harness:
        record = run_and_act(harness, lambda run: run.cancel("enough"))

    stopped = ["tool.started", "tool.failed", "stats.updated", "run.cancelled"]
    assert list_event_types(record) == [*BEGUN, *stopped]
    assert count_usage_updates(record) == 1
    assert record.run.stop_reason == "user_stop"


@each_cli
def test_resumed_conversation_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "resume"), cli=cli) as harness:
        first = harness.run("do it")
        second = harness.run("and again", resume=first.run.resume_token)

    assert list_event_types(second) == [*BEGUN, "text.final", *ENDED]
    assert [count_usage_updates(first), count_usage_updates(second)] == [1, 1]
    assert second.run.text == "Again."
    assert second.run.resume_token == first.run.resume_token


@each_cli
def test_schema_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "schema"), cli=cli) as harness:
        record = harness.run("do it", schema=SCHEMA)

    assert list_event_types(record) == [*BEGUN, "text.final", *ENDED]
    assert count_usage_updates(record) == 1
    assert (
        [text.text for text in record.events_of(ev.TextFinal)] == [record.run.text] == ['{"n":42}']
    )


@each_cli
def test_image_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "image"), cli=cli) as harness:
        record = harness.run("what is it?", images=[Image("image/png", PNG)])

        assert list_event_types(record) == [*BEGUN, "text.final", *ENDED]
        assert count_usage_updates(record) == 1
        [ask] = harness.server.main_requests
        assert base64.b64encode(PNG).decode() in str(ask.messages)


@each_cli
def test_rate_limit_has_the_same_events_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, script(cli, "limit"), cli=cli) as harness:
        record = harness.run("do it")

    limited = [*["provider.retrying"] * RETRIES, "stats.updated", "run.rate_limited"]
    assert list_event_types(record) == [*BEGUN, *limited]
    assert count_usage_updates(record) == 0
    assert record.run.error is not None
    assert (record.run.error.code, record.run.error.retryable) == ("rate_limited", True)
