"""What may a person be shown of the settings? Everything but the secrets in them."""

import re
from typing import Any

import msgspec

from steadyrun.config.load import Config
from steadyrun.config.schema import set_values
from steadyrun.config.toml_source import KeyPath, dotted
from steadyrun.config.variables import looks_secret, variables
from steadyrun.model.secret import Scrubber

_HIDDEN = "***"
_USER_INFO = re.compile(rb'(://[^/@:\s"]*:)(?!\$\{)[^/@\s"]+@')


def describe(config: Config) -> list[tuple[str, str, str]]:
    """List key, value as it would be written, and origin."""
    return [(key, value.decode(), origin) for key, value, origin in _rows(config)]


def as_document(config: Config) -> dict[str, Any]:
    """Give the same as one JSON document."""
    rows = [
        {"key": key, "value": msgspec.json.decode(value), "origin": origin}
        for key, value, origin in _rows(config)
    ]
    return {"settings": rows}


def _rows(config: Config) -> list[tuple[str, bytes, str]]:
    scrubber = Scrubber(config.secrets())
    return [
        (dotted(path), _shown(path, value, scrubber), config.origins[dotted(path)])
        for path, value in set_values(config.settings)
    ]


def _shown(path: KeyPath, value: object, scrubber: Scrubber) -> bytes:
    shown = scrubber.clean(_visible(path, value))
    return _USER_INFO.sub(rb"\1***@", msgspec.json.encode(shown))


def _visible(path: KeyPath, value: object) -> object:
    if path[:2] == ("telemetry", "headers"):
        return value if variables(str(value)) else _HIDDEN
    return _hide(path[-1], value) if len(path) == 4 else value


def _hide(name: str, value: object) -> object:
    """Hide text under a name that promises a secret, however deep in a provider's options."""
    match value:
        case str() if looks_secret(name) and not variables(value):
            return _HIDDEN
        case dict():
            return {key: _hide(key, inner) for key, inner in value.items()}
        case list():
            return [_hide(name, inner) for inner in value]
        case _:
            return value
