"""Checks the values of settings beyond their types. A check returns a `Problem` or None.

Settings are named by patterns; `*` stands for a name that the user chose.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, tzinfo
from typing import Any

from steadyrun.config.toml_source import shorten
from steadyrun.config.variables import is_malformed
from steadyrun.model.agent import NAME_RULE, ROLE_RULE, is_agent_name, is_role_name
from steadyrun.model.budget import LIMITS
from steadyrun.model.policy import check_tool_names
from steadyrun.model.text import Problem, suggest
from steadyrun.model.validation import check_count, check_dollars, check_timeout, check_variable
from steadyrun.providers import registry

# The largest number of concurrent runs or processes.
MOST = 100
# The longest rate limit window of an account is a week.
MOST_GATE_SECONDS = 7 * 24 * 3600
MOST_DAYS = 36500
LEAST_LINE_BYTES, MOST_LINE_BYTES = 1024 * 1024, 4 * 1024 * 1024 * 1024
MOST_MEMORY_BYTES = 1 << 40

# The permitted names of headers, and the characters that a value must not have (RFC 9110).
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NO_HEADER_VALUE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)"
_LISTEN = re.compile(_HOST + r":([0-9]{1,5})")
# Neither a user, which would be a secret in an address, nor a query.
_ENDPOINT = re.compile(rf"https?://{_HOST}(?::([0-9]{{1,5}}))?(?:/[!-\"$->@-~]*)?")


def describe_unknown(what: str, word: str, valid: Iterable[str]) -> Problem:
    return Problem(f"unknown {what} {shorten(repr(word))}", hint=suggest(word, valid))


def check_provider(name: str, configured: Collection[str] = ()) -> Problem | None:
    """Check that there is a provider of this name: a kind, or one of those `configured`."""
    if name in configured or registry.has_kind(name):
        return None
    return describe_unknown("provider", name, {*registry.list_kinds(), *configured})


def check_kind(provider: str, kind: str | None) -> Problem | None:
    """Check the kind of a provider; None stands for the provider's own name."""
    if kind is None:
        problem = check_provider(provider)
        if problem is None:
            return None
        hint = f"{problem.hint} A provider of another name needs a kind."
        return Problem(problem.problem, hint=hint)
    if provider in registry.BUILT_IN and kind != provider:
        return Problem(
            f"expected {provider!r}, found {shorten(repr(kind))}",
            hint="This is the name of a built-in provider: choose another name for the table.",
        )
    return (
        None if registry.has_kind(kind) else describe_unknown("kind", kind, registry.list_kinds())
    )


def _make_name_check(
    is_valid: Callable[[str], object], what: str, hint: str
) -> Callable[[str], Problem | None]:
    def check(name: str) -> Problem | None:
        return None if is_valid(name) else Problem(f"cannot be the name of {what}", hint=hint)

    return check


def _check_store(value: str) -> Problem | None:
    # The value is never repeated: an address may hold a password.
    if value == "sqlite":
        return None
    if value.startswith("postgresql://"):
        problem = "PostgreSQL is not available in this version"
        return Problem(problem, hint='Use store = "sqlite".')
    return Problem('expected "sqlite" or "postgresql://…"', hint='Use store = "sqlite".')


def _check_listen(value: str) -> Problem | None:
    found = _LISTEN.fullmatch(value)
    if found is None:
        return Problem(f"expected HOST:PORT, found {shorten(repr(value))}")
    if not 1 <= int(found[1]) <= 65535:
        return Problem(f"expected a port from 1 to 65535, found {found[1]}")
    return None


def _check_text(value: str) -> Problem | None:
    if not value:
        return Problem("must not be empty")
    return Problem("must not contain a NUL character") if "\0" in value else None


def _check_command(value: tuple[str, ...]) -> Problem | None:
    if not value or not value[0]:
        return Problem("expected a program and its arguments, found none")
    if value[0].startswith("~"):
        found = shorten(repr(value[0]))
        return Problem(f"has a ~, which is not expanded: {found}", hint="Write the whole path.")
    return next(filter(None, (_check_text(part) for part in value if part)), None)


def _check_env(value: str) -> Problem | None:
    if is_malformed(value):
        return Problem("has a ${ that does not begin a ${NAME}", hint="Write $$ for a dollar sign.")
    return _check_text(value) if value else None


def _check_endpoint(value: str) -> Problem | None:
    if not value:
        return None
    # The value is never repeated: it may hold a password.
    found = _ENDPOINT.fullmatch(value)
    if found and 1 <= int(found[1] or 80) <= 65535:
        return None
    hint = "Write it like http://127.0.0.1:4318; put secrets into telemetry.headers."
    return Problem(
        "expected http://HOST or https://HOST, with a port and a path at most", hint=hint
    )


