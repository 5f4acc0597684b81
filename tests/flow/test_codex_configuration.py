"""Sub-agents, compactions, images and late interrupts of the real Codex."""

import json
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from steadyrun.dialect import LaunchRequest, Turn, Verdict
from steadyrun.model import event as ev
from steadyrun.model.policy import Mode
from steadyrun.providers.codex.dialect import Codex
from steadyrun.testing.model_servers.content import (
    AnswerTokens,
    CallBlock,
    ModelAnswer,
    answer,
    call,
    text,
    thinking,
)
from steadyrun.testing.model_servers.faults import Refusal, StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep
from tests.children.keeper_driver import eventually
from tests.support.real_cli_harness import (
    CODEX,
    PNG,
    CliHarness,
    EventSink,
    RunRecord,
    approval_outcomes,
    cli_harness,
    close_and_wait,
    count_sent,
    drive_warm_process,
    followup_outcomes,
    reply_texts,
    run_with_verdicts,
    steer_and_wait,
    wait_for_file,
    wait_for_gate,
)
from tests.support.real_codex import MODEL

RACES = 25

# -- sub-agents


def agent(tool: str, **arguments: object) -> ModelAnswer:
    return answer(CallBlock(tool, arguments, namespace="multi_agent_v1"))


def delegating(
    work: ModelAnswer, *, is_waiting: bool = True
) -> Callable[[ModelRequest], ServerStep]:
    """A model that has another agent do some work."""

    def step(ask: ModelRequest) -> ServerStep:
        if "THE TASK" in ask.user_text:
            return work
        if "THE TASK" in str(ask.messages[:-1]) and "spawn_agent" not in str(ask.messages):
            return answer("The task is done.")
        if not ask.results:
            return agent("spawn_agent", message="THE TASK")
        if "agent_id" in ask.outputs[0] and is_waiting:
            return agent("wait_agent", targets=[json.loads(ask.outputs[0])["agent_id"]])
        return answer("All done.")

    return step


def test_tools_of_a_subagent_are_recorded_and_counted(tmp_path: Path) -> None:
    work = answer(call("exec_command", cmd="touch made"))
    with cli_harness(tmp_path, delegating(work), cli=CODEX) as harness:
        played = harness.run("go on")

        assert (played.run.status, played.run.text) == ("completed", "All done.")
        assert (harness.cwd / "made").exists()
        # Its words are not the reply's.
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["All done."]
        tools = [tool.tool_input["tool"] for tool in played.events_of(ev.ToolStarted)]
        assert tools == ["spawnAgent", "wait"]
        assert len(played.events_of(ev.ToolCompleted)) == 2
        assert len(harness.server.main_requests) == 5
        assert played.run.usage.input_tokens == 5 * 10


def test_approval_of_a_subagent_is_requested(tmp_path: Path) -> None:
    wish = {"sandbox_permissions": "require_escalated", "justification": "may I?"}
    work = answer(call("exec_command", cmd="touch made", **wish))
    with cli_harness(tmp_path, delegating(work), cli=CODEX) as harness:
        played = run_with_verdicts(harness, [Verdict(True)])

        assert (played.run.status, played.run.text) == ("completed", "All done.")
        [request] = played.events_of(ev.ApprovalRequested)
        assert "touch made" in request.tool_input["command"]
        assert approval_outcomes(played) == [("allow", "library")]
        assert (harness.cwd / "made").exists()


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waited for", "let go"])
def test_another_agent_does_not_outlive_its_process(tmp_path: Path, is_waiting: bool) -> None:
    begun = tmp_path / "begun"
    work = answer(call("exec_command", cmd=f"touch {begun}; sleep 1000"))

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "go on")
            if is_waiting:
                await wait_for_file(begun)
                await run.cancel("enough")
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, delegating(work, is_waiting=is_waiting), cli=CODEX) as harness:
        played = anyio.run(main, harness)

        # That nothing is left of it is what a stage looks for.
        assert played.run.status == ("cancelled" if is_waiting else "completed")


# -- models that write JavaScript to use their tools

KNOWN = "gpt-6.1-sol"


def js(code: str) -> ModelAnswer:
    return answer(call("exec", code))


def test_each_tool_of_a_script_is_recorded(tmp_path: Path) -> None:
    patch = r"*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
    script = [
        js(
            "await Promise.all([tools.exec_command({cmd: 'echo one'}), "
            "tools.exec_command({cmd: 'echo two; exit 3'})])"
        ),
        js(f"await tools.apply_patch('{patch}')"),
        js("throw new Error('bad')"),
        answer("Done."),
    ]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        played = harness.run("work", model=KNOWN)

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        done = [(tool.tool_name, tool.tool_output) for tool in played.events_of(ev.ToolCompleted)]
        assert done == [("commandExecution", "one\n"), ("fileChange", None)]
        [failed] = played.events_of(ev.ToolFailed)
        assert (failed.tool_output, failed.error) == ("two\n", "exit code 3")
        assert len(played.events_of(ev.ToolStarted)) == 3
        assert (harness.cwd / "new.txt").read_text() == "hello\n"
        assert "Error: bad" in harness.server.main_requests[3].outputs[0]
        assert played.events_of(ev.Unknown) == []


