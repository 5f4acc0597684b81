"""A message to a turn of a real CLI is delivered once or returned.

Claude Code absorbs it after a tool, and otherwise answers it in a turn of its own. Codex interrupts
its stream and absorbs it.
"""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from steadyrun.dialect import Offer, Refused, Turn
from steadyrun.drivers.process_driver import ProcessDriver
from steadyrun.library import Offered, RunHandle, Steadyrun
from steadyrun.model import event as ev
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.store import follow
from steadyrun.testing.model_servers.content import ModelAnswer, answer, call, make_text
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    MOMENTS,
    Cli,
    CliHarness,
    EventSink,
    GatedModel,
    RunRecord,
    build_waiting_command,
    cli_harness,
    close_and_wait,
    count_sent,
    drive_warm_process,
    each_cli,
    final_texts,
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
MESSAGES = ("follow-1", "follow-2", "follow-3")


def run_and_steer(harness: CliHarness, gate: StreamGate, *messages: str) -> RunRecord:
    """Run a prompt whose answer comes to the gate, and send these messages then."""

    async def steer(run: RunHandle) -> None:
        await wait_for_gate(gate)
        await steer_and_wait(harness, run, *messages)
        gate.open()

    return harness.run("say hello", steer)


# -- in a stream


@pytest.mark.parametrize(
    ("cli", "message"),
    [
        *((CLAUDE, each) for each in ("and now?", "/clear all")),
        *((CODEX, each) for each in ("/compact", "--help", "!ls @x #y", "", "nul \0 inside")),
    ],
    ids=lambda value: value.name if isinstance(value, Cli) else repr(value),
)
def test_message_sent_in_a_stream_is_delivered_unchanged(
    tmp_path: Path, cli: Cli, message: str
) -> None:
    gate = StreamGate()
    script = [answer(make_text("Hel", gate, "lo.")), answer("Bye.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        record = run_and_steer(harness, gate, message)

        delivery = "own_turn" if cli is CLAUDE else "absorbed"
        assert followup_outcomes(record) == {message: (delivery, "completed")}
        assert reply_texts(record) == (["Hello.", "Bye."] if cli is CLAUDE else ["Bye."])
        first, second = harness.server.main_requests
        assert first.user_text == "say hello"
        if cli is CLAUDE:
            assert second.user_text == message
        else:
            last = second.messages[-1]
            assert (last["role"], last["content"][-1]["text"]) == ("user", message)


def test_messages_sent_to_claude_in_a_stream_are_all_delivered_next(tmp_path: Path) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, lambda _: answer(make_text("He", gate, "llo."))) as harness:
        record = run_and_steer(harness, gate, *MESSAGES)

        # As a rule they are one turn; sometimes Claude Code begins before it has read them all.
        outcomes = followup_outcomes(record)
        deliveries = [outcomes[message][0] for message in MESSAGES]
        assert deliveries[0] == "own_turn"
        assert set(deliveries) <= {"own_turn", "absorbed"}
        assert {status for _, status in outcomes.values()} == {"completed"}
        turns = 1 + deliveries.count("own_turn")
        assert reply_texts(record) == ["Hello."] * turns
        others = harness.server.main_requests[1:]
        assert len(others) == turns - 1
        assert "\n".join(request.user_text for request in others).split() == list(MESSAGES)
        assert [count_sent(harness.server, message) for message in MESSAGES] == [1, 1, 1]


@pytest.mark.parametrize("is_instant", [True, False], ids=["instant", "after the stream"])
def test_messages_sent_to_codex_in_a_stream_are_all_absorbed(
    tmp_path: Path, is_instant: bool
) -> None:
    gate = StreamGate()
    script = [answer(make_text("Hel", gate, "lo."))]

    def step(_: ModelRequest) -> ModelAnswer:
        # The gate is closed until all are accepted: Codex may answer the first of them alone.
        return script.pop() if script else answer(make_text("By", gate, "e."))

    options = {"instant_interrupt": is_instant}
    with cli_harness(tmp_path, step, cli=CODEX, options=options) as harness:
        record = run_and_steer(harness, gate, *MESSAGES)

        assert followup_outcomes(record) == dict.fromkeys(MESSAGES, ("absorbed", "completed"))
        assert reply_texts(record) == ["Bye."]
        sent = "\n".join(request.user_text for request in harness.server.main_requests[1:])
        assert [message for message in MESSAGES if message not in sent] == []
        assert [count_sent(harness.server, message) for message in MESSAGES] == [1, 1, 1]


def test_message_interrupts_the_stream_whose_text_is_not_in_the_reply(tmp_path: Path) -> None:
    async def steer(run: RunHandle) -> None:
        await wait_for_event(run, ev.TextDelta)
        assert isinstance(await run.steer("and now?"), Offered)

    script = [answer(make_text("Hel", StreamGate(), "lo.")), answer("Bye.")]
    with cli_harness(tmp_path, script, cli=CODEX) as harness:
        record = harness.run("say hello", steer)

        assert followup_outcomes(record) == {"and now?": ("absorbed", "completed")}
        assert reply_texts(record) == final_texts(record) == ["Bye."]
        first, second = harness.server.main_requests
        assert harness.server.find_fate(first.request.number) == "left"
        assert "and now?" in second.user_text
        assert count_sent(harness.server, "and now?") == 1
        # The interrupted answer has reported no tokens.
        assert (record.run.usage.input_tokens, record.run.usage.output_tokens) == (10, 5)


@pytest.mark.parametrize("is_instant", [True, False], ids=["instant", "after the stream"])
def test_text_completed_before_a_message_stays(tmp_path: Path, is_instant: bool) -> None:
    gate = StreamGate()
    # Without instant interrupts, the stream continues to its end.
    stream = answer("Hello.", gate) if is_instant else answer(make_text("Hel", gate, "lo."))
    options = {"instant_interrupt": is_instant}
    with cli_harness(tmp_path, [stream, answer("Bye.")], cli=CODEX, options=options) as harness:
        record = run_and_steer(harness, gate, "and now?")

        assert followup_outcomes(record) == {"and now?": ("absorbed", "completed")}
        assert reply_texts(record) == ["Bye."]
        assert final_texts(record) == ["Hello.", "Bye."]
        assert count_sent(harness.server, "and now?") == 1
        if not is_instant:
            first, second = harness.server.main_requests
            assert harness.server.find_fate(first.request.number) == "answered"
            assert second.user_text == "and now?"
            assert record.run.usage.input_tokens == 20


def test_message_that_is_too_long_is_returned(tmp_path: Path) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, [answer(make_text("Hel", gate, "lo."))], cli=CODEX) as harness:

        async def steer(run: RunHandle) -> None:
            await wait_for_gate(gate)
            assert isinstance(await run.steer("many words " * 200_000), Offered | Refused)
            await wait_for_output(harness, b'"offer:')
            gate.open()

        record = harness.run("say hello", steer)

        assert reply_texts(record) == ["Hello."]
        [returned] = record.events_of(ev.FollowupReturned)
        assert "maximum length" in (returned.reason or "")
        assert len(harness.server.main_requests) == 1


