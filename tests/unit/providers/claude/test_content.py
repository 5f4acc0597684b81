"""Tests the events made from text, usage and notices of Claude Code."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.dialect import TurnEnded
from steadyrun.model import event as ev
from steadyrun.model.usage import MOST_TOKENS, USAGE_REFUSED, Cost, Usage
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
    get_end,
    init,
    reply,
    result,
    stream,
    system,
    text,
    tool,
    tool_result,
    used,
    user,
    working,
)
from tests.support.dialect_talker import the_error

# -- words


def test_streamed_text_and_thinking_become_deltas() -> None:
    thinking = {"type": "thinking_delta", "thinking": "hm"}

    said = working().receive(delta("He"), stream("content_block_delta", delta=thinking))

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
    assert working().receive(line) == []


def test_thinking_that_was_streamed_is_not_reported_twice() -> None:
    thought = assistant({"type": "thinking", "thinking": "hm", "signature": "x"})
    talk = working()

    whole = talk.receive(thought)
    streamed = talk.receive(stream("message_start", message={"id": "msg1"}), thought)

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
def test_empty_content_block_causes_no_event(block: dict[str, Any]) -> None:
    assert working().receive(assistant(block)) == []


def test_placeholder_for_no_content_causes_no_event() -> None:
    line = {
        "id": "x",
        "model": "<synthetic>",
        "content": [{"type": "text", "text": "(no content)"}],
    }

    assert working().receive({"type": "assistant", "message": line}) == []


def test_text_of_the_result_line_is_the_answer() -> None:
    talk = working()
    talk.receive(text("on the way"))

    assert get_end(talk.receive(result('{"a":1}', structured_output={"a": 1}))).text == '{"a":1}'


def test_error_text_is_not_taken_as_the_answer() -> None:
    talk = working()
    talk.receive(text("so far"))

    said = talk.receive(
        text("API Error: 429", error="rate_limit"), result("API Error", is_error=True)
    )

    end = get_end(said)
    assert ev.TextFinal not in map(type, said)
    assert end.error
    assert (end.text, end.status, end.error.message) == ("so far", "rate_limited", "API Error")


def test_first_error_of_a_turn_sets_the_error_code() -> None:
    talk = working()
    talk.receive(text("x", error="billing_error"), text("y", error="rate_limit"))

    assert the_error(talk.receive(result("z", is_error=True))).code == "billing"


def test_error_of_a_turn_does_not_affect_the_next_turn() -> None:
    talk = working()
    talk.receive(text("x", error="rate_limit"), result("x", is_error=True))
    talk.turn("t2")

    assert the_error(talk.receive(result("y", is_error=True))).code == "provider_error"


@pytest.mark.parametrize(
    "line",
    [
        user({"type": "text", "text": "[Request interrupted by user]"}),
        user({"type": "text", "text": "This session is being continued"}, isSynthetic=True),
        {"type": "user", "message": {"content": "<local-command-stdout>x"}, "isReplay": True},
        {"type": "user", "message": {"content": "words"}},
    ],
)
def test_messages_for_the_model_cause_no_event(line: Line) -> None:
    assert working().receive(line) == []


# -- numbers


def test_usage_of_a_turn_is_the_growth_of_the_session_totals() -> None:
    talk = working()
    talk.receive(result(total_cost_usd=0.1, modelUsage=used(inputTokens=10, outputTokens=1)))
    talk.turn("t2")
    more = {
        **used(inputTokens=30, outputTokens=3, cacheReadInputTokens=7),
        **used("m2", inputTokens=5, cacheCreationInputTokens=2),
    }

    stats, end = talk.receive(result(total_cost_usd=0.3, modelUsage=more))

    assert isinstance(end, TurnEnded)
    assert (end.usage, end.cost) == (Usage(25, 2, 7, 2), Cost(0.2, "known"))
    assert stats == ev.StatsUpdated("m1", 200000, 7, 2, 2, "completed")


def test_totals_that_decreased_count_from_zero() -> None:
    talk = working()
    talk.receive(result(total_cost_usd=0.5, modelUsage=used(inputTokens=10)))
    talk.turn("t2")

    end = get_end(talk.receive(result(total_cost_usd=0.1, modelUsage=used(inputTokens=4))))

    assert (end.usage, end.cost) == (Usage(4, 0, 0, 0), Cost(0.1, "known"))


@pytest.mark.parametrize("tokens", [MOST_TOKENS + 1, 2**63, 2**64, 10**400])
@pytest.mark.parametrize("field", ["usage", "modelUsage"])
def test_result_with_too_many_tokens_ends_the_turn_with_a_note(field: str, tokens: int) -> None:
    counts = {"usage": {"input_tokens": tokens}, "modelUsage": used("m1", inputTokens=tokens)}
    heard = working().receive(result("done", total_cost_usd=0.5, **{field: counts[field]}))

    end = get_end(heard)
    assert (end.status, end.text, end.cost) == ("completed", "done", Cost(0.5, "known"))
    assert ev.Note(USAGE_REFUSED) in heard


@pytest.mark.parametrize("delay", [-1, 1e30, 2**64])
def test_implausible_delay_of_a_retry_is_left_out(delay: float) -> None:
    heard = working().receive(system("api_retry", attempt=1, retry_delay_ms=delay))

    assert heard == [ev.ProviderRetrying(1, None, "unknown")]


def test_usage_of_the_result_counts_if_totals_are_missing() -> None:
    usage = {"input_tokens": 3, "output_tokens": 4}

    assert get_end(working().receive(result(usage=usage, modelUsage=None))).usage == Usage(3, 4)


@pytest.mark.parametrize("cost", [None, -1.0, 1e300])
def test_invalid_cost_is_unknown(cost: float | None) -> None:
    assert get_end(working().receive(result(total_cost_usd=cost))).cost == Cost()


def test_turn_aborted_in_a_tool_has_its_cost() -> None:
    said = aborted(terminal_reason="aborted_tools", total_cost_usd=0.1)

    assert get_end(working().receive(said)).cost == Cost(0.1, "known")


def test_usage_is_reported_after_every_model_call() -> None:
    talk = working()
    begun = stream("message_start", message={"id": "x", "usage": {"input_tokens": 10}})

    said = talk.receive(
        begun,
        stream("message_delta", usage={"output_tokens": 5}),
        begun,
        stream("message_delta", usage={"input_tokens": 12, "output_tokens": 6}),
    )

    assert said == [
        ev.UsageUpdated(Usage(10, 5, 0, 0)),
        ev.UsageUpdated(Usage(22, 11, 0, 0)),
    ]


def test_cost_of_a_turn_is_estimated_from_the_model_of_each_call() -> None:
    talk = working()

    def called(model: str) -> list[Any]:
        message = {"id": "x", "model": model, "usage": {"input_tokens": 1_000_000}}
        ended = stream("message_delta", usage={"output_tokens": 0})
        return talk.receive(stream("message_start", message=message), ended)

    first, second, third = (
        called("claude-haiku-4-5")[0], called("claude-haiku-4-5")[0], called("no-such-model")[0]
    )  # fmt: skip

    assert first.cost == estimate_cost("claude-haiku-4-5", first.usage, is_one_call=True)
    assert second.cost == Cost(2 * first.cost.usd, "estimated")
    # What is not known of a call is not known of the turn.
    assert (third.usage.input_tokens, third.cost) == (3_000_000, Cost())


# -- news


def test_compaction_is_reported_at_its_start_and_end() -> None:
    found = {"trigger": "auto", "pre_tokens": 9000, "post_tokens": 400}

    said = working().receive(
        system("status", status="requesting"),
        system("status", status="compacting"),
        system("status", status=None, compact_result="success"),
        system("compact_boundary", compact_metadata=found),
    )

    assert said == [ev.CompactionStarted("auto"), ev.CompactionCompleted("auto", 9000, 400)]


def test_failed_compaction_does_not_end_the_turn() -> None:
    talk = working()

    said = talk.receive(
        system("status", status="compacting"),
        system("status", status=None, compact_result="failed", compact_error="too_few_groups"),
    )

    assert said[-1] == ev.CompactionFailed("too_few_groups")
    assert get_end(talk.receive(result())).status == "completed"


def test_api_retry_is_reported() -> None:
    line = system(
        "api_retry", attempt=2, retry_delay_ms=537.6, error_status=529, error="overloaded"
    )

    assert working().receive(line) == [ev.ProviderRetrying(2, 538, "overloaded")]


def test_fallback_model_applies_to_one_turn() -> None:
    talk = working()

    said = talk.receive(system("model_fallback", fallback_model="m2", content="Switched"))
    stats = talk.receive(result(modelUsage=used("m2", outputTokens=5)))[0]
    talk.turn("t2")

    assert said == [ev.Note("Switched"), ev.StatsUpdated(model="m2")]
    assert isinstance(stats, ev.StatsUpdated)
    assert (stats.model, stats.context_window) == ("m2", 200000)
    assert talk.receive(init()) == [ev.StatsUpdated(model="m1")]


def limit(status: str, **fields: Any) -> Line:
    return {"type": "rate_limit_event", "rate_limit_info": {"status": status, **fields}}


def retry_at(talk: Talk) -> Any:
    error = get_end(talk.receive(result("x", is_error=True, api_error_status=429))).error
    assert error
    return error.retry_at


def test_rejected_limit_sets_the_retry_time() -> None:
    talk = working()

    assert talk.receive(limit("rejected", resetsAt=1794785857)) == []
    assert retry_at(talk).timestamp() == 1794785857


def test_retry_time_of_a_limit_applies_to_the_next_turn() -> None:
    talk = working()
    talk.receive(limit("rejected", resetsAt=1794785857))
    retry_at(talk)
    talk.turn("t2")

    assert retry_at(talk).timestamp() == 1794785857


@pytest.mark.parametrize("line", [limit("allowed"), result()])
def test_limit_ends_when_a_request_is_allowed(line: Line) -> None:
    talk = working()
    talk.receive(limit("rejected", resetsAt=1794785857), line)
    talk.turn("t2")

    assert retry_at(talk) is None


def test_limit_warning_is_noted() -> None:
    near = limit(
        "allowed_warning", rateLimitType="five_hour", utilization=0.91, resetsAt=1794785857
    )

    assert working().receive(near) == [
        ev.Note("limit five_hour: allowed_warning, 91% used, until 2026-11-15 23:37 UTC")
    ]


@pytest.mark.parametrize("kind", ["notification", "informational", "permission_denied"])
def test_messages_for_the_user_are_noted(kind: str) -> None:
    talk = working()

    assert talk.receive(system(kind, message="look")) == [ev.Note("look")]
    assert talk.receive(system(kind)) == []


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
def test_known_lines_without_meaning_cause_no_event(line: Line) -> None:
    assert working().receive(line) == []


# -- what cannot be right


def test_silent_line_types_cause_no_event() -> None:
    """Newer versions tell of each message that it is queued, started and completed."""
    lines = [{"type": kind, "command_uuid": T1, "state": "queued"} for kind in SILENT_TYPES]

    assert working().receive(*lines) == []
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
def test_unknown_json_line_is_kept_as_an_unknown_event(line: Line) -> None:
    assert working().receive(line) == [ev.Unknown(json.dumps(line))]


@pytest.mark.parametrize(
    "line", [b"", b"words", b"{", b"[" * 100_000, b'{"type":"result"', b"\xff"]
)
def test_line_that_is_not_json_raises_a_decode_error(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        working().receive(line)


def test_lone_surrogate_in_a_text_is_replaced() -> None:
    line = json.dumps(text("cut \ud83d")).encode()

    assert working().receive(line) == [ev.TextFinal("cut ?")]


def test_invalid_utf8_in_a_text_is_replaced() -> None:
    line = json.dumps(text("a?b")).encode().replace(b"?", b"\xff")

    assert working().receive(line) == [ev.TextFinal("a\ufffdb")]


def test_lone_surrogate_in_the_input_of_a_tool_is_replaced() -> None:
    said = working().receive(json.dumps(tool(given={"command": "\udc00"})).encode())

    assert said == [ev.ToolStarted("c1", "Bash", {"command": "?"})]


def test_deeply_nested_input_raises_a_decode_error() -> None:
    deep = b'{"type":"assistant","message":{"content":[{"type":"tool_use","id":"c1","input":'

    with pytest.raises(msgspec.DecodeError):
        working().receive(deep + b"[" * 50_000 + b"]" * 50_000 + b"}]}}")


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
def test_state_can_be_saved_after_any_malformed_line(
    lines: list[Line], data: st.DataObject
) -> None:
    talk = working()

    for line in lines:
        talk.receive(spoilt(json.loads(json.dumps(line)), data))
    saved = msgspec.msgpack.encode(talk.dialect.state)

    assert msgspec.msgpack.decode(saved, type=ClaudeState) == talk.dialect.state
