"""Durations on the command line are parsed or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.cli.durations import LONGEST_SECONDS, parse_duration
from steadyrun.errors import InvalidUsage

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("6s", 6), ("10m", 600), ("2h", 7200), ("90", 90), ("1.5h", 5400),
     (" 6s ", 6), ("0.25", 0.25), ("007s", 7)],
)  # fmt: skip
def test_parse_duration_reads_every_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "0", "0ms", "-1s", "+1s", "1d", "1 s", "1s2", "1e3", "inf", "nan", "1.", ".5",
     "٣s", "1_0", "1h30m", "9" * 50, "9999h", "1S"],
)  # fmt: skip
def test_parse_duration_names_an_invalid_text(text: str) -> None:
    with pytest.raises(InvalidUsage, match="500ms, 6s, 10m or 2h"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0", "0s", "0ms", "0.0h", "00"])
def test_parse_duration_reads_zero_if_it_is_allowed(text: str) -> None:
    assert parse_duration(text, allow_zero=True) == 0.0


@pytest.mark.parametrize("text", ["", "s", "-0s", "-1s", "9999h"])
def test_parse_duration_refuses_an_invalid_text_even_if_zero_is_allowed(text: str) -> None:
    with pytest.raises(InvalidUsage, match="500ms, 6s, 10m or 2h"):
        parse_duration(text, allow_zero=True)


@given(st.integers(1, 8000), st.sampled_from(sorted(UNITS)))
def test_parse_duration_multiplies_the_number_with_its_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == pytest.approx(number * UNITS[unit])


@given(st.text(max_size=20))
def test_parse_duration_raises_only_invalid_usage_for_any_text(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except InvalidUsage:
        return
    assert 0 < seconds <= LONGEST_SECONDS
