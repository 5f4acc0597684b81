"""When does which clock ring?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.runtime.run.timeouts import Alarm, ClockLimits, Signs, next_alarm

LIMITS = ClockLimits(wall=1000.0, idle=300.0, stall=120.0, hang=60.0, warning=30.0)
SILENT = ClockLimits(wall=None, idle=None, stall=None, hang=None, warning=30.0)
# Begun at 0, told at 10, last heard at 50.
SPOKEN = Signs(0.0, 10.0, 50.0)
TOLD = Signs(0.0, 10.0, 5.0)
STARTING = Signs(0.0, None, 0.0)


def _also(signs: Signs, **flags: bool) -> Signs:
    return Signs(signs.started_at, signs.told_at, signs.heard_at, **flags)


@pytest.mark.parametrize(
    ("signs", "alarm"),
    [
        # Silence is warned of first, once.
        (SPOKEN, Alarm(80.0, None)),
        (_also(SPOKEN, is_warned=True), Alarm(350.0, "idle_timeout")),
        # A process for one turn may be silent for a shorter time.
        (_also(SPOKEN, is_warned=True, is_one_shot=True), Alarm(170.0, "stall")),
        # It was told and has not said a word since: the shortest time.
        (TOLD, Alarm(40.0, None)),
        (_also(TOLD, is_warned=True), Alarm(70.0, "hang")),
        (_also(TOLD, is_warned=True, is_one_shot=True), Alarm(70.0, "hang")),
        # Before it was told anything, it cannot hang.
        (_also(STARTING, is_warned=True), Alarm(300.0, "idle_timeout")),
        # Whoever waits for a tool may be silent, but not for ever.
        (_also(SPOKEN, is_waiting=True), Alarm(1000.0, "wall_timeout")),
        (_also(TOLD, is_waiting=True, is_one_shot=True), Alarm(1000.0, "wall_timeout")),
        # The time of a person is nobody else's.
        (_also(SPOKEN, is_waiting=True, is_asking=True), None),
    ],
)
def test_the_first_clock_rings(signs: Signs, alarm: Alarm | None) -> None:
    assert next_alarm(LIMITS, signs) == alarm


@pytest.mark.parametrize(
    ("signs", "alarm"),
    [
        (SPOKEN, Alarm(80.0, None)),
        (_also(SPOKEN, is_warned=True), None),
        (_also(TOLD, is_warned=True, is_one_shot=True), None),
        (_also(SPOKEN, is_waiting=True), None),
    ],
)
def test_a_clock_without_a_limit_never_rings(signs: Signs, alarm: Alarm | None) -> None:
    assert next_alarm(SILENT, signs) == alarm


def test_a_run_ends_in_time_although_it_speaks() -> None:
    talking = Signs(0.0, 10.0, 999.0)

    assert next_alarm(LIMITS, talking) == Alarm(1000.0, "wall_timeout")


_SECONDS = st.floats(0, 1e6)
_LIMIT = st.none() | st.floats(0.1, 1e5)
_SIGNS = st.builds(
    Signs,
    _SECONDS,
    st.none() | _SECONDS,
    _SECONDS,
    is_waiting=st.booleans(),
    is_one_shot=st.booleans(),
    is_warned=st.booleans(),
)
_LIMITS = st.builds(ClockLimits, _LIMIT, _LIMIT, _LIMIT, _LIMIT, st.floats(0.1, 1e5))


@given(_LIMITS, _SIGNS, st.floats(0, 1e5))
def test_a_sign_of_life_never_brings_an_alarm_nearer(
    limits: ClockLimits, signs: Signs, later: float
) -> None:
    heard = Signs(
        signs.started_at,
        signs.told_at,
        signs.heard_at + later,
        is_waiting=signs.is_waiting,
        is_one_shot=signs.is_one_shot,
        is_warned=signs.is_warned,
    )
    before, after = next_alarm(limits, signs), next_alarm(limits, heard)

    if after:
        assert before
        assert after.at >= before.at


@given(_LIMITS, _SIGNS)
def test_no_alarm_is_later_than_the_wall(limits: ClockLimits, signs: Signs) -> None:
    alarm = next_alarm(limits, signs)

    if limits.wall:
        assert alarm
        assert alarm.at <= signs.started_at + limits.wall
    if signs.is_waiting:
        assert alarm is None or alarm.reason == "wall_timeout"
