"""What becomes of an item whose run has ended, case by case."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from steadyrun.dialect import RESUME_NOT_FOUND, ProcessExit
from steadyrun.drivers.turn_tracker import end_from_exit
from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Created, Metadata, Orphaned, Run, RunStatus, StopReason, step
from steadyrun.runtime.run.retry import (
    CONVERSATION_CORRUPT,
    RetryDecision,
    Why,
    build_metadata,
    decide_retry,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
ITEM = Item(ItemId("itm_1"), AgentId("agt_1"), 1, "message", "hello", "resume", AT, attempt=1)


def spent(after_seconds: float, why: Why, *, one_shot: bool = False) -> RetryDecision:
    return RetryDecision(True, after_seconds, is_fresh=False, one_shot=one_shot, why=why)


def ended(
    status: RunStatus = "failed",
    stop_reason: StopReason | None = None,
    code: str | None = None,
    metadata: Metadata | None = None,
) -> Run:
    error = ErrorFact(code, "why") if code else None
    return Run(
        RunId("run_1"), ITEM.agent, ITEM.id, "claude", AT, status, error=error,
        stop_reason=stop_reason, metadata=metadata or {},
    )  # fmt: skip


CRASH = ended(code="exited")
HANG = ended(stop_reason="hang")


@pytest.mark.parametrize(
    "run",
    [
        ended("completed"),
        ended("cancelled", "user_stop"),
        ended("cancelled", "shutdown"),
        ended("cancelled"),
        ended("timed_out", "wall_timeout"),
        ended("timed_out", "idle_timeout"),
        ended("rate_limited", code="rate_limited"),
        ended("failed", "budget", "max_cost"),
        ended("failed", "policy"),
        ended("failed", "disk_full", "disk_full"),
        ended("failed", code="auth"),
        ended("failed", code="max_turns"),
        ended("failed", code="launch_failed"),
        ended("failed", "launch_failed", "keeper_failed"),
        ended("failed", code="exit_nonzero"),
        ended("failed"),
        # What a word says is not what happened.
        ended("completed", code="exited"),
        ended("failed", "budget", "exited"),
    ],
)
@pytest.mark.parametrize("was_sent", [True, False])
def test_run_that_ended_by_itself_or_by_a_limit_is_not_retried(run: Run, was_sent: bool) -> None:
    assert decide_retry(run, ITEM, was_sent=was_sent) is None


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        (0, spent(0.5, "crash")),
        (1, spent(1.0, "crash", one_shot=True)),
        (2, spent(1.5, "crash", one_shot=True)),
        (3, None),
    ],
)
def test_crash_is_retried_three_times_and_from_the_second_on_in_a_one_shot_process(
    tries: int, expected: RetryDecision | None
) -> None:
    assert decide_retry(CRASH, replace(ITEM, tries=tries), was_sent=True) == expected


def test_exit_code_that_a_provider_reports_counts_as_a_crash() -> None:
    end = end_from_exit(ProcessExit(signal=9))
    run = replace(ended(end.status), error=end.error, stop_reason=end.stop_reason)

    again = decide_retry(run, ITEM, was_sent=True)

    assert again is not None
    assert again.why == "crash"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (ended(stop_reason="keeper_lost", code="keeper_lost"), "keeper_lost"),
        (step(ended("running"), Orphaned(AT)), "orphaned"),
        (step(ended("starting"), Orphaned(AT, "machine_lost")), "machine_lost"),
    ],
)
def test_lost_run_is_retried_if_on_lost_of_the_item_allows_it(run: Run, why: Why) -> None:
    for on_lost in ("resume", "retry"):
        item = replace(ITEM, on_lost=on_lost, tries=1)
        assert decide_retry(run, item, was_sent=True) == spent(1.0, why)
        assert decide_retry(run, replace(item, tries=3), was_sent=True) is None
    assert decide_retry(run, replace(ITEM, on_lost="fail"), was_sent=True) is None


@pytest.mark.parametrize("run", [CRASH, HANG, ended(stop_reason="journal_full")])
def test_sent_turn_is_not_retried_if_on_lost_of_the_item_is_fail(run: Run) -> None:
    careful = replace(ITEM, on_lost="fail")

    assert decide_retry(run, careful, was_sent=True) is None
    assert decide_retry(run, careful, was_sent=False) is not None


def test_hang_is_retried_once_without_cost() -> None:
    first = decide_retry(HANG, ITEM, was_sent=True)

    assert first == RetryDecision(False, 0.0, False, one_shot=False, why="hang", free=("hang",))
    second = replace(HANG, metadata=build_metadata(first, 2))
    assert decide_retry(second, replace(ITEM, attempt=2), was_sent=True) is None


def test_hang_before_a_crash_is_not_retried_a_second_time() -> None:
    hung = decide_retry(HANG, ITEM, was_sent=True)
    assert hung is not None
    crashed = decide_retry(replace(CRASH, metadata=build_metadata(hung, 2)), ITEM, was_sent=True)
    assert crashed is not None

    third = replace(HANG, metadata=build_metadata(crashed, 3))

    assert (crashed.spends, crashed.free) == (True, ("hang",))
    assert decide_retry(third, replace(ITEM, attempt=3, tries=1), was_sent=True) is None


@pytest.mark.parametrize("code", [RESUME_NOT_FOUND, "resume_corrupt", CONVERSATION_CORRUPT])
def test_missing_or_corrupt_conversation_is_replaced_once(code: str) -> None:
    careful = replace(ITEM, on_lost="fail")

    again = decide_retry(ended(code=code), careful, was_sent=True)

    free = ("conversation",)
    assert again == RetryDecision(False, 0.0, True, one_shot=False, why="conversation", free=free)
    second = ended(code=code, metadata=build_metadata(again, 2))
    assert decide_retry(second, careful, was_sent=True) is None


def test_turn_that_was_never_sent_is_retried_three_times_without_cost() -> None:
    run, item, waits = CRASH, replace(ITEM, tries=3, on_lost="fail"), list[float]()

    while again := decide_retry(run, item, was_sent=False):
        assert not again.spends
        waits.append(again.after_seconds)
        run = replace(run, metadata=build_metadata(again, 2))

    assert waits == [0.5, 1.0, 1.5]


def test_cancelled_and_unprompted_items_are_not_retried() -> None:
    for run in (CRASH, HANG, ended(code=RESUME_NOT_FOUND)):
        assert decide_retry(run, replace(ITEM, cancel_requested=True), was_sent=False) is None
        assert decide_retry(run, replace(ITEM, kind="self", text=""), was_sent=False) is None


def test_metadata_of_the_next_run_has_the_retries_before_it() -> None:
    again = replace(spent(1.0, "crash"), free=("hang",))

    created = Created(
        RunId("run_2"), ITEM.agent, ITEM.id, "claude", AT, metadata=build_metadata(again, 3)
    )

    assert step(None, created).metadata == {
        "again": {"attempt": 3, "after": "crash", "free": ["hang"]}
    }


@pytest.mark.parametrize("mine", [None, 3, [], {}, {"free": "hang"}, {"free": [None, {}]}])
def test_metadata_of_a_caller_under_the_same_key_is_ignored(mine: object) -> None:
    run = replace(HANG, metadata={"again": mine, "wall_seconds": 3})

    assert decide_retry(run, ITEM, was_sent=True) is not None
