"""Spans are built from the record."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact, Event, EventId, StoredEvent
from steadyrun.model.ids import RunId
from steadyrun.model.usage import Cost, Usage
from steadyrun.telemetry.spans import INPUT, SpanBuilder, SpanData
from steadyrun.testing.clock import START

RUN = RunId("run_1")
BEGUN = ev.RunStarted("claude", "opus", "itm_1")
TOOL = ev.ToolStarted("call_1", "Bash", {"command": "ls"})
DONE = ev.RunCompleted("completed", text="all is well")


def second(number: float) -> datetime:
    return START + timedelta(seconds=number)


def record(*events: Event, run: RunId | None = RUN, provider: str = "claude") -> list[StoredEvent]:
    """One event each second."""
    return [
        StoredEvent(n, n, EventId(f"{run}:{n}"), second(n), "ada", run, provider, event)
        for n, event in zip(count(1), events, strict=False)
    ]


def heard(seen: Sequence[StoredEvent], *, content: bool = False) -> list[SpanData]:
    spans = SpanBuilder(content=content)
    return [span for each in seen for span in spans.read(each)]


def the_run(*events: Event, content: bool = False, provider: str = "claude") -> SpanData:
    return heard(record(*events, provider=provider), content=content)[-1]


class TestTheRun:
    def test_span_of_a_run_covers_its_first_and_last_event(self) -> None:
        span = the_run(BEGUN, ev.TextFinal("hm"), DONE)

        assert (span.name, span.kind, span.parent) == ("invoke_agent ada", "client", None)
        assert (span.start, span.end) == (second(1), second(3))

    def test_span_of_a_run_without_a_start_has_its_duration(self) -> None:
        span = the_run(ev.RunFailed("failed", duration_ms=400))

        assert span.end - span.start == timedelta(milliseconds=400)

    def test_provider_name_follows_the_kind_of_the_provider(self) -> None:
        spans = SpanBuilder(kinds={"work": "claude", "claude": "claude"})
        seen = [*record(DONE, provider="work"), *record(DONE, provider="claude")]

        [work], [plain] = (spans.read(each) for each in seen)

        assert work.attributes["gen_ai.provider.name"] == "anthropic"
        assert work.attributes["steadyrun.provider"] == "work"
        assert plain.attributes["gen_ai.provider.name"] == "anthropic"
        assert "steadyrun.provider" not in plain.attributes

    @pytest.mark.parametrize(
        ("provider", "name"),
        [("claude", "anthropic"), ("codex", "openai"), ("scripted", "scripted")],
    )
    def test_provider_name_follows_the_conventions(self, provider: str, name: str) -> None:
        span = the_run(BEGUN, DONE, provider=provider)

        assert span.attributes["gen_ai.provider.name"] == name

    def test_request_model_and_response_model_are_different_attributes(self) -> None:
        span = the_run(BEGUN, ev.StatsUpdated("opus-4"), ev.StatsUpdated(), DONE)

        assert span.attributes["gen_ai.request.model"] == "opus"
        assert span.attributes["gen_ai.response.model"] == "opus-4"

    def test_cached_tokens_are_part_of_the_input_tokens(self) -> None:
        span = the_run(BEGUN, ev.RunCompleted("completed", usage=Usage(5, 7, 100, 20)))

        used = {k: v for k, v in span.attributes.items() if k.startswith("gen_ai.usage.")}
        assert used == {
            "gen_ai.usage.input_tokens": 125,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.usage.cache_read.input_tokens": 100,
            "gen_ai.usage.cache_creation.input_tokens": 20,
        }

    def test_unknown_values_are_left_out_and_zeros_are_kept(self) -> None:
        unknown = the_run(BEGUN, DONE).attributes
        zero = the_run(
            BEGUN, ev.RunCompleted("completed", usage=Usage(0, 0), cost=Cost(0, "known"))
        )

        assert not [key for key in unknown if key.startswith("gen_ai.usage.")]
        assert "steadyrun.cost.usd" not in unknown
        assert unknown["steadyrun.cost.kind"] == "unknown"
        assert zero.attributes["gen_ai.usage.input_tokens"] == 0
        assert zero.attributes["gen_ai.usage.output_tokens"] == 0
        assert zero.attributes["steadyrun.cost.usd"] == 0

    @pytest.mark.parametrize(
        ("ended", "error"),
        [
            (ev.RunCompleted("completed"), None),
            (ev.RunCancelled("cancelled", "user_stop"), None),
            (ev.RunFailed("failed", error=ErrorFact("auth", "no: secret words")), "auth"),
            (ev.RunFailed("failed"), "failed"),
            (ev.RunTimedOut("timed_out", "idle_timeout"), "idle_timeout"),
            (ev.RunRateLimited("rate_limited", error=ErrorFact("limit", "")), "limit"),
        ],
    )
    def test_error_type_of_a_run_is_a_code(self, ended: Event, error: str | None) -> None:
        span = the_run(BEGUN, ended)

        assert span.is_error == (error is not None)
        assert span.attributes.get("error.type") == error
        assert "secret" not in str(span)


class TestTools:
    def test_span_of_a_tool_is_a_child_of_its_run(self) -> None:
        seen = record(BEGUN, TOOL, ev.ToolCompleted("call_1", "Bash", None, "a b"), DONE)

        tool, run = heard(seen)

        assert (tool.name, tool.kind) == ("execute_tool Bash", "internal")
        assert (tool.start, tool.end) == (second(2), second(3))
        assert (tool.parent, tool.trace) == (run.id, run.trace)
        assert tool.attributes == {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.provider.name": "anthropic",
            "gen_ai.agent.name": "ada",
            "gen_ai.tool.name": "Bash",
            "gen_ai.tool.call.id": "call_1",
            "gen_ai.tool.type": "function",
            "steadyrun.run": RUN,
        }

    @pytest.mark.parametrize(
        ("failed", "code"),
        [("no such file: /etc/x", "tool_failed"), ("still_running", "still_running")],
    )
    def test_error_type_of_a_tool_is_a_code(self, failed: str, code: str) -> None:
        tool, _ = heard(record(BEGUN, TOOL, ev.ToolFailed("call_1", "Bash", error=failed), DONE))

        assert (tool.is_error, tool.attributes["error.type"]) == (True, code)
        assert "/etc/x" not in str(tool)

    def test_tool_without_an_end_ends_with_its_run(self) -> None:
        tool, run = heard(record(BEGUN, TOOL, ev.RunFailed("failed")))

        assert (tool.name, tool.end) == ("execute_tool Bash", run.end)
        assert tool.attributes["error.type"] == "still_running"

    def test_tool_without_a_start_has_a_span(self) -> None:
        tool, _ = heard(record(BEGUN, ev.ToolCompleted("call_9", "Read"), DONE))

        assert (tool.name, tool.start, tool.end) == ("execute_tool Read", second(2), second(2))


class TestContent:
    def test_content_is_included_only_on_request(self) -> None:
        seen = record(BEGUN, TOOL, ev.ToolCompleted("call_1", "Bash", None, {"out": 1}), DONE)

        tool, run = heard(seen, content=True)
        plain = heard(seen)

        assert tool.attributes["gen_ai.tool.call.arguments"] == '{"command":"ls"}'
        assert tool.attributes["gen_ai.tool.call.result"] == '{"out":1}'
        assert "all is well" in str(run.attributes["gen_ai.output.messages"])
        assert "all is well" not in str(plain)
        assert "command" not in str(plain)

    def test_content_of_a_failed_tool_is_its_error(self) -> None:
        failed = ev.ToolFailed("call_1", "Bash", error="no such file")
        tool, _ = heard(record(BEGUN, TOOL, failed, DONE), content=True)

        assert tool.attributes["gen_ai.tool.call.result"] == "no such file"


def test_event_without_a_run_has_no_span() -> None:
    assert heard(record(ev.TokenBound("x"), ev.GateOpened("claude"), run=None)) == []


def test_ended_run_is_removed_from_the_builder() -> None:
    spans = SpanBuilder()
    first, last = record(BEGUN, DONE)
    spans.read(first)
    assert spans.has_open(RUN)

    spans.read(last)

    assert not spans.has_open(RUN)


def test_every_attribute_is_from_the_conventions_or_begins_with_steadyrun() -> None:
    known = {
        value for module in (gen_ai_attributes, error_attributes) for value in constants(module)
    }
    ended = ev.RunFailed("failed", text="x", usage=Usage(1, 2, 3, 4), resume_token="t")
    completed = ev.ToolCompleted("call_1", "Bash", None, "out")

    spans = heard(record(BEGUN, ev.StatsUpdated("m"), TOOL, completed, ended), content=True)

    used = {INPUT, *(key for span in spans for key in span.attributes)}
    assert {key for key in used - known if not key.startswith("steadyrun.")} == set()
    operations = {span.attributes["gen_ai.operation.name"] for span in spans}
    assert operations <= {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    makers = {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    assert {"anthropic", "openai"} <= makers


def constants(module: object) -> list[str]:
    return [value for value in vars(module).values() if isinstance(value, str)]
