"""Waits double until they reach their limit."""

from itertools import islice

from steadyrun.lib.backoff import iterate_delays, next_delay


def test_delays_double_up_to_the_limit() -> None:
    assert list(islice(iterate_delays(0.5, longest=3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_next_delay_never_exceeds_the_limit() -> None:
    assert next_delay(20.0, longest=30.0) == 30.0
