"""Tests the events made from text, usage and notices of Claude Code."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.dialect import TurnEnded
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.claude.frames import SILENT_TYPES
from steadyrun.providers.claude.state import ClaudeState
from steadyrun.providers.shared.prices import estimate_cost
from tests.support.claude_lines import (
    T1,
    Line,
    Talk,
    aborted,
    ask,
    assistant,
    delta,
    echo,
    init,
    reply,
    result,
    stream,
    system,
    text,
    the_end,
    tool,
    tool_result,
    used,
    user,
    working,
)

# -- words


def test_streamed_pieces_are_reported() -> None:
    thinking = {"type": "thinking_delta", "thinking": "hm"}

    said = working().hear(delta("He"), stream("content_block_delta", delta=thinking))

    assert said == [ev.TextDelta("He"), ev.ThinkingDelta("hm")]


@pytest.mark.parametrize(
    "line",
    [
        stream("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        stream("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}),
        stream("content_block_delta", delta={"type": "signature_delta", "signature": "x"}),
        stream("content_block_delta", delta={"type": "of another kind", "x": 1}),
        stream("content_block_stop", index=0),
        stream("message_stop"),
        stream("ping"),
    ],
)
def test_other_stream_events_cause_no_event(line: Line) -> None:
    assert working().hear(line) == []


def test_thinking_is_reported_once() -> None:
    thought = assistant({"type": "thinking", "thinking": "hm", "signature": "x"})
    talk = working()

    whole = talk.hear(thought)
    streamed = talk.hear(stream("message_start", message={"id": "msg1"}), thought)

    assert whole == [ev.ThinkingDelta("hm")]
    assert streamed == []


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "of another kind"},
    ],
)
def test_an_empty_part_causes_no_event(block: dict[str, Any]) -> None:
    assert working().hear(assistant(block)) == []


def test_a_command_without_text_causes_no_event() -> None:
    line = {
        "id": "x",
        "model": "<synthetic>",
        "content": [{"type": "text", "text": "(no content)"}],
    }

    assert working().hear({"type": "assistant", "message": line}) == []


def test_the_answer_is_what_the_result_says() -> None:
    talk = working()
    talk.hear(text("on the way"))

    assert the_end(talk.hear(result('{"a":1}', structured_output={"a": 1}))).text == '{"a":1}'


def test_an_error_is_no_answer() -> None:
    talk = working()
    talk.hear(text("so far"))

    said = talk.hear(text("API Error: 429", error="rate_limit"), result("API Error", is_error=True))

    end = the_end(said)
    assert ev.TextFinal not in map(type, said)
    assert end.error
    assert (end.text, end.status, end.error.message) == ("so far", "rate_limited", "API Error")


def test_the_first_error_counts() -> None:
    talk = working()
    talk.hear(text("x", error="billing_error"), text("y", error="rate_limit"))

    error = the_end(talk.hear(result("z", is_error=True))).error

    assert error
    assert error.code == "billing"


def test_an_error_is_forgotten_with_its_turn() -> None:
    talk = working()
    talk.hear(text("x", error="rate_limit"), result("x", is_error=True))
    talk.turn("t2")

    error = the_end(talk.hear(result("y", is_error=True))).error

    assert error
    assert error.code == "provider_error"


@pytest.mark.parametrize(
    "line",
    [
        user({"type": "text", "text": "[Request interrupted by user]"}),
        user({"type": "text", "text": "This session is being continued"}, isSynthetic=True),
        {"type": "user", "message": {"content": "<local-command-stdout>x"}, "isReplay": True},
        {"type": "user", "message": {"content": "words"}},
    ],
)
def test_text_for_the_model_is_not_reported(line: Line) -> None:
    assert working().hear(line) == []


# -- numbers


def test_a_turn_has_used_what_was_added_since_the_last() -> None:
    talk = working()
    talk.hear(result(total_cost_usd=0.1, modelUsage=used(inputTokens=10, outputTokens=1)))
    talk.turn("t2")
    more = {
        **used(inputTokens=30, outputTokens=3, cacheReadInputTokens=7),
        **used("m2", inputTokens=5, cacheCreationInputTokens=2),
    }

    stats, end = talk.hear(result(total_cost_usd=0.3, modelUsage=more))

    assert isinstance(end, TurnEnded)
    assert (end.usage, end.cost) == (Usage(25, 2, 7, 2), Cost(0.2, "known"))
    assert stats == ev.StatsUpdated("m1", 200000, 7, 2, 2, "completed")


def test_totals_that_have_fallen_were_begun_anew() -> None:
    talk = working()
    talk.hear(result(total_cost_usd=0.5, modelUsage=used(inputTokens=10)))
    talk.turn("t2")

    end = the_end(talk.hear(result(total_cost_usd=0.1, modelUsage=used(inputTokens=4))))

    assert (end.usage, end.cost) == (Usage(4, 0, 0, 0), Cost(0.1, "known"))


def test_without_totals_the_usage_of_the_turn_counts() -> None:
    usage = {"input_tokens": 3, "output_tokens": 4}

    assert the_end(working().hear(result(usage=usage, modelUsage=None))).usage == Usage(3, 4)


@pytest.mark.parametrize("cost", [None, -1.0, 1e300])
def test_a_cost_that_is_none_is_not_known(cost: float | None) -> None:
    assert the_end(working().hear(result(total_cost_usd=cost))).cost == Cost()


def test_a_tool_that_was_cut_off_is_paid_for() -> None:
    said = aborted(terminal_reason="aborted_tools", total_cost_usd=0.1)

    assert the_end(working().hear(said)).cost == Cost(0.1, "known")


def test_usage_is_reported_after_every_call() -> None:
    talk = working()
    begun = stream("message_start", message={"id": "x", "usage": {"input_tokens": 10}})

    said = talk.hear(
        begun,
        stream("message_delta", usage={"output_tokens": 5}),
        begun,
        stream("message_delta", usage={"input_tokens": 12, "output_tokens": 6}),
    )

    assert said == [
        ev.UsageUpdated(Usage(10, 5, 0, 0)),
        ev.UsageUpdated(Usage(22, 11, 0, 0)),
    ]


def test_a_call_is_priced_by_its_own_model_until_the_price_is_named() -> None:
    talk = working()

    def called(model: str) -> list[Any]:
        message = {"id": "x", "model": model, "usage": {"input_tokens": 1_000_000}}
        ended = stream("message_delta", usage={"output_tokens": 0})
        return talk.hear(stream("message_start", message=message), ended)

    first, second, third = (
        called("claude-haiku-4-5")[0], called("claude-haiku-4-5")[0], called("no-such-model")[0]
    )  # fmt: skip

    assert first.cost == estimate_cost("claude-haiku-4-5", first.usage, is_one_call=True)
    assert second.cost == Cost(2 * first.cost.usd, "estimated")
    # What is not known of a call is not known of the turn.
    assert (third.usage.input_tokens, third.cost) == (3_000_000, Cost())


# -- news


def test_a_compaction_is_reported() -> None:
    found = {"trigger": "auto", "pre_tokens": 9000, "post_tokens": 400}

    said = working().hear(
        system("status", status="requesting"),
        system("status", status="compacting"),
        system("status", status=None, compact_result="success"),
        system("compact_boundary", compact_metadata=found),
    )

    assert said == [ev.CompactionStarted("auto"), ev.CompactionCompleted("auto", 9000, 400)]


def test_a_compaction_that_failed_does_not_end_the_turn() -> None:
    talk = working()

    said = talk.hear(
        system("status", status="compacting"),
        system("status", status=None, compact_result="failed", compact_error="too_few_groups"),
    )

    assert said[-1] == ev.CompactionFailed("too_few_groups")
    assert the_end(talk.hear(result())).status == "completed"


def test_a_retried_call_is_reported() -> None:
    line = system(
        "api_retry", attempt=2, retry_delay_ms=537.6, error_status=529, error="overloaded"
    )

    assert working().hear(line) == [ev.ProviderRetrying(2, 538, "overloaded")]


def test_another_model_may_take_over_for_a_turn() -> None:
    talk = working()

    said = talk.hear(system("model_fallback", fallback_model="m2", content="Switched"))
    stats = talk.hear(result(modelUsage=used("m2", outputTokens=5)))[0]
    talk.turn("t2")

    assert said == [ev.Note("Switched"), ev.StatsUpdated(model="m2")]
    assert isinstance(stats, ev.StatsUpdated)
    assert (stats.model, stats.context_window) == ("m2", 200000)
    assert talk.hear(init()) == [ev.StatsUpdated(model="m1")]


def limit(status: str, **fields: Any) -> Line:
    return {"type": "rate_limit_event", "rate_limit_info": {"status": status, **fields}}


def retry_at(talk: Talk) -> Any:
    error = the_end(talk.hear(result("x", is_error=True, api_error_status=429))).error
    assert error
    return error.retry_at


def test_a_reached_limit_has_its_end() -> None:
    talk = working()

    assert talk.hear(limit("rejected", resetsAt=1794785857)) == []
    assert retry_at(talk).timestamp() == 1794785857


def test_the_end_of_a_reached_limit_applies_to_the_next_turn() -> None:
    talk = working()
    talk.hear(limit("rejected", resetsAt=1794785857))
    retry_at(talk)
    talk.turn("t2")

    assert retry_at(talk).timestamp() == 1794785857


@pytest.mark.parametrize("line", [limit("allowed"), result()])
def test_a_limit_is_over_when_something_is_allowed(line: Line) -> None:
    talk = working()
    talk.hear(limit("rejected", resetsAt=1794785857), line)
    talk.turn("t2")

    assert retry_at(talk) is None


def test_a_limit_that_is_near_is_noted() -> None:
    near = limit(
        "allowed_warning", rateLimitType="five_hour", utilization=0.91, resetsAt=1794785857
    )

    assert working().hear(near) == [
        ev.Note("limit five_hour: allowed_warning, 91% used, until 2026-11-15 23:37 UTC")
    ]


@pytest.mark.parametrize("kind", ["notification", "informational", "permission_denied"])
def test_words_for_people_are_noted(kind: str) -> None:
    talk = working()

    assert talk.hear(system(kind, message="look")) == [ev.Note("look")]
    assert talk.hear(system(kind)) == []


@pytest.mark.parametrize(
    "line",
    [
        system("thinking_tokens", estimated_tokens=3),
        system("hook_started", hook_name="x"),
        {"type": "keep_alive"},
        {"type": "tool_progress", "tool_use_id": "c1", "elapsed_time_seconds": 3},
        {"type": "control_response", "response": {"subtype": "success", "request_id": "other"}},
        {"type": "control_cancel_request", "request_id": "other"},
    ],
)
def test_some_lines_are_known_and_say_nothing(line: Line) -> None:
    assert working().hear(line) == []


# -- what cannot be right


def test_silent_lines_cause_no_event() -> None:
    """Newer versions tell of each message that it is queued, started and completed."""
    lines = [{"type": kind, "command_uuid": T1, "state": "queued"} for kind in SILENT_TYPES]

    assert working().hear(*lines) == []
    assert "command_lifecycle" in SILENT_TYPES


@pytest.mark.parametrize(
    "line",
    [
        {"type": "of another kind", "x": 1},
        {"type": "system", "subtype": "of another kind"},
        {"type": "system"},
        {"type": 3},
        {},
        {"type": "assistant"},
        {"type": "assistant", "message": {"content": "words"}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": {}}]}},
        {"type": "user", "message": {"content": [{"type": 3}]}},
        {"type": "stream_event", "event": {"type": "content_block_delta", "delta": {"text": 3}}},
        {"type": "control_request"},
        {"type": "control_response", "response": []},
        {"type": "rate_limit_event", "rate_limit_info": None},
        system("init", session_id=3),
        system("api_retry", attempt="many"),
        stream("message_delta", usage={"output_tokens": 10**30}),
        stream("message_delta", usage={"output_tokens": -1}),
    ],
)
def test_what_is_json_and_not_known_is_kept(line: Line) -> None:
    assert working().hear(line) == [ev.Unknown(json.dumps(line))]


@pytest.mark.parametrize(
    "line", [b"", b"words", b"{", b"[" * 100_000, b'{"type":"result"', b"\xff"]
)
def test_what_is_not_json_is_for_the_driver_to_keep(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        working().hear(line)


def test_half_a_character_is_no_reason_to_lose_a_line() -> None:
    line = json.dumps(text("cut \ud83d")).encode()

    assert working().hear(line) == [ev.TextFinal("cut ?")]


def test_bytes_that_are_no_text_are_replaced() -> None:
    line = json.dumps(text("a?b")).encode().replace(b"?", b"\xff")

    assert working().hear(line) == [ev.TextFinal("a\ufffdb")]


def test_half_a_character_in_the_input_of_a_tool_is_no_reason_to_lose_it() -> None:
    said = working().hear(json.dumps(tool(given={"command": "\udc00"})).encode())

    assert said == [ev.ToolStarted("c1", "Bash", {"command": "?"})]


def test_a_deep_input_is_no_reason_to_stop() -> None:
    deep = b'{"type":"assistant","message":{"content":[{"type":"tool_use","id":"c1","input":'

    with pytest.raises(msgspec.DecodeError):
        working().hear(deep + b"[" * 50_000 + b"]" * 50_000 + b"}]}}")


USUAL: list[Line] = [
    init(),
    text("hi"),
    tool(),
    tool_result(),
    tool("c2", "StructuredOutput"),
    delta("h"),
    stream("message_start", message={"id": "x", "usage": {"input_tokens": 1}}),
    stream("message_delta", usage={"output_tokens": 1}),
    ask(),
    reply("open"),
    echo(T1, "hello"),
    limit("rejected", resetsAt=1),
    system("status", status="compacting"),
    system("compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 1}),
    system("api_retry", attempt=1, retry_delay_ms=1.5, error="overloaded"),
    system("task_started", task_id="b1", tool_use_id="c1"),
    system("background_tasks_changed", tasks=[{"task_id": "b1"}]),
    result(modelUsage=used(inputTokens=1), usage={"input_tokens": 1}, errors=["x"]),
]
ODD: list[Any] = [None, True, -1, 1.5, 10**30, 1e300, "", "x" * 9, [], [[]], {}, [{"type": 1}]]


def spoilt(value: Any, data: st.DataObject) -> Any:
    """The value with something else in one place of it."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = data.draw(st.sampled_from(list(keys)))
    inner = value[key]
    goes_on = isinstance(inner, dict | list) and inner and data.draw(st.booleans())
    other = spoilt(inner, data) if goes_on else data.draw(st.sampled_from(ODD))
    if isinstance(value, dict):
        return {**value, key: other}
    return [*value[:key], other, *value[key + 1 :]]


@given(st.lists(st.sampled_from(USUAL), max_size=6), st.data())
def test_no_line_is_too_strange(lines: list[Line], data: st.DataObject) -> None:
    talk = working()

    for line in lines:
        talk.hear(spoilt(json.loads(json.dumps(line)), data))
    saved = msgspec.msgpack.encode(talk.dialect.state)

    assert msgspec.msgpack.decode(saved, type=ClaudeState) == talk.dialect.state
