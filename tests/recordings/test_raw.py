"""Tests that the events agree with the raw frames, read without a Dialect."""

from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

import pytest

from steadyrun.dialect import STILL_RUNNING
from steadyrun.model import event as ev
from steadyrun.model.event import AnyEvent
from steadyrun.model.usage import Usage
from tests.recordings import raw_claude, raw_codex
from tests.recordings.raw import Reading, Result, Tokens, Use
from tests.recordings.recorded import Recording, recordings

E = TypeVar("E", bound=ev.Event)
Fate = ev.FollowupAbsorbed | ev.FollowupOwnTurn | ev.FollowupReturned


@dataclass
class Told:
    """What our events say: all of them, and those of each run."""

    all: list[AnyEvent]
    runs: list[list[ev.Event]] = field(default_factory=list)

    def of(self, kind: type[E]) -> list[E]:
        return [seen.event for seen in self.all if isinstance(seen.event, kind)]

    def ends(self) -> list[ev.RunEnded]:
        return [seen.event for seen in self.all if isinstance(seen.event, ev.RunEnded)]


@pytest.fixture(params=recordings(), ids=str, scope="module")
def recording(request: pytest.FixtureRequest) -> Recording:
    found = request.param
    assert isinstance(found, Recording)
    return found


@pytest.fixture(scope="module")
def raw(recording: Recording) -> Reading:
    readers = {"claude": raw_claude.read, "codex": raw_codex.read}
    return readers[recording.cli](recording.path, one_shot=recording.one_shot)


@pytest.fixture(scope="module")
def told(recording: Recording) -> Told:
    seen = recording.play()
    inside = [each for each in seen if each.run]
    runs = [list(events) for _, events in groupby(inside, key=lambda each: each.run)]
    return Told(seen, [[_known(each) for each in run] for run in runs])


def test_turn_ends_as_its_result_states(raw: Reading, told: Told) -> None:
    assert [end.status for end in told.ends()] == [turn.outcome for turn in raw.turns]


def test_failed_and_rate_limited_turns_have_an_error(raw: Reading, told: Told) -> None:
    for end in told.ends():
        assert (end.error is not None) == (end.status in ("failed", "rate_limited"))


def test_error_message_is_the_message_of_the_cli(raw: Reading, told: Told) -> None:
    for turn, end in zip(raw.turns, told.ends(), strict=True):
        if end.error and turn.complaint:
            assert end.error.message == turn.complaint


def test_error_code_follows_the_structure(raw: Reading, told: Told) -> None:
    for turn, end in zip(raw.turns, told.ends(), strict=True):
        if turn.code:
            assert end.error
            assert end.error.code == turn.code


def test_rate_limit_has_its_reset_time(raw: Reading, told: Told) -> None:
    for turn, end in zip(raw.turns, told.ends(), strict=True):
        at = end.error.retry_at.timestamp() if end.error and end.error.retry_at else None
        assert at == turn.resets_at


def test_answer_is_the_text_of_the_result(raw: Reading, told: Told) -> None:
    assert [end.text or "" for end in told.ends()] == [turn.text or "" for turn in raw.turns]


def test_every_text_is_reported_once_in_its_turn(raw: Reading, told: Told) -> None:
    texts = [[e.text for e in run if isinstance(e, ev.TextFinal)] for run in told.runs]

    assert texts == [turn.texts for turn in raw.turns]


def test_deltas_equal_the_stream(raw: Reading, told: Told) -> None:
    for turn, run in zip(raw.turns, told.runs, strict=True):
        text = "".join(e.text for e in run if isinstance(e, ev.TextDelta))
        thinking = "".join(e.text for e in run if isinstance(e, ev.ThinkingDelta))

        assert text == turn.text_deltas
        assert thinking == (turn.thinking_deltas or "".join(turn.thoughts))


def test_tools_are_reported_as_printed(raw: Reading, told: Told) -> None:
    for turn, run in zip(raw.turns, told.runs, strict=True):
        started = [
            Use(e.tool_call_id, e.tool_name, e.tool_input)
            for e in run
            if isinstance(e, ev.ToolStarted)
        ]
        ended = [
            Result(e.tool_call_id, isinstance(e, ev.ToolFailed), e.tool_output)
            for e in run
            if isinstance(e, ev.ToolCompleted | ev.ToolFailed) and not _was_given_up(e)
        ]

        assert started == turn.opened
        assert ended == turn.closed


def test_unfinished_tool_is_closed(raw: Reading, told: Told) -> None:
    for turn, run in zip(raw.turns, told.runs, strict=True):
        answered = {result.id for result in turn.closed}
        given_up = [
            e.tool_call_id for e in run if isinstance(e, ev.ToolFailed) and _was_given_up(e)
        ]

        assert given_up == [use.id for use in turn.opened if use.id not in answered]


def test_token_is_the_printed_session(raw: Reading, told: Told) -> None:
    bound = [event.token for event in told.of(ev.TokenBound)]
    rotated = [event.token for event in told.of(ev.TokenRotated)]

    if raw.has_session:
        assert [*bound, *rotated] == raw.sessions
        assert len(bound) == 1


def test_run_ends_with_its_resume_token(raw: Reading, told: Told) -> None:
    token = None
    for seen in told.all:
        if isinstance(seen.event, ev.TokenBound | ev.TokenRotated):
            token = seen.event.token
        elif isinstance(seen.event, ev.RunEnded):
            assert seen.event.resume_token == token
    if raw.has_session:
        assert token == raw.sessions[-1]