# -- in a command, and before the turn


@each_cli
def test_messages_sent_in_a_command_are_absorbed_after_it(tmp_path: Path, cli: Cli) -> None:
    command = cli.run_command(build_waiting_command(tmp_path))
    with cli_harness(tmp_path, [answer(command), answer("All done.")], cli=cli) as harness:

        async def steer(run: RunHandle) -> None:
            await wait_for_file(tmp_path / "begun")
            await steer_and_wait(harness, run, *MESSAGES)
            (tmp_path / "go").touch()

        record = harness.run("work", steer)

        assert followup_outcomes(record) == dict.fromkeys(MESSAGES, ("absorbed", "completed"))
        assert reply_texts(record) == ["All done."]
        assert {item.run for item in record.items} == {record.run.id}
        [tool] = record.events_of(ev.ToolCompleted)
        assert tool.tool_output.strip() == "it ended"
        assert [len(request.results) for request in harness.server.main_requests] == [0, 1]
        assert [count_sent(harness.server, message) for message in MESSAGES] == [1, 1, 1]


def test_message_before_the_turn_begins_is_delivered_once_or_refused(tmp_path: Path) -> None:
    offered: dict[str, bool] = {}

    async def steer(run: RunHandle) -> None:
        """Send messages from the first possible moment on."""
        for number in range(6):
            message = f"early-{number}"
            offered[message] = isinstance(await run.steer(message), Offered)

    with cli_harness(tmp_path, lambda _: answer("Hello."), cli=CODEX) as harness:
        record = harness.run("say hello", steer)

        assert record.run.status == "completed"
        outcomes = followup_outcomes(record)
        for message, is_offered in offered.items():
            delivery, _ = outcomes.get(message, ("", ""))
            is_delivered = delivery in {"absorbed", "own_turn"}
            assert is_offered or not is_delivered
            assert count_sent(harness.server, message) == int(is_delivered)


# -- at the end of a turn


