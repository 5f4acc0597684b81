"""However runs end, their item is run again as the table says, and not for ever."""

from datetime import UTC, datetime
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.item import Item, ItemKind, OnLost
from steadyrun.model.run import STOPPED, EndStatus, Run, StopReason
from steadyrun.runtime.run.retry import RetryDecision, build_metadata, decide_retry

AT = datetime(2026, 1, 1, tzinfo=UTC)
CODES = [
    "exited", "start_failed", "resume_not_found", "resume_corrupt", "conversation_corrupt",
    "auth", "rate_limited", "launch_failed", "internal",
]  # fmt: skip
LOST = {"keeper_lost", "orphaned", "machine_lost"}

stopped = st.sampled_from(sorted(STOPPED)).map(lambda reason: (STOPPED[reason], reason))
unstopped = st.sampled_from(get_args(EndStatus)).map(lambda status: (status, None))
details = (st.none() | st.sampled_from(CODES), st.booleans())
ends = st.tuples(stopped | unstopped, *details)
FAILED = [
    *(("failed", reason) for reason in sorted(STOPPED) if STOPPED[reason] == "failed"),
    ("failed", None),
]
failures = st.tuples(st.sampled_from(FAILED), *details)
items = st.builds(
    Item,
    st.just(ItemId("itm_1")),
    st.just(AgentId("agt_1")),
    st.just(1),
    st.sampled_from(get_args(ItemKind)),
    st.just("hello"),
    st.sampled_from(get_args(OnLost)),
    st.just(AT),
    attempt=st.just(1),
)
End = tuple[tuple[EndStatus, StopReason | None], str | None, bool]


def run_of(end: End, again: RetryDecision | None, attempt: int) -> Run:
    (status, reason), code, _ = end
    metadata = build_metadata(again, attempt) if again else {}
    error = ErrorFact(code, "why") if code else None
    return Run(
        RunId(f"run_{attempt}"), AgentId("agt_1"), ItemId("itm_1"), "claude", AT, status,
        stop_reason=reason, error=error, metadata=metadata,
    )  # fmt: skip


class Table:
    """The same rules in a second form: counts over the whole life of an item what is allowed."""

    def __init__(self, item: Item) -> None:
        self.may_repeat = item.on_lost != "fail"
        self.is_asked = item.kind != "self"
        self.left = {"hang": 1, "journal_full": 1, "conversation": 1, "spent": 3, "untold": 3}

    def row(self, end: End) -> str | None:
        """What allows another try, if anything does."""
        (status, reason), code, was_told = end
        if status != "failed" or not self.is_asked:
            return None
        if reason is None and code in {
            "resume_not_found",
            "resume_corrupt",
            "conversation_corrupt",
        }:
            return "conversation"
        if was_told and not self.may_repeat:
            return None
        if reason in {"hang", "journal_full"}:
            return reason
        is_crash = reason is None and code in {"exited", "start_failed"}
        if is_crash or reason == "stall" or reason in LOST:
            return "spent" if was_told else "untold"
        return None

    def told(self, end: End) -> str | None:
        row = self.row(end)
        if row is None or not self.left[row]:
            return None
        self.left[row] -= 1
        return row


@given(items, st.lists(ends, max_size=30))
def test_every_end_is_retried_as_the_table_states(item: Item, life: list[End]) -> None:
    table, again = Table(item), None

    for end in life:
        run = run_of(end, again, item.attempt)
        again = decide_retry(run, item, was_sent=end[2])
        row = table.told(end)
        assert (again is not None) == (row is not None)
        if again is None:
            return
        assert again.spends == (row == "spent")
        assert again.is_fresh == (row == "conversation")
        nth = 3 - table.left[row] if row in {"spent", "untold"} else 0
        assert again.after_seconds == nth * 0.5
        assert again.one_shot == (nth >= 2 and run.stop_reason not in LOST)
        item = replace(item, attempt=item.attempt + 1, tries=item.tries + again.spends)


@given(items, st.lists(failures, min_size=10, max_size=10))
def test_no_item_is_retried_without_end(item: Item, life: list[End]) -> None:
    again: RetryDecision | None = None

    for end in life:
        again = decide_retry(run_of(end, again, item.attempt), item, was_sent=end[2])
        if again is None:
            return
        item = replace(item, attempt=item.attempt + 1, tries=item.tries + again.spends)

    raise AssertionError("ten ends were survived")


@given(items, ends)
def test_item_with_a_cancel_request_is_not_retried(item: Item, end: End) -> None:
    asked = replace(item, cancel_requested=True)

    assert decide_retry(run_of(end, None, 1), asked, was_sent=end[2]) is None
