"""What becomes of an item, and of what its run absorbed, when the run ends."""

from datetime import UTC, datetime
from typing import get_args

import msgspec
import pytest

from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.item import (
    SETTLED,
    Item,
    ItemStatus,
    compute_absorbed_status,
    compute_item_status,
)
from steadyrun.model.run import EndStatus, Run, RunStatus, StopReason

AT = datetime(2026, 1, 1, tzinfo=UTC)
ITEM = Item(ItemId("itm_1"), AgentId("agt_1"), 1, "message", "hello", "resume", AT)
ASKED = msgspec.structs.replace(ITEM, cancel_requested=True)
EVERY_END = [
    (status, reason) for status in get_args(EndStatus) for reason in (None, *get_args(StopReason))
]


def ended(status: RunStatus, stop_reason: StopReason | None = None) -> Run:
    return Run(
        RunId("run_1"), ITEM.agent, ITEM.id, "claude", AT, status=status, stop_reason=stop_reason
    )


@pytest.mark.parametrize(
    ("status", "stop_reason", "expected"),
    [
        ("completed", None, "completed"),
        ("failed", None, "failed"),
        ("failed", "hang", "failed"),
        ("failed", "orphaned", "failed"),
        ("cancelled", "user_stop", "cancelled"),
        ("timed_out", "idle_timeout", "failed"),
        ("rate_limited", None, "queued"),
        ("cancelled", "shutdown", "queued"),
        ("failed", "shutdown", "queued"),
    ],
)
def test_status_of_an_item_follows_its_run(
    status: RunStatus, stop_reason: StopReason | None, expected: ItemStatus
) -> None:
    assert compute_item_status(ended(status, stop_reason), ITEM) == expected


@pytest.mark.parametrize(
    ("status", "stop_reason", "expected"),
    [
        ("completed", None, "completed"),
        ("failed", "hang", "queued"),
        ("timed_out", "wall_timeout", "queued"),
        ("rate_limited", None, "queued"),
        ("cancelled", "user_stop", "cancelled"),
        ("cancelled", "shutdown", "queued"),
    ],
)
def test_absorbed_item_is_queued_again_if_the_run_fails(
    status: RunStatus, stop_reason: StopReason | None, expected: ItemStatus
) -> None:
    assert compute_absorbed_status(ended(status, stop_reason), ITEM) == expected


@pytest.mark.parametrize(
    ("status", "stop_reason", "expected", "absorbed"),
    [
        ("completed", None, "completed", "completed"),
        ("failed", "shutdown", "failed", "failed"),
        ("cancelled", "shutdown", "queued", "failed"),
        ("failed", "keeper_lost", "failed", "failed"),
        ("failed", "launch_failed", "queued", "failed"),
        ("failed", "budget", "queued", "queued"),
        ("rate_limited", None, "queued", "queued"),
    ],
)
def test_item_with_on_lost_fail_is_not_queued_after_its_turn_was_sent(
    status: RunStatus, stop_reason: StopReason | None, expected: str, absorbed: str
) -> None:
    run, item = ended(status, stop_reason), msgspec.structs.replace(ITEM, on_lost="fail")

    assert compute_item_status(run, item) == expected
    assert compute_absorbed_status(run, item) == absorbed


@pytest.mark.parametrize(("status", "stop_reason"), EVERY_END)
def test_item_with_a_cancel_request_is_cancelled_unless_completed(
    status: RunStatus, stop_reason: StopReason | None
) -> None:
    run = ended(status, stop_reason)
    expected = "completed" if status == "completed" else "cancelled"

    assert compute_item_status(run, ASKED) == expected
    assert compute_absorbed_status(run, ASKED) == expected


@pytest.mark.parametrize(("status", "stop_reason"), EVERY_END)
def test_every_end_settles_or_queues_the_item(
    status: RunStatus, stop_reason: StopReason | None
) -> None:
    run = ended(status, stop_reason)

    assert compute_item_status(run, ITEM) in {*SETTLED, "queued"}
    assert compute_absorbed_status(run, ITEM) in {*SETTLED, "queued"}


def test_only_queued_and_running_items_are_open() -> None:
    open_ones = [
        status
        for status in get_args(ItemStatus)
        if not msgspec.structs.replace(ITEM, status=status).is_settled
    ]

    assert open_ones == ["queued", "running"]
