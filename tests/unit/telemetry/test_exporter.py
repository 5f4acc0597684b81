"""Each span reaches the collector, whatever the collector does."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.trace import get_tracer_provider

from steadyrun.errors import StoreFull
from steadyrun.lib.task_group import task_group
from steadyrun.model import event as ev
from steadyrun.model.agent import Agent
from steadyrun.model.event import Event
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message
from steadyrun.model.run import Created, Finished
from steadyrun.model.secret import Scrubber, Secret
from steadyrun.store import Store
from steadyrun.telemetry.exporter import MOST_SENT, Exporter
from steadyrun.telemetry.otlp import LONGEST_TEXT, OtlpCollector, build_address
from steadyrun.telemetry.spans import SpanData
from tests.support.daemon_harness import capture_log, wait_for
from tests.support.fake_daemon import FakeDaemon, Play, open_context
from tests.support.otlp_collector import collecting

PATIENCE_SECONDS = 20.0
SECRET = "hunter2-hunter2"
TOOL = (ev.ToolStarted("call_1", "Bash"), ev.ToolCompleted("call_1", "Bash"))


class FakeCollector:
    """A collector that refuses the given number of batches."""

    def __init__(self, refusals: int = 0) -> None:
        self.batches: list[list[SpanData]] = []
        self.tries = 0
        self._refusals = refusals

    def send(self, spans: Sequence[SpanData]) -> bool:
        self.tries += 1
        if self.tries <= self._refusals:
            return False
        self.batches.append(list(spans))
        return True

    @property
    def names(self) -> list[str]:
        return [span.name for batch in self.batches for span in batch]


class Record:
    """A record to write runs into."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self._daemon, self.store = daemon, daemon.store

    async def begin(self, text: str = "go") -> Play:
        agent = Agent(AgentId(f"agt_{text}"), text, ("scripted",), "/")
        await self.store.add_agent(agent)
        await self.store.accept(Message(agent.id, text))
        holder = await self.store.join("daemon")
        [started] = await self.store.start(
            holder.id,
            lambda agent, item: Created(
                self._daemon.ids.make_run(),
                agent.id,
                item.id,
                agent.provider,
                self._daemon.clock.now(),
            ),
        )
        play = Play(self._daemon, started)
        await play.begin()
        return play

    async def end(self, play: Play, *events: Event, text: str = "done") -> None:
        if events:
            await play.say(*events)
        ended = Finished(self._daemon.clock.now(), "completed", text=text)
        await self.store.settle(play._started.claim, ended)

    async def told(
        self,
        took: FakeCollector,
        *,
        content: bool = False,
        waits: Sequence[float] = (),
        store: Any = None,
        until: Callable[[], object] = lambda: True,
    ) -> None:
        """Export what there is, as a daemon that starts and ends does, not before `until`."""
        scrubber = Scrubber([Secret(SECRET)])
        exporter = Exporter(store or self.store, took.send, scrubber, content=content, waits=waits)
        await exporter.begin()
        async with task_group() as tasks:
            tasks.start_soon(exporter.run)
            await wait_for(until, "what is exported")
            exporter.end()


