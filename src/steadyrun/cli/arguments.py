"""Adds the arguments of commands to a parser, and converts their values."""

import argparse
import os

from steadyrun.errors import InvalidUsage
from steadyrun.model.quotation import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # Field, kind, option names (empty: positional), metavar, help, choices, is required.
    ArgumentRow = tuple[str, str, tuple[str, ...], str, str, tuple[str, ...], bool]
    # Words, summary, operation, arguments.
    CommandRow = tuple[str, str, str, tuple[ArgumentRow, ...]]

_MOST = 100_000
_OLDEST_DAYS = 36500


def add_arguments(parser: argparse.ArgumentParser, row: "CommandRow") -> None:
    """Add the arguments of a row of `command_table.py`."""
    for argument in row[3]:
        _add(parser, argument)
    add_json_flag(parser)
    parser.set_defaults(operation=row[2])


def _add(parser: argparse.ArgumentParser, argument: "ArgumentRow") -> None:
    field, kind, names, metavar, summary, values, is_required = argument
    if kind == "constants":
        either = parser.add_mutually_exclusive_group()
        texts = dict(part.split(": ", 1) for part in summary.split("; "))
        for name, value in zip(names, values, strict=True):
            text = texts[value]
            either.add_argument(name, dest=field, action="store_const", const=value, help=text)
        return
    settings: dict[str, Any] = {"help": summary, **_build_settings(kind, metavar, values)}
    if not names:
        parser.add_argument(field, nargs=None if is_required else "?", **settings)
    else:
        parser.add_argument(*names, dest=field, required=is_required, **settings)


def _build_settings(kind: str, metavar: str, values: tuple[str, ...]) -> "dict[str, Any]":
    settings: dict[str, dict[str, Any]] = {
        "text": {"metavar": metavar},
        "flag": {"action": "store_true", "default": None},
        "count": {"metavar": metavar, "type": parse_count},
        "duration": {"metavar": metavar, "type": parse_timeout},
        "wait": {"metavar": metavar, "type": parse_wait},
        "choice": {"metavar": metavar, "choices": values},
        "words": {"metavar": metavar, "type": parse_words},
        "path": {"metavar": metavar, "type": os.path.abspath},
        "paths": {"metavar": metavar, "type": os.path.abspath, "action": "append"},
    }
    return settings[kind]


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def parse_timeout(text: str) -> float:
    return _parse_seconds(text, allow_zero=False)


def parse_wait(text: str) -> float:
    """Parse a duration that may be zero."""
    return _parse_seconds(text, allow_zero=True)


def _parse_seconds(text: str, *, allow_zero: bool) -> float:
    # Imported late: compiling its pattern slows down the start of every command.
    from steadyrun.cli.durations import parse_duration  # noqa: PLC0415

    try:
        return parse_duration(text, allow_zero=allow_zero)
    except InvalidUsage as error:
        raise argparse.ArgumentTypeError(error.message) from error


def parse_dollars(text: str) -> float:
    is_number = text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) <= 12
    if not is_number or float(text) <= 0:
        raise argparse.ArgumentTypeError(
            f"expected an amount in dollars above 0, found {quote(text)}"
        )
    return float(text)


def parse_count(text: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdecimal() else ""
    if not 1 <= len(digits) <= 6 or int(digits) > _MOST:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {_MOST}, found {text!r}")
    return int(digits)


def parse_cursor(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"expected a cursor of an event, found {quote(text)}")
    return int(text)


def parse_age(text: str) -> float:
    """Parse an age in hours or days; the seconds."""
    digits, unit = text[:-1], {"h": 3600.0, "d": 86400.0}.get(text[-1:])
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 6
    seconds = int(digits) * unit if is_number and unit else 0.0
    if not 0 < seconds <= _OLDEST_DAYS * 86400:
        raise argparse.ArgumentTypeError(f"expected an age such as 12h or 90d, found {text[:40]!r}")
    return seconds


def parse_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
