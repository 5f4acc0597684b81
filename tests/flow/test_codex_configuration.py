"""Sub-agents, scripts, untrusted projects, images and late interrupts of the real Codex."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.dialect import Turn, Verdict
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.model.policy import Mode
from steadyrun.testing.model_servers.content import (
    CallBlock,
    ModelAnswer,
    answer,
    call,
    make_text,
    make_thinking,
)
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep
from tests.support.killed_driver import wait_for
from tests.support.real_cli_harness import (
    CODEX,
    PNG,
    CliHarness,
    EventSink,
    approval_outcomes,
    cli_harness,
    close_and_wait,
    drive_warm_process,
    each_codex,
    final_texts,
    run_with_verdicts,
    wait_for_file,
    wait_for_gate,
)
from tests.support.real_codex import MODEL

INTERRUPTS = 25

# -- sub-agents


def call_agent(tool: str, **arguments: object) -> ModelAnswer:
    return answer(CallBlock(tool, arguments, namespace="multi_agent_v1"))


def delegate(work: ModelAnswer, *, is_waiting: bool = True) -> Callable[[ModelRequest], ServerStep]:
    """A model that has another agent do some work."""

    def step(request: ModelRequest) -> ServerStep:
        if "THE TASK" in request.user_text:
            return work
        if "THE TASK" in str(request.messages[:-1]) and "spawn_agent" not in str(request.messages):
            return answer("The task is done.")
        if not request.results:
            return call_agent("spawn_agent", message="THE TASK")
        if "agent_id" in request.outputs[0] and is_waiting:
            return call_agent("wait_agent", targets=[json.loads(request.outputs[0])["agent_id"]])
        return answer("All done.")

    return step


def test_tools_of_a_subagent_are_recorded_and_counted(tmp_path: Path) -> None:
    work = answer(CODEX.run_command("touch made"))
    with cli_harness(tmp_path, delegate(work), cli=CODEX) as harness:
        record = harness.run("go on")

        assert (record.run.status, record.run.text) == ("completed", "All done.")
        assert (harness.cwd / "made").exists()
        # The texts of the sub-agent are not in the record.
        assert final_texts(record) == ["All done."]
        tools = [tool.tool_input["tool"] for tool in record.events_of(ev.ToolStarted)]
        assert tools == ["spawnAgent", "wait"]
        assert len(record.events_of(ev.ToolCompleted)) == 2
        assert len(harness.server.main_requests) == 5
        assert record.run.usage.input_tokens == 5 * 10


def test_approval_of_a_subagent_is_requested(tmp_path: Path) -> None:
    work = answer(CODEX.request_command("touch made"))
    with cli_harness(tmp_path, delegate(work), cli=CODEX) as harness:
        record = run_with_verdicts(harness, [Verdict(True)])

        assert (record.run.status, record.run.text) == ("completed", "All done.")
        [request] = record.events_of(ev.ApprovalRequested)
        assert "touch made" in request.tool_input["command"]
        assert approval_outcomes(record) == [("allow", "library")]
        assert (harness.cwd / "made").exists()


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waited for", "left alone"])
def test_subagent_does_not_outlive_its_process(tmp_path: Path, is_waiting: bool) -> None:
    begun = tmp_path / "begun"
    work = answer(CODEX.run_command(f"touch {begun}; sleep 1000"))

    async def cancel(run: RunHandle) -> None:
        await wait_for_file(begun)
        await run.cancel("enough")

    with cli_harness(tmp_path, delegate(work, is_waiting=is_waiting), cli=CODEX) as harness:
        record = harness.run("go on", cancel if is_waiting else None)

        # The harness checks that no process is left.
        assert record.run.status == ("cancelled" if is_waiting else "completed")


# -- models that write JavaScript to use their tools

KNOWN = "gpt-6.1-sol"


def run_script(code: str) -> ModelAnswer:
    return answer(call("exec", code))


def test_each_tool_of_a_script_is_recorded(tmp_path: Path) -> None:
    patch = r"*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
    script = [
        run_script(
            "await Promise.all([tools.exec_command({cmd: 'echo one'}), "
            "tools.exec_command({cmd: 'echo two; exit 3'})])"
        ),
        run_script(f"await tools.apply_patch('{patch}')"),
        run_script("throw new Error('bad')"),
        answer("Done."),
    ]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        record = harness.run("work", model=KNOWN)

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        done = [(tool.tool_name, tool.tool_output) for tool in record.events_of(ev.ToolCompleted)]
        assert done == [("commandExecution", "one\n"), ("fileChange", None)]
        [failed] = record.events_of(ev.ToolFailed)
        assert (failed.tool_output, failed.error) == ("two\n", "exit code 3")
        assert len(record.events_of(ev.ToolStarted)) == 3
        assert (harness.cwd / "new.txt").read_text() == "hello\n"
        assert "Error: bad" in harness.server.main_requests[3].outputs[0]
        assert record.events_of(ev.Unknown) == []


@pytest.mark.parametrize("then", ["", "while (true) {}"], ids=["waiting", "in a loop"])
def test_cancel_ends_a_script_and_its_commands(tmp_path: Path, then: str) -> None:
    begun = tmp_path / "begun"
    wait = "" if then else "await "
    code = f"{wait}tools.exec_command({{cmd: 'touch {begun}; sleep 1000'}});\n"

    async def cancel(run: RunHandle) -> None:
        await wait_for_file(begun)
        await run.cancel("enough")

    # The script comes to the loop only when the command has begun.
    until = f"until [ -e {begun} ]; do sleep 0.01; done"
    pause = f"await tools.exec_command({{cmd: '{until}'}});\n"
    with cli_harness(tmp_path, [run_script(f"{code}{pause}{then}")], cli=CODEX) as harness:
        record = harness.run("work", cancel, model=KNOWN)

        # The harness checks that no process is left.
        assert (record.run.status, record.run.stop_reason) == ("cancelled", "user_stop")
        assert len(harness.server.main_requests) == 1


# -- untrusted projects


@each_codex
@pytest.mark.parametrize("mode", ["default", "full_auto", "dangerously_skip_permissions"])
def test_configuration_of_an_untrusted_project_is_ignored(
    tmp_path: Path, mode: Mode, options: dict[str, Any]
) -> None:
    began = tmp_path / "began"
    script = [answer(CODEX.run_command("touch made")), answer("Done.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        (harness.cwd / ".git").mkdir()
        (harness.cwd / ".codex").mkdir()
        server = f'[mcp_servers.evil]\ncommand = "/usr/bin/touch"\nargs = ["{began}"]\n'
        (harness.cwd / ".codex" / "config.toml").write_text(f'model = "theirs"\n{server}')
        record = harness.run("work", mode=mode)
        settings = (harness.user / "codex" / "config.toml").read_text()

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        assert (harness.cwd / "made").exists()
        assert not began.exists()
        assert {ask.model for ask in harness.server.main_requests} == {MODEL}
        # Nor is it trusted from now on.
        assert "trust_level" not in settings


# -- what a command prints


def test_any_output_of_a_command_is_recorded(tmp_path: Path) -> None:
    commands = (
        r"printf 'a\xff\xfe\0b\r\n\x1b[31mred'",
        "head -c 5000000 /dev/zero | tr '\\0' x",
        "true",
    )
    script = [answer(CODEX.run_command(command)) for command in commands]
    with cli_harness(tmp_path, [*script, answer("Done.")], cli=CODEX) as harness:
        record = harness.run("print")

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        strange, long, nothing = [tool.tool_output for tool in record.events_of(ev.ToolCompleted)]
        assert strange.startswith("a")
        assert strange.endswith("red")
        assert "xxx" in long
        assert not nothing
        assert record.events_of(ev.Unknown) == []


@each_codex
def test_empty_answer_of_the_model_completes_the_run(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    script = [answer(make_thinking("Hm."))]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        record = harness.run("What is this?")

        assert (record.run.status, record.run.text) == ("completed", None)
        assert record.events_of(ev.TextFinal) == []
        assert record.run.usage.input_tokens == 10


def test_image_that_codex_views_is_a_tool(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    script = [answer(call("view_image", path=str(picture))), answer("Two dots.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        record = harness.run("What is this?")

        assert (record.run.status, record.run.text) == ("completed", "Two dots.")
        [tool] = record.events_of(ev.ToolCompleted)
        assert (tool.tool_name, tool.tool_input["path"]) == ("viewImage", str(picture))
        assert "input_image" in str(harness.server.main_requests[1].results)


# -- interrupts


def test_interrupt_at_the_end_of_a_turn_does_not_reach_the_next(tmp_path: Path) -> None:
    sink, gates = EventSink(), [StreamGate() for _ in range(INTERRUPTS)]
    turns = [Turn(f"t{number}", f"first-{number}") for number in range(INTERRUPTS)]
    script = [*(answer(make_text("Hel", gate, "lo.")) for gate in gates), answer("Here.")]

    async def main(harness: CliHarness) -> None:
        async with drive_warm_process(harness, turns[0], sink) as driver:
            for number, (turn, gate) in enumerate(zip(turns, gates, strict=True)):
                await driver.begin(turn)
                await wait_for_gate(gate)
                enough = len(sink.events) + number % 5
                gate.open()
                await wait_for_output(sink, enough, number)
                await driver.interrupt()
                await sink.wait_for_end(number + 1)
            await driver.begin(Turn("last", "the last"))
            await sink.wait_for_end(INTERRUPTS + 1)
            await close_and_wait(driver, harness)

    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        anyio.run(main, harness)

        *interrupted, last = sink.ends
        assert (last.status, last.text) == ("completed", "Here.")
        assert {(end.status, end.text) for end in interrupted} <= {
            ("cancelled", None),
            ("cancelled", "Hello."),
            ("completed", "Hello."),
        }
        assert len(harness.server.main_requests) == INTERRUPTS + 1


async def wait_for_output(sink: EventSink, events: int, ends: int) -> None:
    """Wait for more than this many events, or ends of turns."""
    await sink.wait_until(lambda: len(sink.events) > events or len(sink.ends) > ends)


def test_command_of_an_interrupted_turn_ends_before_the_next_turn(tmp_path: Path) -> None:
    """The command runs before Codex has reported it."""
    pids, turns = tmp_path / "pids", [Turn(f"t{number}", "work") for number in range(5)]
    command = CODEX.run_command(f"echo $$ >>{pids}; sleep 1000")

    async def main(harness: CliHarness) -> None:
        sink = EventSink()
        async with drive_warm_process(harness, turns[0], sink) as driver:
            for number, turn in enumerate(turns, 1):
                await driver.begin(turn)
                await wait_for_lines(pids, number)
                assert await driver.interrupt()
                await sink.wait_for_end(number)
            await wait_for(lambda: not list_running(pids), "their ends")
            await close_and_wait(driver, harness)

    with cli_harness(tmp_path, lambda _: answer(command), cli=CODEX) as harness:
        anyio.run(main, harness)

        assert len(harness.server.main_requests) == len(turns)


async def wait_for_lines(path: Path, count: int) -> None:
    await wait_for(lambda: len(read_lines(path)) == count, "a line")


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def list_running(pids: Path) -> list[str]:
    return [pid for pid in read_lines(pids) if Path(f"/proc/{pid}").exists()]
