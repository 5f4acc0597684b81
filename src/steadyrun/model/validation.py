"""Checks amounts and names of variables from files, commands and programs."""

import re

from steadyrun.model.quotation import quote
from steadyrun.model.text import Problem

# More than any real limit, and less than what a store or a clock can represent.
MOST = 10**12
OURS = "STEADYRUN_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_dollars(value: object) -> Problem | None:
    return None if _is_positive(value) else _build_problem("a number of dollars above 0", value)


def check_timeout(value: object) -> Problem | None:
    return None if _is_positive(value) else _build_problem("a number of seconds above 0", value)


def check_count(value: object, what: str) -> Problem | None:
    """Check a whole number above 0."""
    is_count = isinstance(value, int) and _is_positive(value)
    return None if is_count else _build_problem(f"a number of {what} above 0", value)


def _is_positive(value: object) -> bool:
    """Infinity and values that are not numbers are errors: a missing value means no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= MOST


def _build_problem(what: str, found: object) -> Problem:
    hint = f"It may be up to {MOST}; leave it out for no limit."
    return Problem(f"expected {what}, found {quote(found)}", hint)


def check_variable(name: str) -> Problem | None:
    if name.startswith(OURS):
        hint = "Choose another name: steadyrun sets this variable itself."
        return Problem(f"may not be set: names that begin with {OURS} are reserved", hint=hint)
    if _VARIABLE.fullmatch(name):
        return None
    return Problem("cannot be the name of a variable", hint="Use letters, digits and _.")
