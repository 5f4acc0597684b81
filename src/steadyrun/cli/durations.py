"""Parses durations: `500ms`, `6s`, `10m`, `2h`. A number without a unit is in seconds."""

import re

from steadyrun.errors import InvalidUsage
from steadyrun.model.quotation import quote

LONGEST_SECONDS = 366 * 24 * 3600.0
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_FORM = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|)", re.ASCII)


def parse_duration(text: str, *, allow_zero: bool = False) -> float:
    """Return the seconds: at most a year, and more than zero unless `allow_zero`."""
    found = _FORM.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
    is_enough = seconds >= 0.0 if allow_zero else seconds > 0.0
    if not is_enough or seconds > LONGEST_SECONDS:
        raise InvalidUsage(f"expected a duration such as 500ms, 6s, 10m or 2h, found {quote(text)}")
    return seconds