@pytest.mark.parametrize("then", ["", "while (true) {}"], ids=["waiting", "in a loop"])
def test_cancel_ends_a_script_and_its_commands(tmp_path: Path, then: str) -> None:
    begun = tmp_path / "begun"
    wait = "" if then else "await "
    code = f"{wait}tools.exec_command({{cmd: 'touch {begun}; sleep 1000'}});\n"

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work", model=KNOWN)
            await wait_for_file(begun)
            await run.cancel("enough")
            return await harness.read_record(await run.result())

    # It gets to the loop only when the command has begun.
    until = f"until [ -e {begun} ]; do sleep 0.01; done"
    pause = f"await tools.exec_command({{cmd: '{until}'}});\n"
    with cli_harness(tmp_path, [js(f"{code}{pause}{then}")], cli=CODEX) as harness:
        played = anyio.run(main, harness)

        # That nothing is left of it is what a stage looks for.
        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert len(harness.server.main_requests) == 1


# -- untrusted projects


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
@pytest.mark.parametrize("mode", ["default", "full_auto", "dangerously_skip_permissions"])
def test_configuration_of_an_untrusted_project_is_ignored(
    tmp_path: Path, mode: Mode, is_one_shot: bool
) -> None:
    began = tmp_path / "began"
    options = {"one_shot": is_one_shot}
    script = [answer(call("exec_command", cmd="touch made")), answer("Done.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        (harness.cwd / ".git").mkdir()
        (harness.cwd / ".codex").mkdir()
        server = f'[mcp_servers.evil]\ncommand = "/usr/bin/touch"\nargs = ["{began}"]\n'
        (harness.cwd / ".codex" / "config.toml").write_text(f'model = "theirs"\n{server}')
        played = harness.run("work", mode=mode)
        settings = (harness.user / "codex" / "config.toml").read_text()

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        assert (harness.cwd / "made").exists()
        assert not began.exists()
        assert {ask.model for ask in harness.server.main_requests} == {MODEL}
        # Nor is it trusted from now on.
        assert "trust_level" not in settings


# -- compactions


class Filling:
    """A model that fills its window until it is compacted."""

    def __init__(self, summary: ServerStep) -> None:
        self._summary = summary

    def __call__(self, ask: ModelRequest) -> ServerStep:
        if self.is_compaction(ask):
            return self._summary
        if "SO FAR" in str(ask.messages):
            return answer("At last.")
        return answer(call("exec_command", cmd="echo round"), tokens=AnswerTokens(60_000, 10))

    @staticmethod
    def is_compaction(ask: ModelRequest) -> bool:
        return "CONTEXT CHECKPOINT COMPACTION" in str(ask.messages)


LIMITED = {"auto_compact_token_limit": 50_000}


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["told", "stopped"])
def test_a_compaction_takes_a_follow_up_and_is_stopped(tmp_path: Path, is_cancelled: bool) -> None:
    gate = StreamGate()

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work")
            await wait_for_gate(gate)
            await steer_and_wait(harness, run, "and then?")
            if is_cancelled:
                await run.cancel("enough")
            gate.open()
            return await harness.read_record(await run.result())

    model = Filling(answer(text("SO ", gate, "FAR.")))
    with cli_harness(tmp_path, model, cli=CODEX, options=LIMITED) as harness:
        played = anyio.run(main, harness)

        assert len(played.events_of(ev.CompactionStarted)) == 1
        if is_cancelled:
            assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
            assert len(played.events_of(ev.CompactionFailed)) == 1
            assert followup_outcomes(played) == {"and then?": ("returned", "cancelled")}
            assert count_sent(harness.server, "and then?") == 0
        else:
            assert len(played.events_of(ev.CompactionCompleted)) == 1
            assert followup_outcomes(played) == {"and then?": ("absorbed", "completed")}
            assert reply_texts(played) == ["At last."]
            assert count_sent(harness.server, "and then?") == 1


def test_a_compaction_that_fails_ends_the_turn(tmp_path: Path) -> None:
    model = Filling(Refusal("invalid", message="no summary today"))
    with cli_harness(tmp_path, model, cli=CODEX, options=LIMITED) as harness:
        played = harness.run("work")

        assert played.run.status == "failed"
        assert played.run.error
        assert "no summary today" in played.run.error.message
        assert (
            len(played.events_of(ev.CompactionStarted))
            == len(played.events_of(ev.CompactionFailed))
            == 1
        )
        assert played.events_of(ev.CompactionCompleted) == []


# -- what a command prints


def test_whatever_a_command_prints_is_passed_on(tmp_path: Path) -> None:
    script = [
        answer(call("exec_command", cmd=r"printf 'a\xff\xfe\0b\r\n\x1b[31mred'")),
        answer(call("exec_command", cmd="head -c 5000000 /dev/zero | tr '\\0' x")),
        answer(call("exec_command", cmd="true")),
        answer("Done."),
    ]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        played = harness.run("print")

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        strange, long, nothing = [tool.tool_output for tool in played.events_of(ev.ToolCompleted)]
        assert strange.startswith("a")
        assert strange.endswith("red")
        assert "xxx" in long
        assert not nothing
        assert played.events_of(ev.Unknown) == []


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
def test_empty_answer_of_the_model_completes_the_run(tmp_path: Path, is_one_shot: bool) -> None:
    options = {"one_shot": is_one_shot}
    with cli_harness(tmp_path, [answer(thinking("Hm."))], cli=CODEX, options=options) as harness:
        played = harness.run("What is this?")

        assert (played.run.status, played.run.text) == ("completed", None)
        assert played.events_of(ev.TextFinal) == []
        assert played.run.usage.input_tokens == 10


def test_a_picture_is_looked_at(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    script = [answer(call("view_image", path=str(picture))), answer("Two dots.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        played = harness.run("What is this?")

        assert (played.run.status, played.run.text) == ("completed", "Two dots.")
        [tool] = played.events_of(ev.ToolCompleted)
        assert (tool.tool_name, tool.tool_input["path"]) == ("viewImage", str(picture))
        assert "input_image" in str(harness.server.main_requests[1].results)


# -- interrupts


async def interrupts(harness: CliHarness, sink: EventSink, gates: list[StreamGate]) -> None:
    """Interrupt the turns of a process around their ends."""
    turns = [Turn(f"t{number}", f"first-{number}") for number in range(RACES)]
    first = LaunchRequest(turns[0], str(harness.cwd), mode=harness.cli.mode)
    async with drive_warm_process(harness, Codex, first, sink) as driver:
        for number, (turn, gate) in enumerate(zip(turns, gates, strict=True)):
            await driver.begin(turn)
            await wait_for_gate(gate)
            enough = len(sink.events) + number % 5
            gate.open()
            await until_heard(sink, enough, number)
            await driver.interrupt()
            await sink.wait_for_end(number + 1)
        last = Turn("last", "the last")
        await driver.begin(last)
        await sink.wait_for_end(RACES + 1)
        await close_and_wait(driver, harness)


async def until_heard(sink: EventSink, events: int, ends: int) -> None:
    await sink.wait_until(lambda: len(sink.events) > events or len(sink.ends) > ends)


def test_an_interrupt_at_the_end_of_a_turn_does_not_reach_the_next(tmp_path: Path) -> None:
    sink, gates = EventSink(), [StreamGate() for _ in range(RACES)]
    script = [*(answer(text("Hel", gate, "lo.")) for gate in gates), answer("Here.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        anyio.run(interrupts, harness, sink, gates)

        *raced, last = sink.ends
        assert (last.status, last.text) == ("completed", "Here.")
        assert {(end.status, end.text) for end in raced} <= {
            ("cancelled", None),
            ("cancelled", "Hello."),
            ("completed", "Hello."),
        }
        assert len(harness.server.main_requests) == RACES + 1


def test_command_of_an_interrupted_turn_ends_before_the_next_turn(tmp_path: Path) -> None:
    """Also before it has told of a command, which runs by then."""
    pids, turns = tmp_path / "pids", [Turn(f"t{number}", "work") for number in range(5)]
    command = call("exec_command", cmd=f"echo $$ >>{pids}; sleep 1000")

    async def main(harness: CliHarness) -> None:
        sink = EventSink()
        first = LaunchRequest(turns[0], str(harness.cwd), mode=harness.cli.mode)
        async with drive_warm_process(harness, Codex, first, sink) as driver:
            for number, turn in enumerate(turns, 1):
                await driver.begin(turn)
                await written(pids, number)
                assert await driver.interrupt()
                await sink.wait_for_end(number)
            await anyio.to_thread.run_sync(eventually, lambda: not running(pids), "their ends")
            await close_and_wait(driver, harness)

    with cli_harness(tmp_path, lambda ask: answer(command), cli=CODEX) as harness:
        anyio.run(main, harness)

        assert len(harness.server.main_requests) == len(turns)


async def written(path: Path, count: int) -> None:
    """There are so many lines."""
    await anyio.to_thread.run_sync(eventually, lambda: len(lines(path)) == count, "a line")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def running(pids: Path) -> list[str]:
    return [pid for pid in lines(pids) if Path(f"/proc/{pid}").exists()]
