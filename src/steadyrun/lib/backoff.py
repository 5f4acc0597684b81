"""Computes growing waits between attempts: each is twice as long as the one before."""

from collections.abc import Iterator


def next_delay(delay: float, *, longest: float) -> float:
    """The wait after a wait of `delay` seconds."""
    return min(2 * delay, longest)


def iterate_delays(first: float, *, longest: float) -> Iterator[float]:
    """All waits in their order, without an end."""
    delay = first
    while True:
        yield delay
        delay = next_delay(delay, longest=longest)