class HeldFirst(GatedModel):
    """A model that holds only the answer to a first message that came alone."""

    def __call__(self, ask: ModelRequest) -> ModelAnswer:
        is_first = ask.user_text.startswith("first") and "then" not in ask.user_text
        return super().__call__(ask) if is_first else answer("I heard you.")


class EndRaces:
    """Sends messages to runs, each at a moment around the end of a turn."""

    def __init__(self, harness: CliHarness, library: Steadyrun, model: GatedModel) -> None:
        self._harness, self._library, self._model = harness, library, model

    async def race_claude(self, lane: int) -> None:
        """Race with the turns of a run. A message that becomes a turn is the next of them."""
        run: RunHandle | None = None
        word = ""
        for number in range(len(MOMENTS)):
            if run is None:
                word = f"first-{lane}-{number}"
                run = await self._harness.start(self._library, word)
            offered = await self._steer(run, word, number, f"then-{lane}-{number}")
            word = f"then-{lane}-{number}"
            run = None if isinstance(offered, Refused) else await self._find_own_run(offered)
        self._model.gate(word).open()

    async def race_codex(self, lane: int) -> None:
        """Race with one run after the other."""
        for number in range(len(MOMENTS)):
            word = f"first-{lane}-{number}"
            run = await self._harness.start(self._library, word)
            await self._steer(run, word, number, f"then-{lane}-{number}")
            await run.result()

    async def _steer(
        self, run: RunHandle, word: str, number: int, message: str
    ) -> Offered | Refused:
        await wait_for_gate(self._model.gate(word))
        self._model.gate(word).open()
        await MOMENTS[number](run)
        return await run.steer(message)

    async def _find_own_run(self, offered: Offered) -> RunHandle | None:
        """The run that a message has become; None if it was returned."""
        store = self._library._deps.store
        agent = (await store.item(offered.item)).agent
        async for seen in follow(store, agent=agent):
            match seen.event:
                case ev.FollowupOwnTurn(item, _) if item == offered.item:
                    assert seen.run
                    return await self._library.run(seen.run)
                case ev.FollowupReturned(item, _, _) if item == offered.item:
                    return None
        raise AssertionError("there is no end of events")


async def run_races(harness: CliHarness, model: GatedModel) -> tuple[list[Run], list[Item]]:
    """All runs and items there are after the races."""
    async with harness.library() as library:
        races = EndRaces(harness, library, model)
        if harness.cli is CODEX:
            # The first process of Codex makes its database.
            await (await harness.start(library, "before-all")).result()
        async with anyio.create_task_group() as tasks:
            for lane in range(LANES):
                tasks.start_soon(
                    races.race_codex if harness.cli is CODEX else races.race_claude, lane
                )
        store = library._deps.store
        runs = [await (await library.run(run.id)).result() for run in await store.runs()]
        items = [await store.items(run.agent, include_settled=True) for run in runs]
        return runs, list({item.id: item for lane in items for item in lane}.values())


@each_cli
def test_message_at_the_end_of_a_turn_is_delivered_once_or_returned(
    tmp_path: Path, cli: Cli
) -> None:
    messages = [f"then-{lane}-{n}" for lane in range(LANES) for n in range(len(MOMENTS))]
    model = GatedModel() if cli is CLAUDE else HeldFirst()
    with cli_harness(tmp_path, model, cli=cli) as harness:
        runs, items = anyio.run(run_races, harness, model)

        requests = harness.server.main_requests
        assert len(messages) >= 20
        assert {(run.status, run.text) for run in runs} == {("completed", "I heard you.")}
        for item in items:
            is_delivered = item.delivery in {"absorbed", "own_turn"} or item.kind == "call"
            assert item.status == ("completed" if is_delivered else "cancelled")
        # A message that was refused at once is no item.
        delivered = [item.text for item in items if item.status == "completed"]
        for text in {*messages, *delivered}:
            # The model is asked to answer it once, and has it once in its conversation.
            asked = [request for request in requests if text in request.user_text]
            assert (text, len(asked)) == (text, delivered.count(text))
            assert count_sent(harness.server, text) == delivered.count(text)
        own_turns = [item for item in items if item.delivery == "own_turn" or item.kind == "call"]
        assert len(runs) == len(own_turns)
        if cli is CLAUDE:
            assert sorted(request.user_text for request in requests) == sorted(delivered)


