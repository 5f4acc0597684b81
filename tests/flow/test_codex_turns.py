"""Turns, tools, cancellation and prompts with the real Codex."""

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from steadyrun.dialect import LaunchRequest, Offer, Refused, Turn, TurnEnded
from steadyrun.library import Offered
from steadyrun.model import event as ev
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.run import Run
from steadyrun.providers.codex.dialect import Codex
from steadyrun.providers.codex.launch import CodexOptions
from steadyrun.testing.model_servers.content import CallBlock, answer, call, raw, text, thinking
from steadyrun.testing.model_servers.faults import Hang, StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.children.keeper_driver import eventually
from tests.support.real_cli_harness import (
    CODEX,
    CliHarness,
    EventSink,
    RunRecord,
    cli_harness,
    close_and_wait,
    count_sent,
    drive_warm_process,
    followup_outcomes,
    read_sent_keys,
    wait_for_event,
    wait_for_file,
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


def run(command: str, **more: object) -> CallBlock:
    return call("exec_command", cmd=command, **more)


def waiting(folder: Path, **more: object) -> CallBlock:
    """A command that makes `folder/begun` and lasts until there is `folder/go`."""
    begun, go = folder / "begun", folder / "go"
    loop = f"touch {begun}; until [ -e {go} ]; do sleep 0.02; done; echo it ended"
    return run(loop, **more)


# -- many turns on one process


def test_one_process_serves_turns_and_changes_model_and_mode_between_them(tmp_path: Path) -> None:
    turns = [
        Turn("one", "first"),
        Turn("two", "second", model="other-model", mode="plan"),
        Turn("three", "third"),
        Turn("four", "fourth", mode="dangerously_skip_permissions"),
    ]

    async def main(harness: CliHarness) -> EventSink:
        sink = EventSink()
        first = LaunchRequest(turns[0], str(harness.cwd), mode="full_auto", model="one-model")
        async with drive_warm_process(harness, Codex, first, sink) as driver:
            for number, turn in enumerate(turns, 1):
                await driver.begin(turn)
                await sink.wait_for_end(number)
            await close_and_wait(driver, harness)
        return sink

    def step(ask: ModelRequest) -> Any:
        # A sandbox that lets nothing be written is felt.
        if not ask.results:
            name = ask.user_text
            return answer(
                run(f"touch {name}.file 2>/dev/null && echo made {name} || echo not made")
            )
        return answer(ask.outputs[0].splitlines()[-1])

    with cli_harness(tmp_path, step, cli=CODEX) as harness:
        sink = anyio.run(main, harness)

        assert [(end.status, end.text) for end in sink.ends] == [
            ("completed", "made first"),
            ("completed", "not made"),
            ("completed", "not made"),
            ("completed", "made fourth"),
        ]
        assert read_sent_keys(harness) == [
            *("open", "initialized", "thread:full_auto"),
            *(f"begin:{turn.key}" for turn in turns),
        ]
        asks = harness.server.main_requests
        assert [ask.model for ask in asks] == ["one-model"] * 2 + ["other-model"] * 6
        # One conversation: the last turn knows those before.
        assert [count_sent(harness.server, f'"{turn.text}"') for turn in turns] == [1] * 4
        # It is the growth of what was used that is a turn's.
        usages = [end.usage for end in sink.ends]
        assert [(used.input_tokens, used.output_tokens) for used in usages if used] == [
            (20, 10)
        ] * 4


def test_a_command_that_goes_on_outlives_its_turn_and_its_end_is_noted(tmp_path: Path) -> None:
    turns = [Turn("one", "begin"), Turn("two", "and now?")]

    async def main(harness: CliHarness) -> EventSink:
        sink = EventSink()
        first = LaunchRequest(turns[0], str(harness.cwd), mode=harness.cli.mode)
        async with drive_warm_process(harness, Codex, first, sink) as driver:
            await driver.begin(turns[0])
            await sink.wait_for_end(1)
            before = len(sink.events)
            (tmp_path / "go").touch()
            await sink.wait_until(lambda: len(sink.events) > before)
            await driver.begin(turns[1])
            await sink.wait_for_end(2)
            await close_and_wait(driver, harness)
        return sink

    script = [answer(waiting(tmp_path, yield_time_ms=250)), answer("It runs."), answer("Over.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        sink = anyio.run(main, harness)

        assert [(end.status, end.text) for end in sink.ends] == [
            ("completed", "It runs."),
            ("completed", "Over."),
        ]
        [tool] = [each for each in sink.events if isinstance(each, ev.ToolStarted)]
        # Its turn was over without it; the next one has nothing to do with it.
        [failed] = [each for each in sink.events if isinstance(each, ev.ToolFailed)]
        assert (failed.tool_call_id, failed.error) == (tool.tool_call_id, "still_running")
        assert not [each for each in sink.events if isinstance(each, ev.ToolCompleted)]
        notes = [each.text for each in sink.events if isinstance(each, ev.Note)]
        assert any(tool.tool_call_id in note for note in notes)
        assert (tmp_path / "begun").exists()


def test_a_command_that_goes_on_ends_with_its_process(tmp_path: Path) -> None:
    script = [answer(waiting(tmp_path, yield_time_ms=250)), answer("It runs.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        played = harness.run("begin")

        # That nothing is left of it is what a stage looks for.
        assert (played.run.status, played.run.text) == ("completed", "It runs.")
        assert len(played.events_of(ev.ToolStarted)) == len(played.events_of(ev.ToolFailed)) == 1
        assert not (tmp_path / "go").exists()


# -- tools


def test_commands_run_alone_and_in_parallel(tmp_path: Path) -> None:
    script = [
        answer("I look.", run("echo from the shell")),
        answer(run("echo one"), run("echo two; exit 3"), run("echo three >&2")),
        answer("Done."),
    ]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        played = harness.run("look")

        assert (played.run.status, played.run.text, played.run.tools) == ("completed", "Done.", 4)
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["I look.", "Done."]
        started = {tool.tool_call_id: tool for tool in played.events_of(ev.ToolStarted)}
        outputs = {
            tool.tool_call_id: tool.tool_output for tool in played.events_of(ev.ToolCompleted)
        }
        [failed] = played.events_of(ev.ToolFailed)
        # They may begin and end in any order; the model gets their results in its own.
        assert sorted(outputs.values()) == ["from the shell\n", "one\n", "three\n"]
        assert (failed.tool_output, failed.error) == ("two\n", "exit code 3")
        assert {*outputs, failed.tool_call_id} == set(started)
        assert {tool.tool_name for tool in started.values()} == {"commandExecution"}
        assert "echo two; exit 3" in started[failed.tool_call_id].tool_input["command"]
        ids = [[each["call_id"] for each in ask.results] for ask in harness.server.main_requests]
        assert [len(each) for each in ids] == [0, 1, 3]
        assert {each for some in ids for each in some} == set(started)
        told = [output.splitlines()[-1] for output in harness.server.main_requests[2].outputs]
        assert told == ["one", "two", "three"]


def test_files_are_changed(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer(run(PATCH)), answer("Done.")], cli=CODEX) as harness:
        (harness.cwd / "old.txt").write_text("before\n")
        played = harness.run("change it", mode="full_auto")

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        [started], [done] = played.events_of(ev.ToolStarted), played.events_of(ev.ToolCompleted)
        assert started.tool_name == done.tool_name == "fileChange"
        changes = {Path(each["path"]).name: each for each in done.tool_input["changes"]}
        assert [changes[name]["kind"]["type"] for name in ("new.txt", "old.txt")] == [
            "add",
            "update",
        ]
        assert "+after" in changes["old.txt"]["diff"]
        assert (harness.cwd / "new.txt").read_text() == "hello\n"
        assert (harness.cwd / "old.txt").read_text() == "after\n"


def test_a_change_of_files_that_cannot_be_made_fails(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer(run(PATCH)), answer("Done.")], cli=CODEX) as harness:
        played = harness.run("change it", mode="full_auto")

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        assert len(played.events_of(ev.ToolStarted)) == len(played.events_of(ev.ToolFailed))
        assert played.events_of(ev.ToolCompleted) == []
        assert list(harness.cwd.iterdir()) == []


def test_web_search_is_recorded_as_a_tool(tmp_path: Path) -> None:
    action = {"type": "search", "query": "cats"}
    found = raw(type="web_search_call", id="ws_1", status="completed", action=action)
    with cli_harness(tmp_path, [answer(found, "Cats.")], cli=CODEX) as harness:
        played = harness.run("search")

        assert (played.run.status, played.run.text) == ("completed", "Cats.")
        [started], [done] = played.events_of(ev.ToolStarted), played.events_of(ev.ToolCompleted)
        assert started.tool_call_id == done.tool_call_id == "ws_1"
        assert (done.tool_name, done.tool_input["query"]) == ("webSearch", "cats")


def test_thinking_and_text_are_streamed_in_order(tmp_path: Path) -> None:
    in_thought, in_words = StreamGate(), StreamGate()
    said = answer(thinking("Hm, ", in_thought, "well."), text("It ", in_words, "is."))

    async def main(harness: CliHarness) -> list[StoredEvent | LiveEvent]:
        async with harness.library() as library:
            handle = await harness.start(library, "what?")
            heard = []
            async for seen in handle.events():
                heard.append(seen)
                # A gate opens only when the piece before it was heard.
                if isinstance(seen.event, ev.ThinkingDelta):
                    in_thought.open()
                if isinstance(seen.event, ev.TextDelta):
                    in_words.open()
            assert (await handle.result()).text == "It is."
            return heard

    with cli_harness(tmp_path, [said], cli=CODEX) as harness:
        heard = anyio.run(main, harness)

        assert [seen.event for seen in heard if isinstance(seen, LiveEvent)] == [
            ev.ThinkingDelta("Hm, "),
            ev.ThinkingDelta("well."),
            ev.TextDelta("It "),
            ev.TextDelta("is."),
        ]
        kinds = [type(seen.event) for seen in heard]
        assert kinds.index(ev.TextFinal) > kinds.index(ev.TextDelta) > kinds.index(ev.ThinkingDelta)
        assert [seen.event.text for seen in heard if isinstance(seen.event, ev.TextFinal)] == [
            "It is."
        ]


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
    said = answer(text("first", phase=first), text("second", phase=second))
    with cli_harness(tmp_path, [said], cli=CODEX) as harness:
        played = harness.run("what?")

        assert [each.text for each in played.events_of(ev.TextFinal)] == ["first", "second"]
        assert (played.run.status, played.run.text) == ("completed", reply)


# -- stopping


def test_a_stream_is_interrupted(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            handle = await harness.start(library, "talk")
            await wait_for_event(handle, lambda event: isinstance(event, ev.TextDelta))
            await handle.cancel("enough")
            return await harness.read_record(await handle.result())

    with cli_harness(
        tmp_path, [answer("Well.", text("Hel", StreamGate(), "lo."))], cli=CODEX
    ) as harness:
        played = anyio.run(main, harness)

        # What was not said to its end is no part of the record.
        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert played.run.text == "Well."
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["Well."]
        [ask] = harness.server.main_requests
        assert harness.server.find_fate(ask.request.number) == "left"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait",
        "trap '' TERM INT HUP; echo $$ >{0}.new; mv {0}.new {0}; while :; do sleep 1000; done",
        "setsid sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait",
    ],
    ids=["a child", "a deaf one", "a session of its own"],
)
def test_a_command_is_interrupted_with_its_own_children(tmp_path: Path, command: str) -> None:
    child = tmp_path / "child"

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            handle = await harness.start(library, "work")
            # It tells of a command a moment after it has begun.
            await wait_for_event(handle, lambda event: isinstance(event, ev.ToolStarted))
            await wait_for_file(child)
            await handle.cancel("enough")
            return await harness.read_record(await handle.result())

    with cli_harness(tmp_path, [answer("I do.", run(command.format(child)))], cli=CODEX) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert played.run.text == "I do."
        [failed] = played.events_of(ev.ToolFailed)
        assert (failed.tool_name, failed.error) == ("commandExecution", "still_running")
        assert len(harness.server.main_requests) == 1
        assert not Path(f"/proc/{int(child.read_text())}").exists()


def test_an_interrupted_command_is_ended_and_its_process_goes_on(tmp_path: Path) -> None:
    child, turns = tmp_path / "child", [Turn("one", "work"), Turn("two", "and now?")]
    command = f"echo $$ >{child}.new; mv {child}.new {child}; sleep 1000"

    async def main(harness: CliHarness) -> list[TurnEnded]:
        sink = EventSink()
        first = LaunchRequest(turns[0], str(harness.cwd), mode=harness.cli.mode)
        async with drive_warm_process(harness, Codex, first, sink) as driver:
            await driver.begin(turns[0])
            await sink.wait_until(
                lambda: any(isinstance(each, ev.ToolStarted) for each in sink.events)
            )
            await wait_for_file(child)
            assert await driver.interrupt()
            await sink.wait_for_end(1)
            gone = Path(f"/proc/{int(child.read_text())}")
            await anyio.to_thread.run_sync(eventually, lambda: not gone.exists(), "its end")
            await driver.begin(turns[1])
            await sink.wait_for_end(2)
            await close_and_wait(driver, harness)
        return sink.ends

    with cli_harness(tmp_path, [answer(run(command)), answer("Here.")], cli=CODEX) as harness:
        ends = anyio.run(main, harness)

        assert [(end.status, end.text) for end in ends] == [
            ("cancelled", None),
            ("completed", "Here."),
        ]
        assert any(key.startswith("terminate:") for key in read_sent_keys(harness))


def test_run_is_cancelled_before_its_first_output(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> list[RunRecord]:
        async with harness.library() as library:
            told = await harness.start(library, "asked and not answered")
            await anyio.to_thread.run_sync(harness.server.wait_for_main_request, 1)
            unborn = await harness.start(library, "never asked")
            for handle in (told, unborn):
                await handle.cancel("enough")
            return [await harness.read_record(await handle.result()) for handle in (told, unborn)]

    with cli_harness(tmp_path, [Hang()], cli=CODEX) as harness:
        plays = anyio.run(main, harness)

        assert [(played.run.status, played.run.stop_reason) for played in plays] == [
            ("cancelled", "user_stop"),
            ("cancelled", "user_stop"),
        ]
        assert [played.run.text for played in plays] == [None, None]
        assert [ask.user_text for ask in harness.server.main_requests] == ["asked and not answered"]


@pytest.mark.parametrize("is_in_tool", [False, True], ids=["not answered", "in a command"])
def test_cancel_returns_the_messages_that_were_not_absorbed(
    tmp_path: Path, is_in_tool: bool
) -> None:
    words = ("follow-1", "follow-2")
    first = answer(waiting(tmp_path)) if is_in_tool else Hang()

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            handle = await harness.start(library, "talk")
            await anyio.to_thread.run_sync(harness.server.wait_for_main_request, 1)
            if is_in_tool:
                await wait_for_file(tmp_path / "begun")
            for word in words:
                assert isinstance(await handle.steer(word), Offered)
            await handle.cancel("enough")
            return await harness.read_record(await handle.result())

    with cli_harness(tmp_path, [first], cli=CODEX) as harness:
        played = anyio.run(main, harness)

        assert played.run.status == "cancelled"
        assert followup_outcomes(played) == dict.fromkeys(words, ("returned", "cancelled"))
        assert sorted(each.text for each in played.events_of(ev.FollowupReturned)) == list(words)
        assert len(harness.server.main_requests) == 1
        assert [count_sent(harness.server, word) for word in words] == [0, 0]


# -- what is told

PROMPTS = (
    *("/compact now", "/etc/passwd?", "--help", "--", "-", "-p @nothing #it !ls", "!ls", "@x"),
    *("ünï\u2028 \\ \"'", "nul \0 inside", "$HOME ${x} $(ls) `ls`", "<tag>&amp;", "# AGENTS"),
)


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
def test_any_prompt_is_sent_unchanged(tmp_path: Path, is_one_shot: bool) -> None:
    async def main(harness: CliHarness) -> dict[str, str | None]:
        async with harness.library() as library:
            await (await harness.start(library, "the first")).result()
            runs = {prompt: await harness.start(library, prompt) for prompt in PROMPTS}
            return {prompt: (await each.result()).text for prompt, each in runs.items()}

    options = {"one_shot": is_one_shot}
    with cli_harness(tmp_path, lambda ask: answer("Yes."), cli=CODEX, options=options) as harness:
        assert anyio.run(main, harness) == dict.fromkeys(PROMPTS, "Yes.")
        assert sorted(map(told, harness.server.main_requests)) == sorted(("the first", *PROMPTS))


def test_many_begin_at_once_in_a_new_home(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> list[Run]:
        async with harness.library() as library:
            handles = [await harness.start(library, "hello") for _ in range(8)]
            return [await handle.result() for handle in handles]

    with cli_harness(tmp_path, lambda ask: answer("Yes."), cli=CODEX) as harness:
        runs = anyio.run(main, harness)

        # All of them want to make its database; some give up. To start again helps.
        failed = [each.error for each in runs if each.status != "completed"]
        assert len(failed) < len(runs)
        assert [error for error in failed if not (error and error.retryable)] == []


def told(ask: ModelRequest) -> str:
    """The last words of the user, untouched."""
    text = ask.messages[-1]["content"][-1]["text"]
    assert ask.messages[-1]["role"] == "user"
    return str(text)


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
def test_ten_megabytes_are_refused_by_name(tmp_path: Path, is_one_shot: bool) -> None:
    options = {"one_shot": is_one_shot}
    with cli_harness(tmp_path, [answer("too much")], cli=CODEX, options=options) as harness:
        ended = harness.run("many words " * 1_000_000).run

        assert ended.status == "failed"
        assert ended.error
        assert (ended.error.code, ended.error.retryable) == ("prompt_too_long", False)
        assert ended.error.hint
        assert harness.server.main_requests == ()


def test_message_after_the_end_is_refused(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> tuple[object, object]:
        async with harness.library() as library:
            handle = await harness.start(library, "say hello")
            await handle.result()
            late = await handle.steer("too late")
        sink, turn = EventSink(), Turn("one", "say hello")
        first = LaunchRequest(turn, str(harness.cwd))
        async with drive_warm_process(
            harness, lambda: Codex(CodexOptions()), first, sink
        ) as driver:
            await driver.begin(turn)
            await sink.wait_for_end(1)
            idle = await driver.steer(Offer("offer", "without a turn"))
            await close_and_wait(driver, harness)
        return late, idle

    with cli_harness(tmp_path, lambda ask: answer("Hello."), cli=CODEX) as harness:
        late, idle = anyio.run(main, harness)

        assert isinstance(late, Refused)
        assert idle == Refused("no turn is running")
        assert len(harness.server.main_requests) == 2
