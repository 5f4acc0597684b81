"""Builds spans from the record: one for each run, and one for each tool call.

Names and attributes are those of OpenTelemetry's conventions for generative AI, version 1.41. A
span and its ids depend on events alone: the same events always give the same span.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from steadyrun.model import event as ev
from steadyrun.model.event import RunEnded, StoredEvent
from steadyrun.model.ids import RunId
from steadyrun.model.usage import Usage

Attribute = str | int | float | bool
Attributes = dict[str, Attribute]

ITEM = "steadyrun.item"
INPUT = "gen_ai.input.messages"
_STILL_RUNNING = "still_running"
# The names that the conventions have for the makers of models.
_MAKERS = {"claude": "anthropic", "codex": "openai"}


class SpanData(Struct, frozen=True):
    """A span that has ended. The span of a run has no parent; it is the parent of its tool spans.

    The kind of a run is `client`, as another process does the work; tools are `internal`.
    """

    name: str
    kind: Literal["client", "internal"]
    start: datetime
    end: datetime
    trace: int
    id: int
    parent: int | None
    attributes: Attributes
    is_error: bool = False


@dataclass(slots=True)
class _OpenRun:
    """The state of a run that has not ended."""

    start: datetime
    agent: str
    provider: str
    item: str | None = None
    # The requested model, and the one that answers.
    requested: str | None = None
    model: str | None = None
    tools: dict[str, StoredEvent] = field(default_factory=dict)


class SpanBuilder:
    """Reads events in their order and returns each span when it ends.

    Without `content`, a span has only names, numbers and codes, and no texts.
    `kinds` has the kind of each provider that is not named like it.
    """

    def __init__(self, *, content: bool = False, kinds: Mapping[str, str] | None = None) -> None:
        self._content, self._kinds = content, kinds or {}
        self._runs: dict[RunId, _OpenRun] = {}

    def has_open(self, run: RunId) -> bool:
        """Whether events of this run were read, and its end was not."""
        return run in self._runs

    def read(self, seen: StoredEvent) -> list[SpanData]:
        if seen.run is None:
            return []
        run = self._runs.get(seen.run) or _open_run(seen)
        self._runs[seen.run] = run
        match seen.event:
            case ev.RunStarted(item=item, model=model):
                run.item, run.requested = item, model
            case ev.StatsUpdated(model=str(model)):
                run.model = model
            case ev.ToolStarted(call):
                run.tools[call] = seen
            case ev.ToolCompleted(call) | ev.ToolFailed(call):
                return [self._build_tool_span(run, run.tools.pop(call, seen), seen)]
            case ended if isinstance(ended, get_args(RunEnded)):
                del self._runs[seen.run]
                left = [self._build_tool_span(run, tool, seen) for tool in run.tools.values()]
                return [*left, self._build_run_span(run, seen, ended)]
            case _:
                pass
        return []

    def _build_run_span(self, run: _OpenRun, seen: StoredEvent, ended: RunEnded) -> SpanData:
        is_error = not isinstance(ended, ev.RunCompleted | ev.RunCancelled)
        attributes = {
            **self._build_common("invoke_agent", run, seen),
            "gen_ai.conversation.id": ended.resume_token,
            "gen_ai.request.model": run.requested,
            "gen_ai.response.model": run.model,
            **_to_usage_attributes(ended.usage),
            "steadyrun.cost.usd": ended.cost.usd,
            "steadyrun.cost.kind": ended.cost.kind,
            ITEM: run.item,
            "steadyrun.status": ended.status,
            "error.type": _find_run_error(ended) if is_error else None,
        }
        if self._content and ended.text is not None:
            reason = "error" if is_error else "stop"
            attributes["gen_ai.output.messages"] = encode_message(
                "assistant", ended.text, finish_reason=reason
            )
        return SpanData(
            name=f"invoke_agent {run.agent}",
            kind="client",
            start=min(run.start, seen.at),
            end=seen.at,
            trace=_compute_trace_id(seen.run),
            id=_compute_span_id(seen.run),
            parent=None,
            attributes=_drop_none(attributes),
            is_error=is_error,
        )

    def _build_tool_span(self, run: _OpenRun, started: StoredEvent, ended: StoredEvent) -> SpanData:
        """Build a span of a tool call. `ended` may be the end of the run, if the call has none."""
        tool = started.event
        assert isinstance(tool, ev.ToolStarted | ev.ToolCompleted | ev.ToolFailed)
        error = _find_tool_error(ended.event)
        attributes = {
            **self._build_common("execute_tool", run, ended),
            "gen_ai.tool.name": tool.tool_name,
            "gen_ai.tool.call.id": tool.tool_call_id,
            "gen_ai.tool.type": "function",
            "error.type": error,
        }
        if self._content:
            attributes |= _to_content_attributes(tool.tool_input, ended.event)
        return SpanData(
            name=f"execute_tool {tool.tool_name}",
            kind="internal",
            start=min(started.at, ended.at),
            end=ended.at,
            trace=_compute_trace_id(ended.run),
            id=_compute_span_id(started.id),
            parent=_compute_span_id(ended.run),
            attributes=_drop_none(attributes),
            is_error=error is not None,
        )

    def _build_common(self, operation: str, run: _OpenRun, seen: StoredEvent) -> dict[str, Any]:
        kind = self._kinds.get(run.provider, run.provider)
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _MAKERS.get(kind, kind),
            "gen_ai.agent.name": run.agent,
            "steadyrun.run": seen.run,
            "steadyrun.provider": None if run.provider == kind else run.provider,
        }


def encode_message(role: str, text: str, **more: str) -> str:
    """Encode a message of one side in the form of the conventions."""
    message = {"role": role, "parts": [{"type": "text", "content": text}], **more}
    return msgspec.json.encode([message]).decode()


def _open_run(seen: StoredEvent) -> _OpenRun:
    """Open a run with its first event. If that is its end, the duration gives the start."""
    duration = getattr(seen.event, "duration_ms", None) or 0
    start = seen.at - timedelta(milliseconds=duration)
    return _OpenRun(start, seen.agent or "", seen.provider or "")


def _to_usage_attributes(usage: Usage) -> dict[str, int | None]:
    """Convert the usage, which counts cached tokens apart from the rest of the input."""
    parts = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    counted = [part for part in parts if part is not None]
    return {
        "gen_ai.usage.input_tokens": sum(counted) if counted else None,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }


def _find_run_error(ended: RunEnded) -> str:
    return (ended.error.code if ended.error else ended.stop_reason) or ended.status


def _find_tool_error(ended: object) -> str | None:
    """Find the error code of a tool call. The error message of the tool is content."""
    match ended:
        case ev.ToolCompleted():
            return None
        case ev.ToolFailed(error=error) if error != _STILL_RUNNING:
            return "tool_failed"
        case _:
            return _STILL_RUNNING


def _to_content_attributes(given: Any, ended: object) -> dict[str, Any]:
    answer = getattr(ended, "tool_output", None)
    if answer is None and isinstance(ended, ev.ToolFailed):
        answer = ended.error
    return {
        "gen_ai.tool.call.arguments": _encode_value(given),
        "gen_ai.tool.call.result": _encode_value(answer),
    }


def _encode_value(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _drop_none(attributes: dict[str, Any]) -> Attributes:
    return {key: value for key, value in attributes.items() if value not in {None, ""}}


def _compute_trace_id(run: RunId | None) -> int:
    return _hash(f"trace {run}", 16)


def _compute_span_id(of: str | None) -> int:
    return _hash(f"span {of}", 8)


def _hash(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size])
