"""Turns, tools, follow-ups and cancellation with the real Claude Code."""

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from steadyrun.dialect import LaunchRequest, Refused, Turn, TurnEnded
from steadyrun.library import Offered, RunHandle, Steadyrun
from steadyrun.model import event as ev
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.providers.claude.dialect import Claude
from steadyrun.store import follow
from steadyrun.testing.model_servers.anthropic import (
    CallBlock,
    ModelAnswer,
    ModelRequest,
    answer,
    call,
    text,
)
from steadyrun.testing.model_servers.faults import Hang, StreamGate
from tests.support.real_cli_harness import (
    MOMENTS,
    CliHarness,
    EventSink,
    GatedModel,
    RunRecord,
    cli_harness,
    close_and_wait,
    count_sent,
    drive_warm_process,
    followup_outcomes,
    read_sent_keys,
    reply_texts,
    wait_for_event,
    wait_for_file,
    wait_for_gate,
    wait_for_output,
)


def waiting(folder: Path, **more: object) -> CallBlock:
    """A command that makes `folder/begun` and lasts until there is `folder/go`."""
    begun, go = folder / "begun", folder / "go"
    loop = f"touch {begun}; until [ -e {go} ]; do sleep 0.02; done; echo it ended"
    return call("Bash", command=loop, **more)


# -- two turns on one process


def test_one_process_serves_turns_and_changes_model_and_mode_between_them(tmp_path: Path) -> None:
    turns = [
        Turn("one", "first"),
        Turn("two", "second", model="claude-haiku-4-5", mode="plan"),
        Turn("three", "third", model="claude-haiku-4-5", mode="plan"),
        Turn("four", "fourth", mode="full_auto"),
    ]

    async def main(harness: CliHarness) -> list[TurnEnded]:
        sink = EventSink()
        first = LaunchRequest(turns[0], str(harness.cwd), model="claude-opus-4-8", mode="full_auto")
        async with drive_warm_process(harness, Claude, first, sink) as driver:
            for number, turn in enumerate(turns, 1):
                await driver.begin(turn)
                await sink.wait_for_end(number)
            await close_and_wait(driver, harness)
        return sink.ends

    # Before a turn with another model, Claude Code tells of the change.
    with cli_harness(
        tmp_path, lambda ask: answer(f"Heard {ask.user_text.splitlines()[-1]}.")
    ) as harness:
        ends = anyio.run(main, harness)

        assert [(end.status, end.text) for end in ends] == [
            ("completed", "Heard first."),
            ("completed", "Heard second."),
            ("completed", "Heard third."),
            ("completed", "Heard fourth."),
        ]
        assert read_sent_keys(harness) == [
            "open",
            "begin:one",
            *("mode:two", "model:two", "begin:two"),
            "begin:three",
            *("mode:four", "begin:four"),
        ]
        asks = harness.server.main_requests
        assert [ask.model for ask in asks] == ["claude-opus-4-8", *["claude-haiku-4-5"] * 3]
        assert ["Plan mode is active" in str(ask.new_items) for ask in asks] == [
            False,
            True,
            False,
            False,
        ]
        # One conversation: the last turn knows those before.
        assert [turn.text in str(asks[3].messages) for turn in turns] == [True] * 4


def test_turn_in_a_refused_mode_is_never_sent(tmp_path: Path) -> None:
    turns = [Turn("one", "first"), Turn("two", "second", mode="full_auto"), Turn("three", "third")]

    async def main(harness: CliHarness) -> list[TurnEnded]:
        sink = EventSink()
        first = LaunchRequest(turns[0], str(harness.cwd))
        async with drive_warm_process(harness, Claude, first, sink) as driver:
            told = []
            for number, turn in enumerate(turns, 1):
                told.append(await driver.begin(turn))
                await sink.wait_for_end(number)
            assert told == [True, False, True]
            await close_and_wait(driver, harness)
        return sink.ends

    with cli_harness(
        tmp_path, lambda ask: answer(f"Heard {ask.user_text.splitlines()[-1]}.")
    ) as harness:
        first, second, third = anyio.run(main, harness)

        assert (first.text, third.text) == ("Heard first.", "Heard third.")
        assert second.error is not None
        assert (second.status, second.error.code) == ("failed", "mode_refused")
        assert "bypassPermissions" in second.error.message
        assert second.error.hint
        assert not any("second" in str(ask.messages) for ask in harness.server.main_requests)


# -- tools


