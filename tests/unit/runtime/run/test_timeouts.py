"""When does which clock ring?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.runtime.run.timeouts import Activity, Deadline, Timeouts, next_deadline

LIMITS = Timeouts(wall=1000.0, idle=300.0, stall=120.0, hang=60.0, warning=30.0)
SILENT = Timeouts(wall=None, idle=None, stall=None, hang=None, warning=30.0)
# Begun at 0, told at 10, last heard at 50.
SPOKEN = Activity(0.0, 10.0, 50.0)
TOLD = Activity(0.0, 10.0, 5.0)
STARTING = Activity(0.0, None, 0.0)


def _also(signs: Activity, **flags: bool) -> Activity:
    return Activity(signs.started_at, signs.sent_at, signs.output_at, **flags)


@pytest.mark.parametrize(
    ("signs", "alarm"),
    [
        # Silence is warned of first, once.
        (SPOKEN, Deadline(80.0, None)),
        (_also(SPOKEN, is_warned=True), Deadline(350.0, "idle_timeout")),
        # A process for one turn may be silent for a shorter time.
        (_also(SPOKEN, is_warned=True, is_one_shot=True), Deadline(170.0, "stall")),
        # It was told and has not said a word since: the shortest time.
        (TOLD, Deadline(40.0, None)),
        (_also(TOLD, is_warned=True), Deadline(70.0, "hang")),
        (_also(TOLD, is_warned=True, is_one_shot=True), Deadline(70.0, "hang")),
        # Before it was told anything, it cannot hang.
        (_also(STARTING, is_warned=True), Deadline(300.0, "idle_timeout")),
        # Whoever waits for a tool may be silent, but not for ever.
        (_also(SPOKEN, is_waiting=True), Deadline(1000.0, "wall_timeout")),
        (_also(TOLD, is_waiting=True, is_one_shot=True), Deadline(1000.0, "wall_timeout")),
        # The time of a person is nobody else's.
        (_also(SPOKEN, is_waiting=True, is_asking=True), None),
    ],
)
def test_the_first_clock_rings(signs: Activity, alarm: Deadline | None) -> None:
    assert next_deadline(LIMITS, signs) == alarm


@pytest.mark.parametrize(
    ("signs", "alarm"),
    [
        (SPOKEN, Deadline(80.0, None)),
        (_also(SPOKEN, is_warned=True), None),
        (_also(TOLD, is_warned=True, is_one_shot=True), None),
        (_also(SPOKEN, is_waiting=True), None),
    ],
)
def test_a_clock_without_a_limit_never_rings(signs: Activity, alarm: Deadline | None) -> None:
    assert next_deadline(SILENT, signs) == alarm


def test_a_run_ends_in_time_although_it_speaks() -> None:
    talking = Activity(0.0, 10.0, 999.0)

    assert next_deadline(LIMITS, talking) == Deadline(1000.0, "wall_timeout")


_SECONDS = st.floats(0, 1e6)
_LIMIT = st.none() | st.floats(0.1, 1e5)
_SIGNS = st.builds(
    Activity,
    _SECONDS,
    st.none() | _SECONDS,
    _SECONDS,
    is_waiting=st.booleans(),
    is_one_shot=st.booleans(),
    is_warned=st.booleans(),
)
_LIMITS = st.builds(Timeouts, _LIMIT, _LIMIT, _LIMIT, _LIMIT, st.floats(0.1, 1e5))


@given(_LIMITS, _SIGNS, st.floats(0, 1e5))
def test_a_sign_of_life_never_brings_an_alarm_nearer(
    limits: Timeouts, signs: Activity, later: float
) -> None:
    heard = Activity(
        signs.started_at,
        signs.sent_at,
        signs.output_at + later,
        is_waiting=signs.is_waiting,
        is_one_shot=signs.is_one_shot,
        is_warned=signs.is_warned,
    )
    before, after = next_deadline(limits, signs), next_deadline(limits, heard)

    if after:
        assert before
        assert after.at >= before.at


@given(_LIMITS, _SIGNS)
def test_no_alarm_is_later_than_the_wall(limits: Timeouts, signs: Activity) -> None:
    alarm = next_deadline(limits, signs)

    if limits.wall:
        assert alarm
        assert alarm.at <= signs.started_at + limits.wall
    if signs.is_waiting:
        assert alarm is None or alarm.reason == "wall_timeout"
