"""Tests how long a commit waits for more writes."""

from hypothesis import given
from hypothesis import strategies as st

from steadyrun.stores.sqlite.db.commit_window import (
    NARROWEST_SECONDS,
    WIDEST_SECONDS,
    CommitWindow,
)

MANY = frozenset(f"lane {n}" for n in range(50))


def test_new_window_has_no_width() -> None:
    window = CommitWindow()

    assert window.compute_width(100.0) == 0.0
    assert window.is_complete(frozenset())
    assert window.is_complete({"a"})


def test_slow_writer_never_waits() -> None:
    window = CommitWindow()

    for second in range(100, 110):
        window.record_commit(float(second), 3, {"a"})
        assert window.compute_width(float(second)) == 0.0
        assert window.compute_width(second + 0.5) == 0.0


def test_many_fast_lanes_wait_10_to_50_ms() -> None:
    window, now = _busy(per_second=5000, seconds=1.0)

    assert 0.010 <= window.compute_width(now) <= 0.050
    assert not window.is_complete({"lane 1"})
    assert window.is_complete(MANY)


def test_window_is_wider_with_more_writes() -> None:
    calm, brisk, wild = (
        window.compute_width(now)
        for window, now in (_busy(per_second=n, seconds=1.0) for n in (1_100, 3_000, 100_000))
    )

    assert NARROWEST_SECONDS <= calm < brisk < wild == WIDEST_SECONDS


def test_single_fast_writer_never_waits_for_others() -> None:
    window, now = CommitWindow(), 100.0

    for _ in range(5000):
        now += 0.0002
        window.record_commit(now, 1, {"a"})

    assert window.compute_width(now) > 0
    assert window.is_complete({"a"})


def test_commit_does_not_wait_for_writers_without_a_lane() -> None:
    window = CommitWindow()
    window.record_commit(100.0, 500, frozenset())

    assert window.is_complete(frozenset())


def test_window_closes_after_the_load() -> None:
    window, now = _busy(per_second=100_000, seconds=1.0)

    widths = [window.compute_width(now + later) for later in (0.0, 0.1, 0.3, 1.0)]

    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 0.0


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 512)), max_size=50), st.floats(0, 10))
def test_width_is_zero_or_within_its_bounds(commits: list[tuple[float, int]], later: float) -> None:
    window, now = CommitWindow(), 0.0
    for pause, writes in commits:
        now += pause
        window.record_commit(now, writes, {"a", "b"})

    width = window.compute_width(now + later)

    assert width == 0.0 or NARROWEST_SECONDS <= width <= WIDEST_SECONDS


def _busy(*, per_second: int, seconds: float) -> tuple[CommitWindow, float]:
    """A window that has seen that many writes, in a commit every 10 ms."""
    window, now = CommitWindow(), 100.0
    for _ in range(int(seconds / 0.01)):
        now += 0.01
        window.record_commit(now, per_second // 100, MANY)
    return window, now