def test_tools_run_alone_and_in_parallel(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"in {name}")
    script = [
        answer("I look.", call("Bash", command="echo from the shell")),
        answer(
            call("Read", file_path=str(tmp_path / "a")),
            call("Read", file_path=str(tmp_path / "b")),
            call("Bash", command="echo quick"),
            call("Bash", command="exit 3"),
        ),
        answer("Done."),
    ]
    with cli_harness(tmp_path, script) as harness:
        played = harness.run("look")

        assert (played.run.status, played.run.text, played.run.tools) == ("completed", "Done.", 5)
        assert [text.text for text in played.events_of(ev.TextFinal)] == ["I look.", "Done."]
        started = {tool.tool_call_id: tool for tool in played.events_of(ev.ToolStarted)}
        outputs = {
            tool.tool_call_id: tool.tool_output for tool in played.events_of(ev.ToolCompleted)
        }
        [failed] = played.events_of(ev.ToolFailed)
        first, *together = started
        # They may end in any order; the model gets all their results at once.
        assert [outputs.get(each) for each in started] == [
            "from the shell",
            "1\tin a",
            "1\tin b",
            "quick",
            None,
        ]
        assert (failed.tool_call_id, failed.tool_name) == (together[-1], "Bash")
        assert (failed.tool_input, failed.error) == ({"command": "exit 3"}, "Exit code 3")
        asks = harness.server.main_requests
        assert [sorted(result["tool_use_id"] for result in ask.results) for ask in asks] == [
            [],
            [first],
            together,
        ]


# -- follow-ups


def test_a_follow_up_while_it_streams_is_a_turn_of_its_own(tmp_path: Path) -> None:
    gate = StreamGate()

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "say hello")
            await wait_for_gate(gate)
            assert isinstance(await run.steer("and now?"), Offered)
            gate.open()
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [answer(text("Hel", gate, "lo.")), answer("Bye.")]) as harness:
        played = anyio.run(main, harness)

        assert followup_outcomes(played) == {"and now?": ("own_turn", "completed")}
        assert reply_texts(played) == ["Hello.", "Bye."]
        assert [ask.user_text for ask in harness.server.main_requests] == ["say hello", "and now?"]


def test_messages_sent_in_a_stream_are_all_delivered_next(tmp_path: Path) -> None:
    gate, words = StreamGate(), ("follow-1", "follow-2", "follow-3")

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "say hello")
            await wait_for_gate(gate)
            for word in words:
                assert isinstance(await run.steer(word), Offered)
            gate.open()
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, lambda ask: answer(text("He", gate, "llo."))) as harness:
        played = anyio.run(main, harness)

        # As a rule they are one turn; sometimes Claude Code begins before it has read them all.
        followups = [item for item in played.items if item.kind == "message"]
        deliveries = [item.delivery for item in followups]
        assert deliveries[0] == "own_turn"
        assert set(deliveries) <= {"own_turn", "absorbed"}
        assert {item.status for item in followups} == {"completed"}
        turns = 1 + deliveries.count("own_turn")
        assert reply_texts(played) == ["Hello."] * turns
        others = harness.server.main_requests[1:]
        assert len(others) == turns - 1
        assert "\n".join(ask.user_text for ask in others).split() == list(words)
        assert [count_sent(harness.server, word) for word in words] == [1, 1, 1]


def test_follow_ups_while_a_tool_runs_are_taken_into_the_turn(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work")
            await wait_for_file(tmp_path / "begun")
            for word in ("follow-1", "follow-2"):
                assert isinstance(await run.steer(word), Offered)
            (tmp_path / "go").touch()
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [answer(waiting(tmp_path)), answer("All done.")]) as harness:
        played = anyio.run(main, harness)

        assert followup_outcomes(played) == {
            "follow-1": ("absorbed", "completed"),
            "follow-2": ("absorbed", "completed"),
        }
        assert reply_texts(played) == ["All done."]
        assert {item.run for item in played.items} == {played.run.id}
        assert [len(ask.results) for ask in harness.server.main_requests] == [0, 1]
        assert [count_sent(harness.server, f"follow-{n}") for n in (1, 2)] == [1, 1]


# -- follow-ups at the end of a turn

LANES = 3


async def run_of(library: Steadyrun, offered: Offered) -> RunHandle | None:
    """The run that a follow-up has become; None if it came back."""
    store = library._deps.store
    agent = (await store.item(offered.item)).agent
    async for seen in follow(store, agent=agent):
        match seen.event:
            case ev.FollowupOwnTurn(item, _) if item == offered.item:
                assert seen.run
                return await library.run(seen.run)
            case ev.FollowupReturned(item, _, _) if item == offered.item:
                return None
    raise AssertionError("there is no end of events")


