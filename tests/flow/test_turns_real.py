"""Turns, tools, prompts and cancellation with the real CLIs."""

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from steadyrun.dialect import Offer, Refused, Turn
from steadyrun.library import Offered, RunHandle
from steadyrun.model import event as ev
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.run import Run
from steadyrun.testing.model_servers.content import (
    CallBlock,
    answer,
    call,
    make_raw,
    make_text,
    make_thinking,
)
from steadyrun.testing.model_servers.faults import Hang, StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.children.keeper_driver import eventually
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    Cli,
    CliHarness,
    EventSink,
    RunRecord,
    build_waiting_command,
    cli_harness,
    close_and_wait,
    count_sent,
    drive_warm_process,
    each_cli,
    final_texts,
    followup_outcomes,
    read_sent_keys,
    run_turns,
    wait_for_event,
    wait_for_file,
    wait_for_gate,
)

PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Add File: new.txt
+hello
*** Update File: old.txt
@@
-before
+after
*** End Patch
EOF"""
SHAPES = pytest.mark.parametrize(
    ("cli", "options"),
    [(CLAUDE, {}), (CODEX, {}), (CODEX, {"one_shot": True})],
    ids=["claude", "codex app server", "codex one shot"],
)


def run_command(command: str, **more: object) -> CallBlock:
    """A command of Codex, which may wait for it for less than its default time."""
    return call("exec_command", cmd=command, **more)


# -- many turns on one process


def test_claude_process_serves_turns_and_changes_model_and_mode_between_them(
    tmp_path: Path,
) -> None:
    turns = [
        Turn("one", "first"),
        Turn("two", "second", model="claude-haiku-4-5", mode="plan"),
        Turn("three", "third", model="claude-haiku-4-5", mode="plan"),
        Turn("four", "fourth", mode="full_auto"),
    ]
    with cli_harness(tmp_path, answer_last_line) as harness:
        ends = run_turns(harness, turns, model="claude-opus-4-8").ends

        assert [(end.status, end.text) for end in ends] == [
            ("completed", f"Received {turn.text}.") for turn in turns
        ]
        assert read_sent_keys(harness) == [
            "open",
            "begin:one",
            *("mode:two", "model:two", "begin:two"),
            "begin:three",
            *("mode:four", "begin:four"),
        ]
        requests = harness.server.main_requests
        assert [request.model for request in requests] == [
            "claude-opus-4-8",
            *["claude-haiku-4-5"] * 3,
        ]
        in_plan_mode = ["Plan mode is active" in str(request.new_items) for request in requests]
        assert in_plan_mode == [False, True, False, False]
        # One conversation: the last turn has those before.
        assert [turn.text in str(requests[3].messages) for turn in turns] == [True] * 4


def test_codex_process_serves_turns_and_changes_model_and_mode_between_them(
    tmp_path: Path,
) -> None:
    turns = [
        Turn("one", "first"),
        Turn("two", "second", model="other-model", mode="plan"),
        Turn("three", "third"),
        Turn("four", "fourth", mode="dangerously_skip_permissions"),
    ]

    def step(request: ModelRequest) -> Any:
        # The command fails in a sandbox in which nothing can be written.
        name = request.user_text
        made = f"touch {name}.file 2>/dev/null && echo made {name} || echo not made"
        return answer(request.outputs[0].splitlines()[-1] if request.results else run_command(made))

    with cli_harness(tmp_path, step, cli=CODEX) as harness:
        ends = run_turns(harness, turns, mode="full_auto", model="one-model").ends

        assert [(end.status, end.text) for end in ends] == [
            ("completed", "made first"),
            ("completed", "not made"),
            ("completed", "not made"),
            ("completed", "made fourth"),
        ]
        assert read_sent_keys(harness) == [
            *("open", "initialized", "thread:full_auto"),
            *(f"begin:{turn.key}" for turn in turns),
        ]
        models = [request.model for request in harness.server.main_requests]
        assert models == ["one-model"] * 2 + ["other-model"] * 6
        # One conversation: the last turn has those before.
        assert [count_sent(harness.server, f'"{turn.text}"') for turn in turns] == [1] * 4
        # Codex reports sums; the usage of a turn is the difference.
        usages = [(end.usage.input_tokens, end.usage.output_tokens) for end in ends if end.usage]
        assert usages == [(20, 10)] * 4


def test_turn_in_a_mode_that_claude_refuses_is_never_sent(tmp_path: Path) -> None:
    turns = [Turn("one", "first"), Turn("two", "second", mode="full_auto"), Turn("three", "third")]
    with cli_harness(tmp_path, answer_last_line) as harness:
        first, second, third = run_turns(harness, turns, mode="default").ends

        assert (first.text, third.text) == ("Received first.", "Received third.")
        assert second.error is not None
        assert (second.status, second.error.code) == ("failed", "mode_refused")
        assert "bypassPermissions" in second.error.message
        assert second.error.hint
        assert "begin:two" not in read_sent_keys(harness)
        assert count_sent(harness.server, "second") == 0


def answer_last_line(request: ModelRequest) -> Any:
    """Before a turn with another model, Claude Code reports the change in lines of its own."""
    return answer(f"Received {request.user_text.splitlines()[-1]}.")


def test_command_that_outlives_its_turn_is_noted_when_it_ends(tmp_path: Path) -> None:
    turns, sink = [Turn("one", "begin"), Turn("two", "and now?")], EventSink()

    async def main(harness: CliHarness) -> None:
        async with drive_warm_process(harness, turns[0], sink) as driver:
            await driver.begin(turns[0])
            await sink.wait_for_end(1)
            before = len(sink.events)
            (tmp_path / "go").touch()
            await sink.wait_until(lambda: len(sink.events) > before)
            await driver.begin(turns[1])
            await sink.wait_for_end(2)
            await close_and_wait(driver, harness)

    command = run_command(build_waiting_command(tmp_path), yield_time_ms=250)
    script = [answer(command), answer("It runs."), answer("Over.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        anyio.run(main, harness)

        assert [(end.status, end.text) for end in sink.ends] == [
            ("completed", "It runs."),
            ("completed", "Over."),
        ]
        [tool] = [each for each in sink.events if isinstance(each, ev.ToolStarted)]
        # Its turn was over without it; the next turn does not report it as its tool.
        [failed] = [each for each in sink.events if isinstance(each, ev.ToolFailed)]
        assert (failed.tool_call_id, failed.error) == (tool.tool_call_id, "still_running")
        assert not [each for each in sink.events if isinstance(each, ev.ToolCompleted)]
        notes = [each.text for each in sink.events if isinstance(each, ev.Note)]
        assert any(tool.tool_call_id in note for note in notes)
        assert (tmp_path / "begun").exists()


def test_command_that_outlives_its_turn_ends_with_its_process(tmp_path: Path) -> None:
    command = run_command(build_waiting_command(tmp_path), yield_time_ms=250)
    with cli_harness(tmp_path, [answer(command), answer("It runs.")], cli=CODEX) as harness:
        record = harness.run("begin")

        # The harness checks that no process is left.
        assert (record.run.status, record.run.text) == ("completed", "It runs.")
        assert len(record.events_of(ev.ToolStarted)) == len(record.events_of(ev.ToolFailed)) == 1
        assert not (tmp_path / "go").exists()


# -- tools


def read_file(cli: Cli, path: Path) -> CallBlock:
    return call("Read", file_path=str(path)) if cli is CLAUDE else cli.run_command(f"cat {path}")


@each_cli
def test_tools_run_alone_and_in_parallel(tmp_path: Path, cli: Cli) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"in {name}\n")
    script = [
        answer("I look.", cli.run_command("echo from the shell")),
        answer(
            *(read_file(cli, tmp_path / name) for name in "ab"),
            cli.run_command("echo quick >&2"),
            cli.run_command("exit 3"),
        ),
        answer("Done."),
    ]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        record = harness.run("look")

        assert (record.run.status, record.run.text, record.run.tools) == ("completed", "Done.", 5)
        assert final_texts(record) == ["I look.", "Done."]
        started = {tool.tool_call_id: tool for tool in record.events_of(ev.ToolStarted)}
        outputs = {
            tool.tool_call_id: str(tool.tool_output).strip().removeprefix("1\t").rstrip("\n2\t")
            for tool in record.events_of(ev.ToolCompleted)
        }
        [failed] = record.events_of(ev.ToolFailed)
        requests = harness.server.main_requests
        key = "tool_use_id" if cli is CLAUDE else "call_id"
        sent = [[result[key] for result in request.results] for request in requests]
        # They may begin and end in any order; the model gets all their results at once.
        assert [len(ids) for ids in sent] == [0, 1, 4]
        assert {each for ids in sent for each in ids} == set(started)
        assert outputs[sent[1][0]] == "from the shell"
        assert sorted(outputs.values()) == ["from the shell", "in a", "in b", "quick"]
        assert {*outputs, failed.tool_call_id} == set(started)
        assert failed.tool_name == cli.command_tool
        assert "exit 3" in started[failed.tool_call_id].tool_input["command"]
        assert (failed.error or "").lower() == "exit code 3"


def test_patch_of_codex_changes_files(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer(run_command(PATCH)), answer("Done.")], cli=CODEX) as harness:
        (harness.cwd / "old.txt").write_text("before\n")
        record = harness.run("change it", mode="full_auto")

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        [started], [done] = record.events_of(ev.ToolStarted), record.events_of(ev.ToolCompleted)
        assert started.tool_name == done.tool_name == "fileChange"
        changes = {Path(each["path"]).name: each for each in done.tool_input["changes"]}
        assert changes["new.txt"]["kind"]["type"] == "add"
        assert changes["old.txt"]["kind"]["type"] == "update"
        assert "+after" in changes["old.txt"]["diff"]
        assert (harness.cwd / "new.txt").read_text() == "hello\n"
        assert (harness.cwd / "old.txt").read_text() == "after\n"


def test_patch_of_a_missing_file_fails_and_changes_nothing(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer(run_command(PATCH)), answer("Done.")], cli=CODEX) as harness:
        record = harness.run("change it", mode="full_auto")

        assert (record.run.status, record.run.text) == ("completed", "Done.")
        assert len(record.events_of(ev.ToolStarted)) == len(record.events_of(ev.ToolFailed))
        assert record.events_of(ev.ToolCompleted) == []
        assert list(harness.cwd.iterdir()) == []


def test_web_search_is_recorded_as_a_tool(tmp_path: Path) -> None:
    action = {"type": "search", "query": "cats"}
    found = make_raw(type="web_search_call", id="ws_1", status="completed", action=action)
    with cli_harness(tmp_path, [answer(found, "Cats.")], cli=CODEX) as harness:
        record = harness.run("search")

        assert (record.run.status, record.run.text) == ("completed", "Cats.")
        [started], [done] = record.events_of(ev.ToolStarted), record.events_of(ev.ToolCompleted)
        assert started.tool_call_id == done.tool_call_id == "ws_1"
        assert (done.tool_name, done.tool_input["query"]) == ("webSearch", "cats")


# -- texts


@each_cli
def test_thinking_and_text_are_streamed_in_order(tmp_path: Path, cli: Cli) -> None:
    in_thinking, in_text = StreamGate(), StreamGate()
    step = answer(make_thinking("Hm, ", in_thinking, "well."), make_text("It ", in_text, "is."))
    events: list[StoredEvent | LiveEvent] = []

    async def read_events(run: RunHandle) -> None:
        async for seen in run.events():
            events.append(seen)
            # A gate opens only when the piece before it was received.
            if isinstance(seen.event, ev.ThinkingDelta):
                in_thinking.open()
            if isinstance(seen.event, ev.TextDelta):
                in_text.open()

    with cli_harness(tmp_path, [step], cli=cli) as harness:
        record = harness.run("what?", read_events)

        assert record.run.text == "It is."
        assert [seen.event for seen in events if isinstance(seen, LiveEvent)] == [
            ev.ThinkingDelta("Hm, "),
            ev.ThinkingDelta("well."),
            ev.TextDelta("It "),
            ev.TextDelta("is."),
        ]
        kinds = [type(seen.event) for seen in events]
        assert kinds.index(ev.TextFinal) > kinds.index(ev.TextDelta) > kinds.index(ev.ThinkingDelta)
        assert final_texts(record) == ["It is."]


@pytest.mark.parametrize(
    ("phases", "reply"),
    [
        (("final_answer", "commentary"), "first"),
        (("commentary", "final_answer"), "second"),
        (("", ""), "second"),
        (("commentary", "commentary"), "second"),
    ],
)
def test_commentary_is_not_the_reply(tmp_path: Path, phases: tuple[str, str], reply: str) -> None:
    first, second = phases
    step = answer(make_text("first", phase=first), make_text("second", phase=second))
    with cli_harness(tmp_path, [step], cli=CODEX) as harness:
        record = harness.run("what?")

        assert final_texts(record) == ["first", "second"]
        assert (record.run.status, record.run.text) == ("completed", reply)


# -- cancellation


@each_cli
def test_cancel_interrupts_a_stream(tmp_path: Path, cli: Cli) -> None:
    async def cancel(run: RunHandle) -> None:
        await wait_for_event(run, ev.TextDelta)
        await run.cancel("enough")

    stream = make_text("Hel", StreamGate(), "lo.")
    # The record of Codex has only texts that were completed.
    step, text = (answer("Well.", stream), "Well.") if cli is CODEX else (answer(stream), "Hel")
    with cli_harness(tmp_path, [step], cli=cli) as harness:
        record = harness.run("talk", cancel)

        assert (record.run.status, record.run.stop_reason) == ("cancelled", "user_stop")
        assert record.run.text == text
        assert cli is CLAUDE or final_texts(record) == ["Well."]
        [request] = harness.server.main_requests
        assert harness.server.find_fate(request.request.number) == "left"


WITH_CHILD = "sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait"
IGNORES_SIGNALS = (
    "trap '' TERM INT HUP; echo $$ >{0}.new; mv {0}.new {0}; while :; do sleep 1000; done"
)


@pytest.mark.parametrize(
    ("cli", "command"),
    [
        (CLAUDE, WITH_CHILD),
        (CODEX, WITH_CHILD),
        (CODEX, IGNORES_SIGNALS),
        (CODEX, f"setsid {WITH_CHILD}"),
    ],
    ids=["claude", "codex", "codex: ignores signals", "codex: child in a session of its own"],
)
def test_cancel_ends_a_command_with_its_children(tmp_path: Path, cli: Cli, command: str) -> None:
    child = tmp_path / "child"

    async def cancel(run: RunHandle) -> None:
        # Codex reports a command a moment after it has begun.
        await wait_for_event(run, ev.ToolStarted)
        await wait_for_file(child)
        await run.cancel("enough")

    script = [answer("I do.", cli.run_command(command.format(child)))]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        record = harness.run("work", cancel)

        assert (record.run.status, record.run.stop_reason) == ("cancelled", "user_stop")
        assert record.run.text == "I do."
        [failed] = record.events_of(ev.ToolFailed)
        assert failed.tool_name == cli.command_tool
        assert cli is CLAUDE or failed.error == "still_running"
        assert len(harness.server.main_requests) == 1
        assert not Path(f"/proc/{int(child.read_text())}").exists()


def test_codex_serves_another_turn_after_an_interrupted_command(tmp_path: Path) -> None:
    child, turns = tmp_path / "child", [Turn("one", "work"), Turn("two", "and now?")]
    command = f"echo $$ >{child}.new; mv {child}.new {child}; sleep 1000"
    sink = EventSink()

    async def main(harness: CliHarness) -> None:
        async with drive_warm_process(harness, turns[0], sink) as driver:
            await driver.begin(turns[0])
            await sink.wait_until(
                lambda: any(isinstance(each, ev.ToolStarted) for each in sink.events)
            )
            await wait_for_file(child)
            assert await driver.interrupt()
            await sink.wait_for_end(1)
            process = Path(f"/proc/{int(child.read_text())}")
            await anyio.to_thread.run_sync(eventually, lambda: not process.exists(), "its end")
            await driver.begin(turns[1])
            await sink.wait_for_end(2)
            await close_and_wait(driver, harness)

    script = [answer(run_command(command)), answer("Here.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        anyio.run(main, harness)

        assert [(end.status, end.text) for end in sink.ends] == [
            ("cancelled", None),
            ("completed", "Here."),
        ]
        assert any(key.startswith("terminate:") for key in read_sent_keys(harness))


@each_cli
def test_run_is_cancelled_before_its_first_output(tmp_path: Path, cli: Cli) -> None:
    async def main(harness: CliHarness) -> list[RunRecord]:
        async with harness.library() as library:
            sent = await harness.start(library, "sent and not answered")
            await anyio.to_thread.run_sync(harness.server.wait_for_main_request, 1)
            unsent = await harness.start(library, "never sent")
            for run in (sent, unsent):
                await run.cancel("enough")
            return [await harness.read_record(await run.result()) for run in (sent, unsent)]

    with cli_harness(tmp_path, [Hang()], cli=cli) as harness:
        runs = [record.run for record in anyio.run(main, harness)]

        ends = [(run.status, run.stop_reason, run.text) for run in runs]
        assert ends == [("cancelled", "user_stop", None)] * 2
        texts = [request.user_text for request in harness.server.main_requests]
        assert texts == ["sent and not answered"]


@each_cli
@pytest.mark.parametrize("is_in_tool", [False, True], ids=["in an answer", "in a command"])
def test_cancel_returns_the_messages_that_were_not_absorbed(
    tmp_path: Path, cli: Cli, is_in_tool: bool
) -> None:
    gate, messages = StreamGate(), ("follow-1", "follow-2")
    # A message interrupts a stream of Codex, which then absorbs it.
    stream = Hang(gate) if cli is CODEX else answer(make_text("Hel", gate, "lo."))
    command = answer(cli.run_command(build_waiting_command(tmp_path)))

    async def steer_and_cancel(run: RunHandle) -> None:
        await (wait_for_file(tmp_path / "begun") if is_in_tool else wait_for_gate(gate))
        for message in messages:
            assert isinstance(await run.steer(message), Offered)
        await run.cancel("enough")

    with cli_harness(tmp_path, [command if is_in_tool else stream], cli=cli) as harness:
        record = harness.run("talk", steer_and_cancel)

        assert record.run.status == "cancelled"
        assert followup_outcomes(record) == dict.fromkeys(messages, ("returned", "cancelled"))
        returned = sorted(each.text for each in record.events_of(ev.FollowupReturned))
        assert returned == list(messages)
        assert len(harness.server.main_requests) == 1
        assert [count_sent(harness.server, message) for message in messages] == [0, 0]


# -- prompts

PROMPTS = ("/compact now", "/etc/passwd?", "--help", "-p @nothing #it !ls", "ünï\u2028 \\ \"'")
CODEX_PROMPTS = (
    *("/compact", "--", "-", "!ls", "@file", "nul \0 inside", "😀", "<tag>&amp;", "# AGENTS"),
    "$HOME ${x} $(ls) `ls`",
)


@SHAPES
def test_any_prompt_is_sent_unchanged(tmp_path: Path, cli: Cli, options: dict[str, Any]) -> None:
    prompts = (*PROMPTS, *CODEX_PROMPTS) if cli is CODEX else PROMPTS

    async def main(harness: CliHarness) -> dict[str, str | None]:
        async with harness.library() as library:
            # The first process of Codex makes its database.
            await (await harness.start(library, "the first")).result()
            runs = {prompt: await harness.start(library, prompt) for prompt in prompts}
            return {prompt: (await run.result()).text for prompt, run in runs.items()}

    def read_prompt(request: ModelRequest) -> str:
        """The last text of the user, which Codex sends in a message of its own."""
        if cli is CLAUDE:
            return request.user_text
        assert request.messages[-1]["role"] == "user"
        return str(request.messages[-1]["content"][-1]["text"])

    def step(request: ModelRequest) -> Any:
        return answer(f"It is {read_prompt(request)!r}.")

    with cli_harness(tmp_path, step, cli=cli, options=options) as harness:
        assert anyio.run(main, harness) == {prompt: f"It is {prompt!r}." for prompt in prompts}
        assert len(harness.server.main_requests) == 1 + len(prompts)


@SHAPES
def test_prompt_of_ten_megabytes_fails_as_too_long(
    tmp_path: Path, cli: Cli, options: dict[str, Any]
) -> None:
    with cli_harness(tmp_path, [answer("too much")], cli=cli, options=options) as harness:
        run = harness.run("many words " * 1_000_000).run

        assert run.status == "failed"
        assert run.error
        assert (run.error.code, run.error.retryable) == ("prompt_too_long", False)
        assert run.error.hint
        assert harness.server.main_requests == ()


def test_codex_processes_started_together_in_a_new_home_complete_or_can_be_retried(
    tmp_path: Path,
) -> None:
    async def main(harness: CliHarness) -> list[Run]:
        async with harness.library() as library:
            handles = [await harness.start(library, "hello") for _ in range(8)]
            return [await handle.result() for handle in handles]

    with cli_harness(tmp_path, lambda _: answer("Yes."), cli=CODEX) as harness:
        runs = anyio.run(main, harness)

        # All of them try to make the database of Codex, and some fail. A new start helps.
        failed = [each.error for each in runs if each.status != "completed"]
        assert len(failed) < len(runs)
        assert [error for error in failed if not (error and error.retryable)] == []


def test_message_after_the_end_is_refused(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> tuple[object, object]:
        async with harness.library() as library:
            run = await harness.start(library, "say hello")
            await run.result()
            late = await run.steer("too late")
        sink, turn = EventSink(), Turn("one", "say hello")
        async with drive_warm_process(harness, turn, sink) as driver:
            await driver.begin(turn)
            await sink.wait_for_end(1)
            idle = await driver.steer(Offer("offer", "without a turn"))
            await close_and_wait(driver, harness)
        return late, idle

    with cli_harness(tmp_path, lambda _: answer("Hello."), cli=CODEX) as harness:
        late, idle = anyio.run(main, harness)

        assert isinstance(late, Refused)
        assert idle == Refused("no turn is running")
        assert len(harness.server.main_requests) == 2
