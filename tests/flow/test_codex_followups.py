"""A message to the real Codex in a turn is absorbed once or returned."""

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from steadyrun.dialect import LaunchRequest, Offer, Refused, Turn
from steadyrun.drivers.process_driver import ProcessDriver
from steadyrun.library import Offered, Steadyrun
from steadyrun.model import event as ev
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.providers.codex.dialect import Codex
from steadyrun.testing.model_servers.content import CallBlock, ModelAnswer, answer, call, text
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.support.real_cli_harness import (
    CODEX,
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
    reply_texts,
    steer_and_wait,
    wait_for_event,
    wait_for_file,
    wait_for_gate,
    wait_for_output,
)

LANES = 3
RACES = 30


def waiting(folder: Path) -> CallBlock:
    """A command that makes `folder/begun` and lasts until there is `folder/go`."""
    begun, go = folder / "begun", folder / "go"
    loop = f"touch {begun}; until [ -e {go} ]; do sleep 0.02; done; echo it ended"
    return call("exec_command", cmd=loop)


def told(harness: CliHarness, gate: StreamGate, *words: str) -> RunRecord:
    """A run that is told these words when its answer has come to the gate."""

    async def main() -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "say hello")
            await wait_for_gate(gate)
            await steer_and_wait(harness, run, *words)
            gate.open()
            return await harness.read_record(await run.result())

    return anyio.run(main)


def test_message_interrupts_the_stream_whose_text_is_not_in_the_reply(tmp_path: Path) -> None:
    gate = StreamGate()
    with cli_harness(
        tmp_path, [answer(text("Hel", gate, "lo.")), answer("Bye.")], cli=CODEX
    ) as harness:

        async def main() -> RunRecord:
            async with harness.library() as library:
                run = await harness.start(library, "say hello")
                await wait_for_event(run, lambda event: isinstance(event, ev.TextDelta))
                assert isinstance(await run.steer("and now?"), Offered)
                return await harness.read_record(await run.result())

        played = anyio.run(main)

        assert followup_outcomes(played) == {"and now?": ("absorbed", "completed")}
        assert reply_texts(played) == ["Bye."]
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["Bye."]
        first, second = harness.server.main_requests
        assert harness.server.find_fate(first.request.number) == "left"
        assert "and now?" in second.user_text
        assert count_sent(harness.server, "and now?") == 1
        # What was left before its end has told nothing of what it has used.
        assert (played.run.usage.input_tokens, played.run.usage.output_tokens) == (10, 5)


def test_where_nothing_is_interrupted_the_stream_goes_on_to_its_end(tmp_path: Path) -> None:
    gate, options = StreamGate(), {"instant_interrupt": False}
    script = [answer(text("Hel", gate, "lo.")), answer("Bye.")]
    with cli_harness(tmp_path, script, cli=CODEX, options=options) as harness:
        played = told(harness, gate, "and now?")

        assert followup_outcomes(played) == {"and now?": ("absorbed", "completed")}
        assert reply_texts(played) == ["Bye."]
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["Hello.", "Bye."]
        first, second = harness.server.main_requests
        assert harness.server.find_fate(first.request.number) == "answered"
        assert second.user_text == "and now?"
        assert played.run.usage.input_tokens == 20


def test_text_completed_before_a_message_stays(tmp_path: Path) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, [answer("Hello.", gate), answer("Bye.")], cli=CODEX) as harness:
        played = told(harness, gate, "and now?")

        assert followup_outcomes(played) == {"and now?": ("absorbed", "completed")}
        assert reply_texts(played) == ["Bye."]
        assert [said.text for said in played.events_of(ev.TextFinal)] == ["Hello.", "Bye."]
        assert count_sent(harness.server, "and now?") == 1


@pytest.mark.parametrize("is_instant", [True, False], ids=["instant", "patient"])
def test_several_follow_ups_while_it_streams_are_all_taken(
    tmp_path: Path, is_instant: bool
) -> None:
    gate, words = StreamGate(), ("follow-1", "follow-2", "follow-3")
    options = {"instant_interrupt": is_instant}
    script = [answer(text("Hel", gate, "lo."))]

    def step(ask: ModelRequest) -> ModelAnswer:
        # Held until all are accepted: the first of them may be asked for alone.
        return script.pop() if script else answer(text("By", gate, "e."))

    with cli_harness(tmp_path, step, cli=CODEX, options=options) as harness:
        played = told(harness, gate, *words)

        assert followup_outcomes(played) == dict.fromkeys(words, ("absorbed", "completed"))
        assert reply_texts(played) == ["Bye."]
        said = "\n".join(ask.user_text for ask in harness.server.main_requests[1:])
        assert [word for word in words if word not in said] == []
        assert [count_sent(harness.server, word) for word in words] == [1, 1, 1]