async def race(harness: CliHarness, library: Steadyrun, model: GatedModel, lane: int) -> list[str]:
    """Steer at each moment around the end of a turn, and return the words."""
    words: list[str] = []
    run: RunHandle | None = None
    word = ""
    for number, moment in enumerate(MOMENTS):
        if run is None:
            word = f"first-{lane}-{number}"
            run = await harness.start(library, word)
        await wait_for_gate(model.gate(word))
        model.gate(word).open()
        await moment(run)
        word = f"then-{lane}-{number}"
        words.append(word)
        answered = await run.steer(word)
        run = None if isinstance(answered, Refused) else await run_of(library, answered)
    model.gate(word).open()
    return words


async def all_races(
    harness: CliHarness, model: GatedModel
) -> tuple[list[str], list[Run], list[Item]]:
    """The words of the follow-ups, and all runs and items there are at the end."""
    words: list[str] = []
    async with harness.library() as library:

        async def one(lane: int) -> None:
            words.extend(await race(harness, library, model, lane))

        async with anyio.create_task_group() as tasks:
            for lane in range(LANES):
                tasks.start_soon(one, lane)
        store = library._deps.store
        runs = [await (await library.run(run.id)).result() for run in await store.runs()]
        agents = {run.agent for run in runs}
        items = [await store.items(agent, include_settled=True) for agent in agents]
        return words, runs, [item for lane in items for item in lane]


def test_message_at_the_end_of_a_turn_is_delivered_once_or_refused(tmp_path: Path) -> None:
    model = GatedModel()
    with cli_harness(tmp_path, model) as harness:
        words, runs, items = anyio.run(all_races, harness, model)
        asks = harness.server.main_requests

        assert len(words) == LANES * len(MOMENTS) >= 20
        # What was refused at once never became an item.
        told = {item.text for item in items if item.delivery == "own_turn"}
        for word in words:
            assert [word in ask.user_text for ask in asks].count(True) == (word in told)
            assert count_sent(harness.server, word) == (word in told)
        for item in items:
            is_told = item.delivery == "own_turn" or item.kind == "call"
            assert item.status == ("completed" if is_told else "cancelled")
        # Every request was a turn, and every turn a run.
        assert {(run.status, run.text) for run in runs} == {("completed", "I heard you.")}
        assert sorted(ask.user_text for ask in asks) == sorted(
            item.text for item in items if item.status == "completed"
        )
        assert len(runs) == len(asks)


# -- stopping


def test_a_stream_is_interrupted(tmp_path: Path) -> None:
    gate = StreamGate()

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "talk")
            await wait_for_event(run, lambda event: isinstance(event, ev.TextDelta))
            await run.cancel("enough")
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [answer(text("Hel", gate, "lo."))]) as harness:
        run = anyio.run(main, harness).run

        assert (run.status, run.stop_reason, run.text) == ("cancelled", "user_stop", "Hel")
        [ask] = harness.server.main_requests
        assert harness.server.find_fate(ask.request.number) == "left"


def test_a_tool_is_interrupted_with_its_own_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = f"sleep 1000 & echo $! >{child}.new; mv {child}.new {child}; wait"

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work")
            await wait_for_file(child)
            await run.cancel("enough")
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [answer(call("Bash", command=command))]) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        [failed] = played.events_of(ev.ToolFailed)
        assert failed.tool_name == "Bash"
        assert len(harness.server.main_requests) == 1
        assert not Path(f"/proc/{int(child.read_text())}").exists()


