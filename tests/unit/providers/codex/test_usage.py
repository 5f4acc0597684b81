"""Tests the usage, the cost and the limits of a turn of Codex."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.dialect import DialectOutput
from steadyrun.model import event as ev
from steadyrun.model.event import LimitWindow
from steadyrun.model.usage import MOST_TOKENS, USAGE_REFUSED, Cost, Usage
from steadyrun.providers.codex.state import CodexState
from steadyrun.providers.codex.usage import MOST_THREADS
from steadyrun.providers.shared import prices
from tests.support.codex_lines import (
    AGAIN,
    Talk,
    completed,
    error,
    failed,
    interrupted,
    limits,
    make_notification,
    ready,
    reply,
    started,
    tokens,
    usage,
    window,
    working,
)
from tests.support.dialect_talker import get_end


def used(*lines: Any, talk: Talk | None = None) -> Usage | None:
    return get_end((talk or working()).receive(*lines, completed())).usage


def next_turn(talk: Talk) -> Talk:
    """The turn t2, which Codex calls turn2."""
    talk.turn("t2")
    talk.receive(reply("begin:t2", turn={"id": "turn2"}), started("turn2"))
    return talk


def test_cached_input_is_counted_separately() -> None:
    assert used(usage(tokens(100, 20, cached=30, written=10))) == Usage(60, 20, 30, 10)


def test_usage_of_all_calls_is_added() -> None:
    said = working().receive(usage(tokens(100, 20)), usage(tokens(150, 30), tokens(50, 10)))

    assert [each.usage for each in said if isinstance(each, ev.UsageUpdated)] == [
        Usage(100, 20, 0, 0), Usage(150, 30, 0, 0),
    ]  # fmt: skip


def test_repeated_total_is_counted_once() -> None:
    line = usage(tokens(100, 20))

    assert used(line, line, line) == Usage(100, 20, 0, 0)


def test_missing_usage_is_unknown_and_not_zero() -> None:
    assert used() is None
    assert used(usage(tokens())) is None


def test_turn_with_an_unchanged_total_used_nothing() -> None:
    """As one does that fails with its first call."""
    talk = working()
    talk.receive(usage(tokens(100, 20)), completed())
    next_turn(talk)

    end = get_end(talk.receive(usage(tokens(100, 20), turn="turn2"), failed(turn="turn2")))

    assert end.usage is None


def test_usage_is_counted_for_each_turn() -> None:
    talk = working()
    talk.receive(usage(tokens(100, 20)), completed())
    next_turn(talk)

    end = get_end(
        talk.receive(usage(tokens(130, 25), tokens(30, 5), "turn2"), interrupted("turn2"))
    )

    assert end.usage == Usage(30, 5, 0, 0)


def test_size_after_a_compaction_is_not_usage() -> None:
    after = {**tokens(), "totalTokens": 6018}

    assert used(usage(tokens(100, 20)), usage(tokens(100, 20), after)) == Usage(100, 20, 0, 0)


def resumed() -> Talk:
    talk = ready(AGAIN)
    talk.turn()
    return talk


@pytest.mark.parametrize("is_late", [True, False])
def test_usage_before_a_resume_is_not_counted(is_late: bool) -> None:
    """It comes after the conversation is opened, perhaps after the turn was told."""
    before = usage(tokens(1000, 200), tokens(10, 2), "of old")
    talk = ready(AGAIN)
    if not is_late:
        talk.receive(before)
    talk.turn()
    if is_late:
        talk.receive(before)
    talk.receive(reply("begin:t1", turn={"id": "turn1"}), started())

    assert used(usage(tokens(1100, 220), tokens(100, 20)), talk=talk) == Usage(100, 20, 0, 0)


def test_without_an_earlier_total_a_resumed_turn_counts_its_last_call() -> None:
    talk = resumed()
    talk.receive(reply("begin:t1", turn={"id": "turn1"}), started())

    assert used(usage(tokens(1100, 220), tokens(100, 20)), talk=talk) == Usage(100, 20, 0, 0)


@pytest.mark.parametrize("now", [tokens(50, 10), tokens(200, 10), tokens(120, 30, cached=1)])
def test_last_call_is_counted_when_a_total_decreases(now: Any) -> None:
    talk = working()
    talk.receive(usage(tokens(100, 20, cached=5)), completed())
    next_turn(talk)

    end = get_end(talk.receive(usage(now, tokens(7, 3), "turn2"), completed(turn="turn2")))

    assert end.usage == Usage(7, 3, 0, 0)


def test_usage_of_another_thread_is_not_counted() -> None:
    talk = working()

    assert used(usage(tokens(9, 9), threadId="th2"), talk=talk) is None


def told_turn(
    talk: Talk, thread: str, total: dict[str, int], last: dict[str, int] | None = None
) -> Usage | None:
    """What a turn of a conversation has used, at the end of which these sums are told."""
    number = len(talk.log)
    turn = f"turn{number}"
    talk.write({"id": number, "method": "turn/start", "params": {"threadId": thread}})
    talk.receive({"id": number, "result": {"turn": {"id": turn}}}, started(turn, threadId=thread))
    sums = usage(total, last, turn, threadId=thread)
    return get_end(talk.receive(sums, completed(turn=turn, thread=thread))).usage


def test_usage_of_each_thread_is_the_growth_of_its_total() -> None:
    talk = ready()

    assert told_turn(talk, "th1", tokens(100, 10)) == Usage(100, 10, 0, 0)
    assert told_turn(talk, "th2", tokens(50, 5)) == Usage(50, 5, 0, 0)
    assert told_turn(talk, "th1", tokens(120, 12), tokens(20, 2)) == Usage(20, 2, 0, 0)
    assert told_turn(talk, "th2", tokens(50, 5), tokens(50, 5)) is None


def test_total_inherited_by_a_forked_thread_is_not_counted() -> None:
    """Its usage is reported before its turn."""
    talk = ready()
    told_turn(talk, "th1", tokens(100, 10))
    talk.receive(usage(tokens(100, 10), threadId="fork"))

    assert told_turn(talk, "fork", tokens(150, 15), tokens(50, 5)) == Usage(50, 5, 0, 0)


def test_last_call_is_counted_for_a_forgotten_thread() -> None:
    talk = ready()
    for number in range(MOST_THREADS + 1):
        talk.receive(usage(tokens(100, 10), threadId=f"other{number}"))

    found = told_turn(talk, "other0", tokens(120, 12), tokens(20, 2))

    assert found == Usage(20, 2, 0, 0)
    assert len(talk.dialect.state.totals) == MOST_THREADS


def of_subagent(root: str = "turn1", turn: str = "sub1") -> Any:
    return make_notification("turn/started", threadId="sub", turn={"id": turn, "rootTurnId": root})


def test_usage_of_a_sub_agent_is_counted_for_the_turn() -> None:
    """Its conversation may begin with one that was paid for: of the first sum the last call counts,
    of others what they have grown by."""
    first = usage(tokens(1000, 100), tokens(10, 1), "sub1", threadId="sub")
    second = usage(tokens(1030, 103), tokens(7, 7), "sub1", threadId="sub")

    assert used(usage(tokens(5, 5)), of_subagent(), first) == Usage(15, 6, 0, 0)
    assert used(usage(tokens(5, 5)), of_subagent(), first, first, second) == Usage(45, 9, 0, 0)


def test_number_of_remembered_sub_agents_is_limited() -> None:
    talk = working()
    talk.receive(of_subagent(), usage(tokens(9, 9), turn="sub1", threadId="sub"))

    for number in range(MOST_THREADS):
        talk.receive(usage(tokens(9, 9), threadId=f"other{number}"))

    assert talk.dialect.state.subagents == set()


@pytest.mark.parametrize("turn", ["root", "inner"])
def test_turn_with_two_ids_counts_the_usage_of_both(turn: str) -> None:
    talk = ready()
    talk.receive(make_notification("turn/started", turn={"id": "inner", "rootTurnId": "root"}))

    said = talk.receive(usage(tokens(9, 9), turn=turn), completed(turn="root"))

    assert get_end(said).usage == Usage(9, 9, 0, 0)


@pytest.mark.parametrize("line", [of_subagent(root="turn0"), of_subagent(root="")])
def test_usage_of_a_sub_agent_of_another_turn_is_not_counted(line: Any) -> None:
    assert used(line, usage(tokens(9, 9), turn="sub1", threadId="sub")) is None


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 4, st.booleans()), max_size=12))
def test_turn_uses_the_growth_of_the_total(
    calls: list[tuple[int, int, int, int, bool]],
) -> None:
    talk, lines, sums = working(), [], [0, 0, 0, 0]
    for fresh, got, cached, written, is_repeated in calls:
        call = (fresh + cached + written, got, cached, written)
        sums = [one + other for one, other in zip(sums, call, strict=True)]
        lines += [usage(tokens(*sums), tokens(*call))] * (1 + is_repeated)

    found = used(*lines, talk=talk)

    total, got, cached, written = sums
    expected = Usage(total - cached - written, got, cached, written)
    assert found == (expected if any(sums) else None)


BIG = 10**30


@pytest.mark.parametrize(
    "line",
    [
        usage(tokens(BIG, 1)),
        usage(tokens(1, 1), {**tokens(1, 1), "totalTokens": BIG}),
        usage(tokens(-5, -5)),
        limits(window(BIG, BIG, BIG)),
        limits(window(-1, -1, -1)),
        limits(window(1e300, 1e300)),
    ],
)
def test_state_with_any_reported_numbers_can_be_saved(line: Any) -> None:
    talk = working()
    with suppress(msgspec.DecodeError):  # it is kept as it is
        talk.receive(line)
    talk.receive(completed())

    saved = msgspec.msgpack.encode(talk.dialect.state)

    assert msgspec.msgpack.decode(saved, type=CodexState) == talk.dialect.state


@pytest.mark.parametrize("counted", [-5, -1])
def test_negative_usage_is_not_counted(counted: int) -> None:
    talk = working()
    with suppress(msgspec.DecodeError):  # it is kept as it is
        talk.receive(usage(tokens(counted, counted)))

    end = get_end(talk.receive(completed()))

    assert end.usage is None or min(msgspec.structs.astuple(end.usage)) >= 0


# -- prices


def test_tokens_have_the_price_of_the_rerouted_model() -> None:
    """From the turn on in which another one took its place."""
    talk = working()
    rerouted = make_notification("model/rerouted", fromModel="m1", toModel="gpt-5", turnId="turn1")

    first = get_end(talk.receive(rerouted, usage(tokens(1000, 100)), completed()))
    next_turn(talk)
    line = usage(tokens(3000, 300), tokens(2000, 200), "turn2")
    second = get_end(talk.receive(line, completed(turn="turn2")))

    assert [first.cost, second.cost] == [
        prices.estimate_cost("gpt-5", Usage(number * 1000, number * 100, 0, 0), is_one_call=True)
        for number in (1, 2)
    ]
    assert first.cost
    assert first.cost.kind == "estimated"


def test_tokens_of_an_unknown_model_have_no_price() -> None:
    assert get_end(working().receive(usage(tokens(1000, 100)), completed())).cost == Cost()


# -- stats


def stats(said: list[DialectOutput]) -> ev.StatsUpdated:
    return [each for each in said if isinstance(each, ev.StatsUpdated)][-1]


def test_end_of_a_turn_reports_its_stats() -> None:
    said = working().receive(usage(tokens(100, 20, cached=30)), completed("x"))

    assert stats(said) == ev.StatsUpdated("m1", 1000, 30, 0, 20, "completed")


# -- windows

SOON, LATE = 1794785857, 1794790000


def at(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


def retry_at(*lines: Any, info: Any = "usageLimitExceeded") -> datetime | None:
    end = get_end(working().receive(*lines, failed(info)))
    assert end.error
    return end.error.retry_at


def test_limit_ends_when_all_full_windows_are_reset() -> None:
    assert retry_at(limits(window(100, SOON), window(100, LATE))) == at(LATE)
    assert retry_at(limits(window(100, SOON), window(88, LATE))) == at(SOON)
    assert retry_at(limits(window(100, LATE)), limits(window(120, SOON), limit="x")) == at(LATE)


@pytest.mark.parametrize(
    "lines",
    [[], [limits(window(88, SOON))], [limits(window(100, None))], [limits(window(100, 1e300))]],
)
def test_limit_without_a_reset_time_has_no_retry_time(lines: Any) -> None:
    assert retry_at(*lines) is None


def test_only_a_rate_limit_has_a_retry_time() -> None:
    assert retry_at(limits(window(100, SOON)), info="serverOverloaded") is None


@pytest.mark.parametrize("later", [limits(), limits(None, window(1, LATE)), limits(limit="other")])
def test_missing_limit_window_keeps_its_value(later: Any) -> None:
    assert retry_at(limits(window(100, SOON)), later) == at(SOON)


def test_reset_window_is_not_full() -> None:
    assert retry_at(limits(window(100, SOON)), limits(window(3, LATE))) is None


def test_limit_windows_are_reported_at_the_end_of_a_turn() -> None:
    said = working().receive(
        limits(window(12, SOON), window(50, LATE, None)), limits(window(1, None, 5), limit="x"),
        completed(),
    )  # fmt: skip

    assert stats(said).limits == (
        LimitWindow("primary", 12, 300, at(SOON)),
        LimitWindow("secondary", 50, None, at(LATE)),
        LimitWindow("x primary", 1, 5, None),
    )


def test_rate_limit_that_passes_is_a_retry() -> None:
    said = working().receive(
        error({"httpConnectionFailed": {"httpStatusCode": 429}}), completed("x")
    )

    assert ev.ProviderRetrying(1, None, "rate_limited") in said
    assert get_end(said).status == "completed"


@pytest.mark.parametrize("count", [MOST_TOKENS + 1, 2**63, 10**400])
def test_total_with_too_many_tokens_is_a_note_and_the_next_total_counts(count: int) -> None:
    talk = working()
    heard = talk.receive(usage(tokens(5), tokens(count)))

    assert heard[-1] == ev.Note(USAGE_REFUSED)
    assert used(usage(tokens(7)), talk=talk) == Usage(7, 0, 0, 0)
