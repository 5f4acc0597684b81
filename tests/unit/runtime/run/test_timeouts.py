"""The next deadline of a run depends on its activity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.runtime.run.timeouts import Activity, Deadline, Timeouts, next_deadline

LIMITS = Timeouts(300.0, 120.0, 60.0, 30.0)
SILENT = Timeouts(0.0, 0.0, 0.0, 30.0)
WALL_AT = 1000.0
# Started at 0, turn sent at 10, last output at 50.
ANSWERED = Activity(0.0, 10.0, 50.0, wall_at=WALL_AT)
SENT = Activity(0.0, 10.0, 5.0, wall_at=WALL_AT)
STARTING = Activity(0.0, None, 0.0, wall_at=WALL_AT)


@pytest.mark.parametrize(
    ("activity", "deadline"),
    [
        # The first deadline of silence is a warning, once.
        (ANSWERED, Deadline(80.0, None)),
        (replace(ANSWERED, is_warned=True), Deadline(350.0, "idle_timeout")),
        # A process for one turn may be silent for a shorter time.
        (replace(ANSWERED, is_warned=True, is_one_shot=True), Deadline(170.0, "stall")),
        # There is no output since the turn was sent: the shortest timeout.
        (SENT, Deadline(40.0, None)),
        (replace(SENT, is_warned=True), Deadline(70.0, "hang")),
        (replace(SENT, is_warned=True, is_one_shot=True), Deadline(70.0, "hang")),
        # Before its turn is sent, a run cannot hang.
        (replace(STARTING, is_warned=True), Deadline(300.0, "idle_timeout")),
        # A run that waits for a tool may be silent, up to the wall timeout.
        (replace(ANSWERED, is_waiting=True), Deadline(1000.0, "wall_timeout")),
        (replace(SENT, is_waiting=True, is_one_shot=True), Deadline(1000.0, "wall_timeout")),
        # The time in which a person is asked does not count.
        (replace(ANSWERED, is_waiting=True, wall_at=None), None),
    ],
)
def test_next_deadline_is_the_first_timeout_that_applies(
    activity: Activity, deadline: Deadline | None
) -> None:
    assert next_deadline(LIMITS, activity) == deadline


@pytest.mark.parametrize(
    ("activity", "deadline"),
    [
        (ANSWERED, Deadline(80.0, None)),
        (replace(ANSWERED, is_warned=True), None),
        (replace(SENT, is_warned=True, is_one_shot=True), None),
        (replace(ANSWERED, is_waiting=True), None),
    ],
)
def test_timeout_without_a_limit_has_no_deadline(
    activity: Activity, deadline: Deadline | None
) -> None:
    assert next_deadline(SILENT, replace(activity, wall_at=None)) == deadline


def test_wall_timeout_applies_although_there_is_output() -> None:
    talking = replace(ANSWERED, output_at=999.0)

    assert next_deadline(LIMITS, talking) == Deadline(1000.0, "wall_timeout")


_SECONDS = st.floats(0, 1e6)
_LIMIT = st.just(0.0) | st.floats(0.1, 1e5)
_SIGNS = st.builds(
    Activity,
    _SECONDS,
    st.none() | _SECONDS,
    _SECONDS,
    is_waiting=st.booleans(),
    wall_at=st.none() | _SECONDS,
    is_one_shot=st.booleans(),
    is_warned=st.booleans(),
)
_LIMITS = st.builds(Timeouts, _LIMIT, _LIMIT, _LIMIT, st.floats(0.1, 1e5))


@given(_LIMITS, _SIGNS, st.floats(0, 1e5))
def test_output_never_makes_the_deadline_earlier(
    limits: Timeouts, activity: Activity, later: float
) -> None:
    heard = replace(activity, output_at=activity.output_at + later)
    before, after = next_deadline(limits, activity), next_deadline(limits, heard)

    if after:
        assert before
        assert after.at >= before.at


@given(_LIMITS, _SIGNS)
def test_no_deadline_is_later_than_the_wall_timeout(limits: Timeouts, activity: Activity) -> None:
    deadline = next_deadline(limits, activity)

    if activity.wall_at is not None:
        assert deadline
        assert deadline.at <= activity.wall_at
    if activity.is_waiting:
        assert deadline is None or deadline.reason == "wall_timeout"
