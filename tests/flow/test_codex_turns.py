"""Does talking with the real Codex hold? Turns, tools, stopping them, and what it is told."""

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
from tests.support.real_cli_stage import (
    CODEX,
    Ear,
    Played,
    Stage,
    closed,
    fates,
    sent_keys,
    staged,
    there,
    times_told,
    until,
    warm,
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

    async def main(stage: Stage) -> Ear:
        ear = Ear()
        first = LaunchRequest(turns[0], str(stage.cwd), mode="full_auto", model="one-model")
        async with warm(stage, Codex, first, ear) as driver:
            for number, turn in enumerate(turns, 1):
                await driver.begin(turn)
                await ear.until_ended(number)
            await closed(driver, stage)
        return ear

    def step(ask: ModelRequest) -> Any:
        # A sandbox that lets nothing be written is felt.
        if not ask.results:
            return answer(
                run(f"touch {ask.user_text}.file && echo made {ask.user_text} || echo not made")
            )
        return answer(ask.outputs[0].splitlines()[-1])

    with staged(tmp_path, step, cli=CODEX) as stage:
        ear = anyio.run(main, stage)

        assert [(end.status, end.text) for end in ear.ends] == [
            ("completed", "made first"),
            ("completed", "not made"),
            ("completed", "not made"),
            ("completed", "made fourth"),
        ]
        assert sent_keys(stage) == [
            *("open", "initialized", "thread:full_auto"),
            *(f"begin:{turn.key}" for turn in turns),
        ]
        asks = stage.server.main_requests
        assert [ask.model for ask in asks] == ["one-model"] * 2 + ["other-model"] * 6
        # One conversation: the last turn knows those before.
        assert [times_told(stage.server, f'"{turn.text}"') for turn in turns] == [1] * 4
        # It is the growth of what was used that is a turn's.
        usages = [end.usage for end in ear.ends]
        assert [(used.input_tokens, used.output_tokens) for used in usages if used] == [
            (20, 10)
        ] * 4


def test_a_command_that_goes_on_outlives_its_turn_and_its_end_is_noted(tmp_path: Path) -> None:
    turns = [Turn("one", "begin"), Turn("two", "and now?")]

    async def main(stage: Stage) -> Ear:
        ear = Ear()
        first = LaunchRequest(turns[0], str(stage.cwd), mode=stage.cli.mode)
        async with warm(stage, Codex, first, ear) as driver:
            await driver.begin(turns[0])
            await ear.until_ended(1)
            before = len(ear.events)
            (tmp_path / "go").touch()
            await ear.until(lambda: len(ear.events) > before)
            await driver.begin(turns[1])
            await ear.until_ended(2)
            await closed(driver, stage)
        return ear

    script = [answer(waiting(tmp_path, yield_time_ms=250)), answer("It runs."), answer("Over.")]
    with staged(tmp_path, script, cli=CODEX) as stage:
        ear = anyio.run(main, stage)

        assert [(end.status, end.text) for end in ear.ends] == [
            ("completed", "It runs."),
            ("completed", "Over."),
        ]
        [tool] = [each for each in ear.events if isinstance(each, ev.ToolStarted)]
        # Its turn was over without it; the next one has nothing to do with it.
        [failed] = [each for each in ear.events if isinstance(each, ev.ToolFailed)]
        assert (failed.tool_call_id, failed.error) == (tool.tool_call_id, "still_running")
        assert not [each for each in ear.events if isinstance(each, ev.ToolCompleted)]
        notes = [each.text for each in ear.events if isinstance(each, ev.Note)]
        assert any(tool.tool_call_id in note for note in notes)
        assert (tmp_path / "begun").exists()


def test_a_command_that_goes_on_ends_with_its_process(tmp_path: Path) -> None:
    script = [answer(waiting(tmp_path, yield_time_ms=250)), answer("It runs.")]
    with staged(tmp_path, script, cli=CODEX) as stage:
        played = stage.played("begin")

        # That nothing is left of it is what a stage looks for.
        assert (played.run.status, played.run.text) == ("completed", "It runs.")
        assert len(played.of(ev.ToolStarted)) == len(played.of(ev.ToolFailed)) == 1
        assert not (tmp_path / "go").exists()


# -- tools


def test_commands_run_alone_and_in_parallel(tmp_path: Path) -> None:
    script = [
        answer("I look.", run("echo from the shell")),
        answer(run("echo one"), run("echo two; exit 3"), run("echo three >&2")),
        answer("Done."),
    ]
    with staged(tmp_path, script, cli=CODEX) as stage:
        played = stage.played("look")

        assert (played.run.status, played.run.text, played.run.tools) == ("completed", "Done.", 4)
        assert [said.text for said in played.of(ev.TextFinal)] == ["I look.", "Done."]
        started = {tool.tool_call_id: tool for tool in played.of(ev.ToolStarted)}
        outputs = {tool.tool_call_id: tool.tool_output for tool in played.of(ev.ToolCompleted)}
        [failed] = played.of(ev.ToolFailed)
        # They may begin and end in any order; the model gets their results in its own.
        assert sorted(outputs.values()) == ["from the shell\n", "one\n", "three\n"]
        assert (failed.tool_output, failed.error) == ("two\n", "exit code 3")
        assert {*outputs, failed.tool_call_id} == set(started)
        assert {tool.tool_name for tool in started.values()} == {"commandExecution"}
        assert "echo two; exit 3" in started[failed.tool_call_id].tool_input["command"]
        ids = [[each["call_id"] for each in ask.results] for ask in stage.server.main_requests]
        assert [len(each) for each in ids] == [0, 1, 3]
        assert {each for some in ids for each in some} == set(started)
        told = [output.splitlines()[-1] for output in stage.server.main_requests[2].outputs]
        assert told == ["one", "two", "three"]


def test_files_are_changed(tmp_path: Path) -> None:
    with staged(tmp_path, [answer(run(PATCH)), answer("Done.")], cli=CODEX) as stage:
        (stage.cwd / "old.txt").write_text("before\n")
        played = stage.played("change it", mode="full_auto")

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        [started], [done] = played.of(ev.ToolStarted), played.of(ev.ToolCompleted)
        assert started.tool_name == done.tool_name == "fileChange"
        changes = {Path(each["path"]).name: each for each in done.tool_input["changes"]}
        assert [changes[name]["kind"]["type"] for name in ("new.txt", "old.txt")] == [
            "add",
            "update",
        ]
        assert "+after" in changes["old.txt"]["diff"]
        assert (stage.cwd / "new.txt").read_text() == "hello\n"
        assert (stage.cwd / "old.txt").read_text() == "after\n"


def test_a_change_of_files_that_cannot_be_made_fails(tmp_path: Path) -> None:
    with staged(tmp_path, [answer(run(PATCH)), answer("Done.")], cli=CODEX) as stage:
        played = stage.played("change it", mode="full_auto")

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        assert len(played.of(ev.ToolStarted)) == len(played.of(ev.ToolFailed))
        assert played.of(ev.ToolCompleted) == []
        assert list(stage.cwd.iterdir()) == []


def test_a_search_of_the_web_is_told(tmp_path: Path) -> None:
    action = {"type": "search", "query": "cats"}
    found = raw(type="web_search_call", id="ws_1", status="completed", action=action)
    with staged(tmp_path, [answer(found, "Cats.")], cli=CODEX) as stage:
        played = stage.played("search")

        assert (played.run.status, played.run.text) == ("completed", "Cats.")
        [started], [done] = played.of(ev.ToolStarted), played.of(ev.ToolCompleted)
        assert started.tool_call_id == done.tool_call_id == "ws_1"
        assert (done.tool_name, done.tool_input["query"]) == ("webSearch", "cats")


def test_thinking_and_words_are_told_as_they_come(tmp_path: Path) -> None:
    in_thought, in_words = StreamGate(), StreamGate()
    said = answer(thinking("Hm, ", in_thought, "well."), text("It ", in_words, "is."))

    async def main(stage: Stage) -> list[StoredEvent | LiveEvent]:
        async with stage.library() as library:
            handle = await stage.start(library, "what?")
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

    with staged(tmp_path, [said], cli=CODEX) as stage:
        heard = anyio.run(main, stage)

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
def test_what_is_said_aside_is_no_answer(
    tmp_path: Path, phases: tuple[str, str], reply: str
) -> None:
    first, second = phases
    said = answer(text("first", phase=first), text("second", phase=second))
    with staged(tmp_path, [said], cli=CODEX) as stage:
        played = stage.played("what?")

        assert [each.text for each in played.of(ev.TextFinal)] == ["first", "second"]
        assert (played.run.status, played.run.text) == ("completed", reply)


# -- stopping


def test_a_stream_is_interrupted(tmp_path: Path) -> None:
    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            handle = await stage.start(library, "talk")
            await until(handle, lambda event: isinstance(event, ev.TextDelta))
            await handle.cancel("enough")
            return await stage.read(await handle.result())

    with staged(tmp_path, [answer("Well.", text("Hel", StreamGate(), "lo."))], cli=CODEX) as stage:
        played = anyio.run(main, stage)

        # What was not said to its end is no part of the record.
        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert played.run.text == "Well."
        assert [said.text for said in played.of(ev.TextFinal)] == ["Well."]
        [ask] = stage.server.main_requests
        assert stage.server.find_fate(ask.request.number) == "left"


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

    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            handle = await stage.start(library, "work")
            # It tells of a command a moment after it has begun.
            await until(handle, lambda event: isinstance(event, ev.ToolStarted))
            await there(child)
            await handle.cancel("enough")
            return await stage.read(await handle.result())

    with staged(tmp_path, [answer("I do.", run(command.format(child)))], cli=CODEX) as stage:
        played = anyio.run(main, stage)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert played.run.text == "I do."
        [failed] = played.of(ev.ToolFailed)
        assert (failed.tool_name, failed.error) == ("commandExecution", "still_running")
        assert len(stage.server.main_requests) == 1
        assert not Path(f"/proc/{int(child.read_text())}").exists()


def test_an_interrupted_command_is_ended_and_its_process_goes_on(tmp_path: Path) -> None:
    child, turns = tmp_path / "child", [Turn("one", "work"), Turn("two", "and now?")]
    command = f"echo $$ >{child}.new; mv {child}.new {child}; sleep 1000"

    async def main(stage: Stage) -> list[TurnEnded]:
        ear = Ear()
        first = LaunchRequest(turns[0], str(stage.cwd), mode=stage.cli.mode)
        async with warm(stage, Codex, first, ear) as driver:
            await driver.begin(turns[0])
            await ear.until(lambda: any(isinstance(each, ev.ToolStarted) for each in ear.events))
            await there(child)
            assert await driver.interrupt()
            await ear.until_ended(1)
            gone = Path(f"/proc/{int(child.read_text())}")
            await anyio.to_thread.run_sync(eventually, lambda: not gone.exists(), "its end")
            await driver.begin(turns[1])
            await ear.until_ended(2)
            await closed(driver, stage)
        return ear.ends

    with staged(tmp_path, [answer(run(command)), answer("Here.")], cli=CODEX) as stage:
        ends = anyio.run(main, stage)

        assert [(end.status, end.text) for end in ends] == [
            ("cancelled", None),
            ("completed", "Here."),
        ]
        assert any(key.startswith("terminate:") for key in sent_keys(stage))


def test_it_is_stopped_before_it_has_said_anything(tmp_path: Path) -> None:
    async def main(stage: Stage) -> list[Played]:
        async with stage.library() as library:
            told = await stage.start(library, "asked and not answered")
            await anyio.to_thread.run_sync(stage.server.wait_for_main_request, 1)
            unborn = await stage.start(library, "never asked")
            for handle in (told, unborn):
                await handle.cancel("enough")
            return [await stage.read(await handle.result()) for handle in (told, unborn)]

    with staged(tmp_path, [Hang()], cli=CODEX) as stage:
        plays = anyio.run(main, stage)

        assert [(played.run.status, played.run.stop_reason) for played in plays] == [
            ("cancelled", "user_stop"),
            ("cancelled", "user_stop"),
        ]
        assert [played.run.text for played in plays] == [None, None]
        assert [ask.user_text for ask in stage.server.main_requests] == ["asked and not answered"]


@pytest.mark.parametrize("is_in_tool", [False, True], ids=["not answered", "in a command"])
def test_what_was_not_taken_when_it_is_stopped_is_taken_back(
    tmp_path: Path, is_in_tool: bool
) -> None:
    words = ("follow-1", "follow-2")
    first = answer(waiting(tmp_path)) if is_in_tool else Hang()

    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            handle = await stage.start(library, "talk")
            await anyio.to_thread.run_sync(stage.server.wait_for_main_request, 1)
            if is_in_tool:
                await there(tmp_path / "begun")
            for word in words:
                assert isinstance(await handle.steer(word), Offered)
            await handle.cancel("enough")
            return await stage.read(await handle.result())

    with staged(tmp_path, [first], cli=CODEX) as stage:
        played = anyio.run(main, stage)

        assert played.run.status == "cancelled"
        assert fates(played) == dict.fromkeys(words, ("returned", "cancelled"))
        assert sorted(each.text for each in played.of(ev.FollowupReturned)) == list(words)
        assert len(stage.server.main_requests) == 1
        assert [times_told(stage.server, word) for word in words] == [0, 0]


# -- what is told

PROMPTS = (
    *("/compact now", "/etc/passwd?", "--help", "--", "-", "-p @nothing #it !ls", "!ls", "@x"),
    *("ünï\u2028 \\ \"'", "nul \0 inside", "$HOME ${x} $(ls) `ls`", "<tag>&amp;", "# AGENTS"),
)


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
def test_any_prompt_is_told_as_it_is(tmp_path: Path, is_one_shot: bool) -> None:
    async def main(stage: Stage) -> dict[str, str | None]:
        async with stage.library() as library:
            await (await stage.start(library, "the first")).result()
            runs = {prompt: await stage.start(library, prompt) for prompt in PROMPTS}
            return {prompt: (await each.result()).text for prompt, each in runs.items()}

    options = {"one_shot": is_one_shot}
    with staged(tmp_path, lambda ask: answer("Yes."), cli=CODEX, options=options) as stage:
        assert anyio.run(main, stage) == dict.fromkeys(PROMPTS, "Yes.")
        assert sorted(map(told, stage.server.main_requests)) == sorted(("the first", *PROMPTS))


def test_many_begin_at_once_in_a_new_home(tmp_path: Path) -> None:
    async def main(stage: Stage) -> list[Run]:
        async with stage.library() as library:
            handles = [await stage.start(library, "hello") for _ in range(8)]
            return [await handle.result() for handle in handles]

    with staged(tmp_path, lambda ask: answer("Yes."), cli=CODEX) as stage:
        runs = anyio.run(main, stage)

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
    with staged(tmp_path, [answer("too much")], cli=CODEX, options=options) as stage:
        ended = stage.played("many words " * 1_000_000).run

        assert ended.status == "failed"
        assert ended.error
        assert (ended.error.code, ended.error.retryable) == ("prompt_too_long", False)
        assert ended.error.hint
        assert stage.server.main_requests == ()


def test_nobody_is_there_to_take_what_is_said_after_the_end(tmp_path: Path) -> None:
    async def main(stage: Stage) -> tuple[object, object]:
        async with stage.library() as library:
            handle = await stage.start(library, "say hello")
            await handle.result()
            late = await handle.steer("too late")
        ear, turn = Ear(), Turn("one", "say hello")
        first = LaunchRequest(turn, str(stage.cwd))
        async with warm(stage, lambda: Codex(CodexOptions()), first, ear) as driver:
            await driver.begin(turn)
            await ear.until_ended(1)
            idle = await driver.steer(Offer("offer", "to nobody"))
            await closed(driver, stage)
        return late, idle

    with staged(tmp_path, lambda ask: answer("Hello."), cli=CODEX) as stage:
        late, idle = anyio.run(main, stage)

        assert isinstance(late, Refused)
        assert idle == Refused("no turn is running")
        assert len(stage.server.main_requests) == 2