def test_run_is_cancelled_before_its_first_output(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> list[RunRecord]:
        async with harness.library() as library:
            asked = await harness.start(library, "asked and not answered")
            await anyio.to_thread.run_sync(harness.server.wait_for_main_request, 1)
            unborn = await harness.start(library, "never asked")
            for run in (asked, unborn):
                await run.cancel("enough")
            return [await harness.read_record(await run.result()) for run in (asked, unborn)]

    with cli_harness(tmp_path, [Hang()]) as harness:
        plays = anyio.run(main, harness)

        assert [(played.run.status, played.run.stop_reason) for played in plays] == [
            ("cancelled", "user_stop"),
            ("cancelled", "user_stop"),
        ]
        assert [played.run.text for played in plays] == [None, None]
        assert [ask.user_text for ask in harness.server.main_requests] == ["asked and not answered"]


@pytest.mark.parametrize("is_in_tool", [False, True], ids=["streaming", "in a tool"])
def test_cancel_returns_the_queued_messages(tmp_path: Path, is_in_tool: bool) -> None:
    gate, words = StreamGate(), ("follow-1", "follow-2")
    first = answer(waiting(tmp_path)) if is_in_tool else answer(text("Hel", gate, "lo."))

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "talk")
            await (wait_for_file(tmp_path / "begun") if is_in_tool else wait_for_gate(gate))
            for word in words:
                assert isinstance(await run.steer(word), Offered)
            await run.cancel("enough")
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [first]) as harness:
        played = anyio.run(main, harness)

        assert played.run.status == "cancelled"
        assert followup_outcomes(played) == dict.fromkeys(words, ("returned", "cancelled"))
        assert sorted(each.text for each in played.events_of(ev.FollowupReturned)) == list(words)
        assert len(harness.server.main_requests) == 1
        assert [count_sent(harness.server, word) for word in words] == [0, 0]


# -- what is told


def test_any_prompt_is_sent_unchanged(tmp_path: Path) -> None:
    prompts = ("/compact now", "/etc/passwd?", "--help", "-p @nothing #it !ls", "ünï\u2028 \\ \"'")

    async def main(harness: CliHarness) -> dict[str, str | None]:
        async with harness.library() as library:
            runs = {prompt: await harness.start(library, prompt) for prompt in prompts}
            return {prompt: (await run.result()).text for prompt, run in runs.items()}

    with cli_harness(tmp_path, lambda ask: answer(f"told: {ask.user_text}")) as harness:
        assert anyio.run(main, harness) == {prompt: f"told: {prompt}" for prompt in prompts}
        assert len(harness.server.main_requests) == len(prompts)


def test_a_slash_in_a_follow_up_is_no_command_either(tmp_path: Path) -> None:
    gate = StreamGate()

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "say hello")
            await wait_for_gate(gate)
            assert isinstance(await run.steer("/clear all"), Offered)
            gate.open()
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [answer(text("Hel", gate, "lo.")), answer("Bye.")]) as harness:
        played = anyio.run(main, harness)

        assert followup_outcomes(played) == {"/clear all": ("own_turn", "completed")}
        assert [ask.user_text for ask in harness.server.main_requests] == [
            "say hello",
            "/clear all",
        ]


def test_ten_megabytes_are_refused_by_name(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("too much")]) as harness:
        run = harness.run("many words " * 1_000_000).run

        assert run.status == "failed"
        assert run.error
        assert (run.error.code, run.error.retryable) == ("prompt_too_long", False)
        assert run.error.hint
        assert harness.server.main_requests == ()


# -- in the background


def background(
    folder: Path, held: StreamGate | None = None
) -> Callable[[ModelRequest], ModelAnswer]:
    """A model that starts a command in the background, and hears of its end."""

    def step(ask: ModelRequest) -> ModelAnswer:
        if ask.results:
            return answer(text("It ", *([held] if held else []), "runs."))
        if "<task-notification>" in ask.user_text:
            return answer("It has ended.")
        if "begin" in ask.user_text:
            return answer(waiting(folder, run_in_background=True))
        return answer(f"Heard {ask.user_text}.")

    return step


def test_a_turn_that_a_background_task_begins_is_a_run_of_its_own(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "begin")
            await wait_for_event(run, lambda event: isinstance(event, ev.RunCompleted))
            (tmp_path / "go").touch()
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, background(tmp_path)) as harness:
        played = anyio.run(main, harness)

        assert reply_texts(played) == ["It runs.", "It has ended."]
        assert [(item.kind, item.status) for item in played.items] == [
            ("call", "completed"),
            ("self", "completed"),
        ]
        assert len(harness.server.main_requests) == 3


def test_message_and_end_of_a_background_task_are_separate_items(tmp_path: Path) -> None:
    gate = StreamGate()

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "begin")
            await wait_for_gate(gate)
            (tmp_path / "go").touch()
            await wait_for_output(harness, b'"task_updated"')
            assert isinstance(await run.steer("follow"), Offered)
            gate.open()
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, background(tmp_path, gate)) as harness:
        played = anyio.run(main, harness)

        assert reply_texts(played) == ["It runs.", "It has ended.", "Heard follow."]
        assert [(item.kind, item.delivery) for item in played.items] == [
            ("call", "none"),
            ("message", "own_turn"),
            ("self", "none"),
        ]
        assert count_sent(harness.server, '"follow"') == 1
