"""Converts frames of the scripted CLI into events, where the state does not matter."""

from typing import assert_never

import msgspec

from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.model.usage import Cost
from steadyrun.providers.scripted.frames import (
    CompactedFrame,
    CompactingFrame,
    CompactionOutput,
    DeltaFrame,
    FactOutput,
    ImageFrame,
    NoteFrame,
    RetryingFrame,
    ScriptedFailure,
    StatsFrame,
    TextOutput,
    ThinkingFrame,
    UsageFrame,
)
from steadyrun.providers.shared.epoch import to_datetime


def to_event(output: FactOutput) -> ev.Event:
    """Convert a frame that changes no state."""
    match output:
        case UsageFrame():
            return ev.UsageUpdated(output.usage, to_cost(output.cost_usd))
        case StatsFrame():
            return ev.StatsUpdated(**msgspec.structs.asdict(output))
        case ImageFrame():
            return ev.ImageProduced(output.name, output.media_type, output.size_bytes)
        case RetryingFrame():
            return ev.ProviderRetrying(output.attempt, output.delay_ms, output.reason)
        case _:
            return _to_text_event(output)


def _to_text_event(output: TextOutput | CompactionOutput) -> ev.Event:
    match output:
        case DeltaFrame(text):
            return ev.TextDelta(text)
        case ThinkingFrame(text):
            return ev.ThinkingDelta(text)
        case NoteFrame(text):
            return ev.Note(text)
        case CompactingFrame(trigger):
            return ev.CompactionStarted(trigger)
        case CompactedFrame():
            return _to_compaction_event(output)
        case other:
            assert_never(other)


def _to_compaction_event(output: CompactedFrame) -> ev.Event:
    if output.error is not None:
        return ev.CompactionFailed(output.error)
    return ev.CompactionCompleted(output.trigger, output.tokens_before, output.tokens_after)


def to_cost(usd: float | None) -> Cost:
    return Cost() if usd is None else Cost(usd, "known")


def to_error(output: ScriptedFailure) -> ErrorFact:
    at = to_datetime(output.resets_at)
    return ErrorFact(output.code, output.message, output.hint, output.retryable, at)
