"""Describes the settings for the user, without the secrets in them."""

import re
from typing import Any

import msgspec

from steadyrun.config.load import Config
from steadyrun.config.schema import list_values
from steadyrun.config.toml_source import KeyPath, format_path
from steadyrun.config.variables import find_variables, is_secret_name
from steadyrun.model.secret import Scrubber

_HIDDEN = "***"
_USER_INFO = re.compile(rb'(://[^/@:\s"]*:)(?!\$\{)[^/@\s"]+@')


def describe(config: Config) -> list[tuple[str, str, str]]:
    """List each key with its value as written in a file, and its origin."""
    return [(key, value.decode(), origin) for key, value, origin in _list_rows(config)]


def to_document(config: Config) -> dict[str, Any]:
    """Return the same as one JSON document."""
    rows = [
        {"key": key, "value": msgspec.json.decode(value), "origin": origin}
        for key, value, origin in _list_rows(config)
    ]
    return {"settings": rows}


def _list_rows(config: Config) -> list[tuple[str, bytes, str]]:
    scrubber = Scrubber(config.list_secrets())
    return [
        (format_path(path), _encode_value(path, value, scrubber), config.origins[format_path(path)])
        for path, value in list_values(config.settings)
    ]


def _encode_value(path: KeyPath, value: object, scrubber: Scrubber) -> bytes:
    shown = scrubber.clean(_mask_value(path, value))
    return _USER_INFO.sub(rb"\1***@", msgspec.json.encode(shown))


def _mask_value(path: KeyPath, value: object) -> object:
    if path[:2] == ("telemetry", "headers"):
        return value if find_variables(str(value)) else _HIDDEN
    return _mask_secrets(path[-1], value) if len(path) == 4 else value


def _mask_secrets(name: str, value: object) -> object:
    """Hide text under the name of a secret, at any depth of a provider's options."""
    match value:
        case str() if is_secret_name(name) and not find_variables(value):
            return _HIDDEN
        case dict():
            return {key: _mask_secrets(key, inner) for key, inner in value.items()}
        case list():
            return [_mask_secrets(name, inner) for inner in value]
        case _:
            return value
