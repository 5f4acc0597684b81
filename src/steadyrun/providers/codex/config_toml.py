"""Checks and encodes the settings of Codex, which reads them as TOML."""

import math
from typing import Any

import msgspec

from steadyrun.model.quotation import quote
from steadyrun.providers.shared.arguments import refuse_option

LARGEST_INTEGER = 2**63 - 1


def to_toml(value: Any) -> str:
    """Encode a value as TOML in one line."""
    if isinstance(value, dict):
        inner = ", ".join(f"{to_toml(key)} = {to_toml(each)}" for key, each in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    # For these values JSON is valid TOML, except for one character.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def check_toml(name: str, value: Any) -> None:
    """Refuse a value that JSON and TOML cannot both express."""
    if isinstance(value, dict):
        for key, each in value.items():
            check_toml(f"{name}.{key}", each)
    elif isinstance(value, list):
        for each in value:
            check_toml(name, each)
    elif not _is_plain(value):
        expected = "a text, a number, true, false, a list or an object"
        refuse_option(name, expected, quote(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= LARGEST_INTEGER
    return isinstance(value, str)