def test_model_is_reported_when_it_changes(raw: Reading, told: Told) -> None:
    models = [event.model for event in told.of(ev.StatsUpdated) if event.model]

    assert [model for model, _ in groupby(models)] == raw.models


def test_cost_of_a_turn_is_the_growth_of_the_total(raw: Reading, told: Told) -> None:
    for turn, end in zip(raw.turns, told.ends(), strict=True):
        usd = end.cost.usd if end.cost.kind == "known" else None
        assert usd == (None if turn.usd is None else pytest.approx(turn.usd, abs=1e-9))


def test_sum_of_all_costs_is_the_total(raw: Reading, told: Told) -> None:
    known = [end.cost.usd or 0 for end in told.ends() if end.cost.kind == "known"]

    assert sum(known) == pytest.approx(raw.total_usd, abs=1e-9)


def test_cost_without_counted_tokens_is_not_estimated(raw: Reading, told: Told) -> None:
    for turn, end in zip(raw.turns, told.ends(), strict=True):
        assert end.cost.kind != "estimated" or (turn.tokens and turn.usd is None)


def test_usage_of_a_turn_is_the_growth_of_the_total(raw: Reading, told: Told) -> None:
    assert [_tokens(end.usage) for end in told.ends()] == [turn.tokens for turn in raw.turns]


def test_retries_are_reported(raw: Reading, told: Told) -> None:
    retries = [[e for e in run if isinstance(e, ev.ProviderRetrying)] for run in told.runs]

    for turn, told_retries in zip(raw.turns, retries, strict=True):
        assert [retry.attempt for retry in told_retries] == turn.retries
        if turn.retry_codes:
            assert [retry.reason for retry in told_retries] == turn.retry_codes


def test_each_approval_is_requested_and_resolved_once(raw: Reading, told: Told) -> None:
    asked, resolved = told.of(ev.ApprovalRequested), told.of(ev.ApprovalResolved)

    assert [event.tool_call_id for event in asked] == list(raw.asked.values())
    assert [event.approval for event in resolved] == [event.approval for event in asked]
    assert [event.verdict for event in resolved] == [raw.answers[name] for name in raw.asked]


def test_compactions_are_reported(raw: Reading, told: Told) -> None:
    done = [(e.trigger, e.tokens_before, e.tokens_after) for e in told.of(ev.CompactionCompleted)]

    assert done == raw.compactions
    assert len(told.of(ev.CompactionStarted)) == len(done)


def test_follow_ups_are_the_lines_sent_during_a_turn(raw: Reading, told: Told) -> None:
    offered = [event.text for event in told.of(ev.FollowupOffered)]

    assert offered == [line.text for line in raw.followups]


def test_each_follow_up_is_settled_once(told: Told) -> None:
    offered = [event.item for event in told.of(ev.FollowupOffered)]

    assert sorted(fate.item for fate in _fates(told)) == sorted(offered)


def test_no_sent_line_is_lost_or_run_twice(raw: Reading, told: Told) -> None:
    if raw.lines:
        not_run = len(told.of(ev.FollowupAbsorbed)) + len(told.of(ev.FollowupReturned))
        nobodys = sum(turn.is_self for turn in raw.turns)
        assert len(told.runs) + not_run == len(raw.lines) + nobodys


def test_exactly_the_unabsorbed_follow_ups_are_returned(raw: Reading, told: Told) -> None:
    returned = [event.text for event in told.of(ev.FollowupReturned)]

    assert sorted(returned) == sorted(line.text for line in raw.followups if line.is_returned)


def test_echo_settles_a_follow_up_at_its_place(raw: Reading, told: Told) -> None:
    fates = {fate.text: fate for fate in _fates(told)}
    for line in raw.followups:
        fate = fates[line.text]
        if line.echoed_before is not None:
            assert isinstance(fate, ev.FollowupOwnTurn)
            assert _next_run(told, fate) == line.echoed_before
        elif line.echoed_in is not None:
            assert line.echoed_in == (
                _next_run(told, fate) if isinstance(fate, ev.FollowupOwnTurn) else _run(told, fate)
            )


def test_no_frame_is_unknown(told: Told) -> None:
    assert told.of(ev.Unknown) == []


def test_turn_without_an_end_fails(raw: Reading, told: Told) -> None:
    for turn, end in zip(raw.turns, told.ends(), strict=True):
        if turn.is_cut_short:
            assert end.status == "failed"
            assert end.error


def _known(seen: AnyEvent) -> ev.Event:
    assert not isinstance(seen.event, ev.Foreign)
    return seen.event


def _was_given_up(tool: ev.ToolCompleted | ev.ToolFailed) -> bool:
    """Whether the tool was still open at the end of its turn: the CLI reported no end."""
    return isinstance(tool, ev.ToolFailed) and tool.error == STILL_RUNNING


def _tokens(usage: Usage) -> Tokens | None:
    if usage == Usage():
        return None
    return Tokens(
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        usage.cache_read_tokens or 0,
        usage.cache_write_tokens or 0,
    )


def _fates(told: Told) -> list[Fate]:
    return [seen.event for seen in told.all if isinstance(seen.event, Fate)]


def _run(told: Told, event: ev.Event) -> int:
    """The number of the run that an event belongs to."""
    return next(n for n, run in enumerate(told.runs) if any(each is event for each in run))


def _next_run(told: Told, event: ev.Event) -> int:
    """How many runs had started before an event: the number of the next one."""
    before = told.all[: next(n for n, seen in enumerate(told.all) if seen.event is event)]
    return sum(isinstance(seen.event, ev.RunStarted) for seen in before)