class ProcessRaces:
    """Offers messages at the end of the turns of one process, and finds what became of each."""

    def __init__(self, model: GatedModel) -> None:
        self._model = model
        self.sink = EventSink()
        self.messages: list[str] = []
        self._refused: set[str] = set()

    async def race(self, driver: ProcessDriver, number: int) -> None:
        """Offer one or two messages, at once or after some of the output at the end of a turn."""
        sink, turn = self.sink, Turn(f"t{number}", f"first-{number}-")
        messages = [f"then-{number}{letter}-" for letter in ("ab" if number % 4 == 3 else "a")]
        await driver.begin(turn)
        await wait_for_gate(self._model.gate(turn.text))
        enough, ends = len(sink.events) + number % 5, len(sink.ends)
        self._model.gate(turn.text).open()
        await sink.wait_until(lambda: len(sink.events) > enough or len(sink.ends) > ends)
        for message in messages:
            self.messages.append(message)
            if await driver.steer(Offer(message, message)):
                self._refused.add(message)
        await sink.wait_until(lambda: all(map(self.find_outcome, messages)))
        # A turn of its own has an end of its own.
        await sink.wait_until(lambda: len(sink.ends) > ends + self.count_own_turns(messages))

    def count_own_turns(self, messages: list[str]) -> int:
        return [self.find_outcome(message) for message in messages].count("own turn")

    def find_outcome(self, message: str) -> str:
        """All that was reported of a message, which should be one thing."""
        found = []
        for event in self.sink.events:
            match event:
                case ev.FollowupAbsorbed(item, _) if item == message:
                    found.append("absorbed")
                case ev.FollowupOwnTurn(item, _) if item == message:
                    found.append("own turn")
                case ev.FollowupReturned(item, _, _) if item == message:
                    found.append("returned")
        return " ".join([*found, *["refused"] * (message in self._refused)])


async def race_process(harness: CliHarness, races: ProcessRaces) -> None:
    async with drive_warm_process(harness, Turn("t0", "first-0-"), races.sink) as driver:
        for number in range(RACES):
            await races.race(driver, number)
        await close_and_wait(driver, harness)


def test_each_message_at_the_end_of_many_codex_turns_has_one_outcome(tmp_path: Path) -> None:
    races = ProcessRaces(model := HeldFirst())
    with cli_harness(tmp_path, model, cli=CODEX) as harness:
        anyio.run(race_process, harness, races)

        outcomes = {message: races.find_outcome(message) for message in races.messages}
        assert set(outcomes.values()) <= {"absorbed", "own turn", "returned", "refused"}
        delivered = [
            text for text, outcome in outcomes.items() if outcome in {"absorbed", "own turn"}
        ]
        assert [text for text in outcomes if count_sent(harness.server, text)] == delivered
        assert {count_sent(harness.server, text) for text in delivered} == {1}
        ends = races.sink.ends
        assert {(end.status, end.text) for end in ends} == {("completed", "I heard you.")}
        assert len(ends) == RACES + races.count_own_turns(races.messages)


# -- background tasks of Claude Code


def start_background_task(
    folder: Path, gate: StreamGate | None = None
) -> Callable[[ModelRequest], ModelAnswer]:
    """A model that starts a command in the background and is informed of its end."""

    def step(request: ModelRequest) -> ModelAnswer:
        if request.results:
            return answer(make_text("It ", *([gate] if gate else []), "runs."))
        if "<task-notification>" in request.user_text:
            return answer("It has ended.")
        if "begin" in request.user_text:
            command = build_waiting_command(folder)
            return answer(call("Bash", command=command, run_in_background=True))
        return answer(f"Received {request.user_text}.")

    return step


def test_turn_that_a_background_task_begins_is_a_run_of_its_own(tmp_path: Path) -> None:
    async def end_task(run: RunHandle) -> None:
        await wait_for_event(run, ev.RunCompleted)
        (tmp_path / "go").touch()

    with cli_harness(tmp_path, start_background_task(tmp_path)) as harness:
        record = harness.run("begin", end_task)

        assert reply_texts(record) == ["It runs.", "It has ended."]
        assert [(item.kind, item.status) for item in record.items] == [
            ("call", "completed"),
            ("self", "completed"),
        ]
        assert len(harness.server.main_requests) == 3


def test_message_and_end_of_a_background_task_are_separate_items(tmp_path: Path) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, start_background_task(tmp_path, gate)) as harness:

        async def end_task_and_steer(run: RunHandle) -> None:
            await wait_for_gate(gate)
            (tmp_path / "go").touch()
            await wait_for_output(harness, b'"task_updated"')
            await steer_and_wait(harness, run, "follow")
            gate.open()

        record = harness.run("begin", end_task_and_steer)

        assert reply_texts(record) == ["It runs.", "It has ended.", "Received follow."]
        assert [(item.kind, item.delivery) for item in record.items] == [
            ("call", "none"),
            ("message", "own_turn"),
            ("self", "none"),
        ]
        assert count_sent(harness.server, '"follow"') == 1
