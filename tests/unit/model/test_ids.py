"""Ids are typed, fixed in length, sort by time, and never tie."""

import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from steadyrun.lib.clock import SystemClock
from steadyrun.model.ids import Ids
from steadyrun.testing.clock import FakeClock, make_ids

ID = re.compile(r"[a-z]{3}_[0-9abcdefghjkmnpqrstvwxyz]{26}")
CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def test_each_kind_has_its_own_prefix() -> None:
    ids = Ids(SystemClock().now)

    made = [
        ids.make_agent(),
        ids.make_item(),
        ids.make_run(),
        ids.make_process(),
        ids.make_holder(),
    ]

    assert [name[:4] for name in made] == ["agt_", "itm_", "run_", "prc_", "hld_"]
    assert all(ID.fullmatch(name) for name in made)


def test_id_contains_its_creation_time() -> None:
    clock = FakeClock(datetime(2026, 5, 4, 3, 2, 1, 999_000, tzinfo=UTC))

    number = _number(Ids(clock.now).make_run())

    assert number >> 80 == int(clock.now().timestamp() * 1000)


@given(st.lists(st.integers(-5, 2000), min_size=1, max_size=30), st.integers(0, 2**32))
def test_ids_of_one_maker_sort_by_creation(steps: list[int], seed: int) -> None:
    clock = FakeClock()
    ids, made = make_ids(clock, seed), []

    for step in steps:
        # The clock may also step back.
        clock.advance(timedelta(milliseconds=step))
        made.append(ids.make_item())

    assert made == sorted(set(made))


@given(st.integers(1, 10**9))
def test_id_of_a_later_millisecond_sorts_later_for_any_maker(milliseconds: int) -> None:
    clock = FakeClock()
    early = Ids(clock.now, lambda bits: 2**bits - 1).make_run()
    clock.advance(timedelta(milliseconds=milliseconds))

    assert early < Ids(clock.now, lambda _: 0).make_run()


def test_same_seed_makes_the_same_ids() -> None:
    clock = FakeClock()
    first, second, other = make_ids(clock, 1), make_ids(clock, 1), make_ids(clock, 2)

    assert [first.make_run(), first.make_item()] == [second.make_run(), second.make_item()]
    assert first.make_run() != other.make_run()


def test_ids_of_two_makers_are_different() -> None:
    clock = FakeClock()
    one, two = Ids(clock.now), Ids(clock.now)

    made = {maker.make_item() for _ in range(500) for maker in (one, two)}

    assert len(made) == 1000


def _number(name: str) -> int:
    number = 0
    for character in name[4:]:
        number = number * 32 + CROCKFORD.index(character)
    return number