def check_header_value(value: str) -> Problem | None:
    """Check the value of a header, also after its variables are expanded."""
    if _NO_HEADER_VALUE.search(value):
        return Problem("has a character that no header may have")
    return None if value.strip() else Problem("must not be empty")


def _check_header_template(value: str) -> Problem | None:
    return _check_env(value) or check_header_value(value)


def _check_fallback(value: tuple[str, ...]) -> Problem | None:
    return Problem("names a provider twice") if len(set(value)) < len(value) else None


def _check_names(value: tuple[str, ...]) -> Problem | None:
    return next(filter(None, map(_check_text, value)), None)


def _check_home(value: str) -> Problem | None:
    if value.startswith("~") and not value.startswith("~/"):
        return Problem(
            f"expected a path from /, from ~/ or from here, found {shorten(repr(value))}"
        )
    return _check_text(value)


def _make_range_check(least: int, most: int) -> Callable[[int], Problem | None]:
    def check(value: int) -> Problem | None:
        is_right = least <= value <= most
        return None if is_right else Problem(f"expected {least} to {most}, found {value}")

    return check


def _check_tokens(value: int) -> Problem | None:
    return check_count(value, "tokens")


def _check_zone(value: str) -> Problem | None:
    if find_zone(value) is not None:
        return None
    hint = 'Use a name like "Europe/Berlin", or "UTC"; the names are those of the tzdata here.'
    return Problem(f"unknown time zone {shorten(repr(value))}", hint=hint)


def find_zone(name: str) -> tzinfo | None:
    """Find a time zone by its name; None if the system does not have it."""
    if name == "UTC":
        return UTC
    # Imported on demand: it costs start-up time, and few users set a time zone.
    from zoneinfo import ZoneInfo  # noqa: PLC0415

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def check_seconds(value: float) -> Problem | None:
    if value >= 0 and math.isfinite(value):
        return None
    return Problem(f"expected a number of seconds, 0 or more, found {value}")


def _check_days(value: float) -> Problem | None:
    if 0 <= value <= MOST_DAYS:
        return None
    return Problem(f"expected a number of days from 0 to {MOST_DAYS}, found {value}")


def _check_factor(value: float) -> Problem | None:
    is_right = value > 1 and math.isfinite(value)
    return None if is_right else Problem(f"expected a number above 1, found {value}")


NAMES: dict[str, Callable[[str], Problem | None]] = {
    "providers.*": _make_name_check(is_agent_name, "a provider", NAME_RULE),
    "agents.*": _make_name_check(is_agent_name, "an agent", NAME_RULE),
    "providers.*.env.*": check_variable,
    "telemetry.headers.*": _make_name_check(
        _HEADER.fullmatch, "a header", "Use letters, digits and -."
    ),
}
CHECKS: dict[str, Callable[[Any], Problem | None]] = {
    "store": _check_store,
    "daemon.listen": _check_listen,
    "daemon.runs": _make_range_check(1, MOST),
    "daemon.processes": _make_range_check(0, MOST),
    "daemon.idle_seconds": check_seconds,
    "daemon.drain_seconds": check_seconds,
    "daemon.keep_days": _check_days,
    "daemon.keep_events_days": _check_days,
    "daemon.keep_texts_days": _check_days,
    "daemon.line_bytes": _make_range_check(LEAST_LINE_BYTES, MOST_LINE_BYTES),
    "gate.initial_seconds": _make_range_check(1, MOST_GATE_SECONDS),
    "gate.max_seconds": _make_range_check(1, MOST_GATE_SECONDS),
    "gate.factor": _check_factor,
    "gate.attempts": _make_range_check(1, 1000),
    "providers.*.command": _check_command,
    "providers.*.model": _check_text,
    "providers.*.env.*": _check_env,
    "providers.*.runs": _make_range_check(1, MOST),
    "agents.*.approvers": _check_names,
    "agents.*.fallback": _check_fallback,
    "agents.*.home": _check_home,
    "agents.*.model": _check_text,
    "agents.*.deny": check_tool_names,
    "agents.*.role": _make_name_check(is_role_name, "a role", ROLE_RULE),
    "agents.*.system": _check_text,
    "agents.*.wall_seconds": check_timeout,
    **{f"agents.*.budget.{limit}": check_dollars for limit in LIMITS},
    **{f"agents.*.budget.{limit}_tokens": _check_tokens for limit in LIMITS},
    "budgets.timezone": _check_zone,
    "budgets.unknown_usd_per_million": check_dollars,
    "telemetry.endpoint": _check_endpoint,
    "telemetry.headers.*": _check_header_template,
    "watch.loop_seconds": check_seconds,
    "watch.commit_seconds": check_seconds,
    "watch.queue_seconds": check_seconds,
    "watch.memory_bytes": _make_range_check(0, MOST_MEMORY_BYTES),
}