def test_follow_ups_while_a_command_runs_are_taken_after_it(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work")
            await wait_for_file(tmp_path / "begun")
            await steer_and_wait(harness, run, "follow-1", "follow-2")
            (tmp_path / "go").touch()
            return await harness.read_record(await run.result())

    with cli_harness(
        tmp_path, [answer(waiting(tmp_path)), answer("All done.")], cli=CODEX
    ) as harness:
        played = anyio.run(main, harness)

        assert followup_outcomes(played) == {
            "follow-1": ("absorbed", "completed"),
            "follow-2": ("absorbed", "completed"),
        }
        assert reply_texts(played) == ["All done."]
        assert {item.run for item in played.items} == {played.run.id}
        [tool] = played.events_of(ev.ToolCompleted)
        assert tool.tool_output == "it ended\n"
        assert [len(ask.results) for ask in harness.server.main_requests] == [0, 1]
        assert [count_sent(harness.server, f"follow-{n}") for n in (1, 2)] == [1, 1]


@pytest.mark.parametrize("words", ["/compact", "--help", "!ls @x #y", "", "nul \0 inside"])
def test_message_is_sent_unchanged(tmp_path: Path, words: str) -> None:
    gate = StreamGate()
    with cli_harness(
        tmp_path, [answer(text("Hel", gate, "lo.")), answer("Bye.")], cli=CODEX
    ) as harness:
        played = told(harness, gate, words)

        assert followup_outcomes(played) == {words: ("absorbed", "completed")}
        assert reply_texts(played) == ["Bye."]
        [*_, last] = harness.server.main_requests[1].messages
        assert (last["role"], last["content"][-1]["text"]) == ("user", words)


def test_a_follow_up_that_is_too_long_is_given_back(tmp_path: Path) -> None:
    gate = StreamGate()

    async def main(harness: CliHarness) -> tuple[object, RunRecord]:
        async with harness.library() as library:
            run = await harness.start(library, "say hello")
            await wait_for_gate(gate)
            answered = await run.steer("many words " * 200_000)
            await wait_for_output(harness, b'"offer:')
            gate.open()
            return answered, await harness.read_record(await run.result())

    with cli_harness(tmp_path, [answer(text("Hel", gate, "lo."))], cli=CODEX) as harness:
        answered, played = anyio.run(main, harness)

        assert isinstance(answered, Offered | Refused)
        assert reply_texts(played) == ["Hello."]
        [returned] = played.events_of(ev.FollowupReturned)
        assert "maximum length" in (returned.reason or "")
        assert len(harness.server.main_requests) == 1


def test_message_before_the_turn_begins_is_delivered_once_or_refused(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> tuple[list[bool], RunRecord]:
        async with harness.library() as library:
            run = await harness.start(library, "say hello")
            # As early as it can be said, and on and on.
            taken = []
            for number in range(6):
                answered = await run.steer(f"early-{number}")
                taken.append(isinstance(answered, Offered))
            return taken, await harness.read_record(await run.result())

    with cli_harness(tmp_path, lambda ask: answer("Hello."), cli=CODEX) as harness:
        taken, played = anyio.run(main, harness)

        assert played.run.status == "completed"
        found = followup_outcomes(played)
        for number, is_offered in enumerate(taken):
            word = f"early-{number}"
            is_told = found.get(word, ("", ""))[0] in {"absorbed", "own_turn"}
            assert is_offered or not is_told
            assert count_sent(harness.server, word) == int(is_told)


# -- at the end of a turn


class HeldFirst(GatedModel):
    """A model that holds its answer to a message that came alone and first."""

    def __call__(self, ask: ModelRequest) -> ModelAnswer:
        is_first = ask.user_text.startswith("first") and "then" not in ask.user_text
        return super().__call__(ask) if is_first else answer("I heard you.")


async def race(harness: CliHarness, library: Steadyrun, model: GatedModel, name: str) -> Run:
    """Steer at a moment around the end of a turn."""
    moment = MOMENTS[int(name.rpartition("-")[2]) % len(MOMENTS)]
    run = await harness.start(library, f"first-{name}")
    await wait_for_gate(model.gate(f"first-{name}"))
    model.gate(f"first-{name}").open()
    await moment(run)
    await run.steer(f"then-{name}")
    return await run.result()


async def all_races(harness: CliHarness, model: GatedModel) -> tuple[list[Run], list[Item]]:
    """All runs and items there are at the end."""
    async with harness.library() as library:

        async def one(lane: int) -> None:
            for number in range(len(MOMENTS)):
                await race(harness, library, model, f"{lane}-{number}")

        # The first of all makes its home.
        await race(harness, library, model, "home-0")
        async with anyio.create_task_group() as tasks:
            for lane in range(LANES):
                tasks.start_soon(one, lane)
        store = library._deps.store
        runs = list(await store.runs())
        agents = {run.agent for run in runs}
        items = [await store.items(agent, include_settled=True) for agent in agents]
        return runs, [item for lane in items for item in lane]


def test_message_at_the_end_of_a_turn_is_delivered_once_or_returned(tmp_path: Path) -> None:
    model = HeldFirst()
    with cli_harness(tmp_path, model, cli=CODEX) as harness:
        runs, items = anyio.run(all_races, harness, model)

        # One that is taken too late for an answer has it in a turn of its own.
        own = [item for item in items if item.delivery == "own_turn"]
        assert len(runs) - len(own) == LANES * len(MOMENTS) + 1 >= 20
        assert {(run.status, run.text) for run in runs} == {("completed", "I heard you.")}
        for item in items:
            is_taken = item.delivery in {"absorbed", "own_turn"} or item.kind == "call"
            assert item.status == ("completed" if is_taken else "cancelled")
            # As an answer is asked for, not only somewhere in what is remembered.
            asks = [ask for ask in harness.server.main_requests if item.text in ask.user_text]
            assert (item.text, len(asks)) == (item.text, int(is_taken))
            assert count_sent(harness.server, item.text) == int(is_taken)


class Racing:
    """Offers at the end of a process's turns, and what was said to have become of each."""

    def __init__(self, model: GatedModel) -> None:
        self._model = model
        self.ear = EventSink()
        self.words: list[str] = []
        self._refused: set[str] = set()

    async def race(self, driver: ProcessDriver, number: int) -> None:
        """Steer from at once to after all that is printed at the end of a turn; now and then
        twice."""
        sink, turn = self.ear, Turn(f"t{number}", f"first-{number}-")
        words = [f"then-{number}{letter}-" for letter in ("ab" if number % 4 == 3 else "a")]
        await driver.begin(turn)
        await wait_for_gate(self._model.gate(turn.text))
        enough, ends = len(sink.events) + number % 5, len(sink.ends)
        self._model.gate(turn.text).open()
        await sink.wait_until(lambda: len(sink.events) > enough or len(sink.ends) > ends)
        for word in words:
            self.words.append(word)
            if await driver.steer(Offer(word, word)):
                self._refused.add(word)
        await sink.wait_until(lambda: all(map(self.fate, words)))
        # A turn of its own has an end of its own.
        await sink.wait_until(lambda: len(sink.ends) > ends + self.own_turns(words))

    def own_turns(self, words: list[str]) -> int:
        return [self.fate(word) for word in words].count("own turn")

    def fate(self, word: str) -> str:
        """All that is said to have become of it, which should be one thing."""
        found = []
        for event in self.ear.events:
            match event:
                case ev.FollowupAbsorbed(item, _) if item == word:
                    found.append("taken")
                case ev.FollowupOwnTurn(item, _) if item == word:
                    found.append("own turn")
                case ev.FollowupReturned(item, _, _) if item == word:
                    found.append("returned")
        return " ".join([*found, *["refused"] * (word in self._refused)])


async def races(harness: CliHarness, racing: Racing) -> None:
    first = LaunchRequest(Turn("t0", "first-0-"), str(harness.cwd), mode=harness.cli.mode)
    async with drive_warm_process(harness, Codex, first, racing.ear) as driver:
        for number in range(RACES):
            await racing.race(driver, number)
        await close_and_wait(driver, harness)


def test_each_of_many_follow_ups_at_the_end_of_turns_has_one_fate(tmp_path: Path) -> None:
    racing = Racing(model := HeldFirst())
    with cli_harness(tmp_path, model, cli=CODEX) as harness:
        anyio.run(races, harness, racing)

        fates = {word: racing.fate(word) for word in racing.words}
        assert set(fates.values()) <= {"taken", "own turn", "returned", "refused"}
        taken = [word for word, fate in fates.items() if fate in {"taken", "own turn"}]
        assert [word for word in fates if count_sent(harness.server, word)] == taken
        assert {count_sent(harness.server, word) for word in taken} == {1}
        assert {(end.status, end.text) for end in racing.ear.ends} == {
            ("completed", "I heard you.")
        }
        assert len(racing.ear.ends) == RACES + racing.own_turns(racing.words)