@asynccontextmanager
async def recording(place: Path) -> AsyncIterator[Record]:
    """A record that was exported once while it was empty."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with open_context(place) as (_, daemon):
            record = Record(daemon)
            await record.told(FakeCollector())
            yield record


async def test_runs_before_the_first_export_are_not_exported(tmp_path: Path) -> None:
    async with open_context(tmp_path) as (_, daemon):
        record, took = Record(daemon), FakeCollector()
        await record.end(await record.begin("old"))
        await record.told(took)
        assert took.names == []

        await record.end(await record.begin("new"))
        await record.told(took)
        await record.told(took)

    assert took.names == ["invoke_agent new"]


async def test_run_that_continued_between_exports_is_exported_from_its_beginning(
    tmp_path: Path,
) -> None:
    async with recording(tmp_path) as record:
        first, second = FakeCollector(), FakeCollector()
        play = await record.begin("ada")
        await play.say(TOOL[0])
        await record.told(first)

        await record.end(play, TOOL[1])
        await record.told(second)

        begun = (await record.store.events())[0]
        started = next(e for e in await record.store.events() if e.event == TOOL[0])
    assert first.names == []
    assert second.names == ["execute_tool Bash", "invoke_agent ada"]
    [[tool, run]] = second.batches
    assert (run.start, tool.start) == (begun.at, started.at)
    assert run.attributes["steadyrun.item"]


async def test_refused_spans_are_sent_again_and_logged_once(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        await record.end(await record.begin("ada"))
        took = FakeCollector(refusals=2)
        with capture_log() as told:
            await record.told(took, until=lambda: took.batches, waits=(0, 0, 0))
    assert took.names == ["invoke_agent ada"]
    assert took.tries == 3
    assert told.facts_of("telemetry.failed") == [{"spans": 1}]
    assert told.facts_of("telemetry.dropped") == []


async def test_spans_refused_too_often_are_dropped_and_later_spans_sent(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        await record.end(await record.begin("ada"))
        took = FakeCollector(refusals=3)
        with capture_log() as told:
            dropped = partial(told.facts_of, "telemetry.dropped")
            await record.told(took, until=dropped, waits=(0, 0))
            await record.end(await record.begin("bob"))
            await record.told(took)
    assert took.names == ["invoke_agent bob"]
    assert told.facts_of("telemetry.dropped") == [{"spans": 1}]


async def test_spans_not_sent_before_the_stop_are_sent_by_the_next_exporter(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        await record.end(await record.begin("ada"))
        took = FakeCollector(refusals=100)
        await record.told(took, waits=(60.0,))
        assert took.names == []

        took.tries = 100
        await record.told(took)

    assert took.names == ["invoke_agent ada"]


async def test_many_spans_are_sent_in_batches(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        tools = [
            each
            for n in range(MOST_SENT)
            for each in (ev.ToolStarted(f"c{n}", "Bash"), ev.ToolCompleted(f"c{n}", "Bash"))
        ]
        await record.end(await record.begin("ada"), *tools)
        took = FakeCollector()
        await record.told(took)
    assert [len(batch) for batch in took.batches] == [MOST_SENT, 1]


def test_content_is_exported_only_on_request_and_without_secrets(tmp_path: Path) -> None:
    async def main() -> tuple[str, str]:
        async with recording(tmp_path) as record:
            plain, took = FakeCollector(), FakeCollector()
            await record.end(await record.begin(f"ask-{SECRET}"))
            await record.told(plain)
            await record.end(await record.begin(f"again-{SECRET}"), text=f"so {SECRET}")
            await record.told(took, content=True)
            return str(plain.batches), str(took.batches)

    plain, full = anyio.run(main)

    assert "gen_ai.input.messages" not in plain
    assert "gen_ai.input.messages" in full
    assert SECRET not in plain + full


class Failing:
    """A store whose disk is full, for one verb and once."""

    def __init__(self, store: Store, verb: str) -> None:
        self._store, self._verb = store, verb

    def __getattr__(self, name: str) -> Any:
        if name != self._verb:
            return getattr(self._store, name)
        self._verb = ""
        return self._fail

    async def _fail(self, *_: object, **__: object) -> None:
        raise StoreFull("no room", path=Path("store.db"))


@pytest.mark.parametrize("verb", ["events", "put"])
async def test_store_failure_is_logged_and_no_span_is_missed(tmp_path: Path, verb: str) -> None:
    async with recording(tmp_path) as record:
        await record.end(await record.begin("ada"))
        took, store = FakeCollector(), record.store
        with capture_log() as told:
            await record.told(took, store=Failing(store, verb))
        await record.told(took)
    assert told.facts_of("store.failed") == [{"error": "store_full"}]
    # Told twice at most, and then it is the same.
    assert set(took.names) == {"invoke_agent ada"}
    assert len({span.id for batch in took.batches for span in batch}) == 1


def test_error_in_the_exporter_is_logged_and_not_raised(tmp_path: Path) -> None:
    class Broken(FakeCollector):
        def send(self, spans: Sequence[SpanData]) -> bool:
            raise ValueError(spans)

    async def main() -> None:
        async with recording(tmp_path) as record:
            await record.end(await record.begin("ada"))
            await record.told(Broken())

    with capture_log(has_bugs=True) as told:
        anyio.run(main)

    assert told.facts_of("bug")[0]["error"] == "ValueError"


def test_long_text_is_cut_and_refusal_is_reported(tmp_path: Path) -> None:
    async def main() -> list[SpanData]:
        async with recording(tmp_path) as record:
            took = FakeCollector()
            await record.end(await record.begin("ada"), text="x" * LONGEST_TEXT * 2)
            await record.told(took, content=True)
            return took.batches[0]

    spans = anyio.run(main)
    with collecting() as collector:
        otlp = OtlpCollector(collector.endpoint, {"x-team": Secret("blue")})
        is_taken = otlp.send(spans)
        collector.status = 400
        is_refused = not otlp.send(spans)
        otlp.close()
        [run] = collector.wait(1)

    assert (is_taken, is_refused) == (True, True)
    assert len(run.attributes["gen_ai.output.messages"]) == LONGEST_TEXT
    assert collector.asked[0][1]["x-team"] == "blue"


def test_global_tracer_provider_is_unchanged() -> None:
    before = get_tracer_provider()

    OtlpCollector("http://127.0.0.1:4318", {}).close()

    assert get_tracer_provider() is before


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://example.org/otlp", "https://example.org/otlp/v1/traces"),
        ("https://example.org/otlp/v1/traces", "https://example.org/otlp/v1/traces"),
    ],
)
def test_endpoint_is_accepted_with_and_without_its_path(endpoint: str, url: str) -> None:
    assert build_address(endpoint) == url
