"""What does a fake CLI do? It plays its steps; this file becomes a part of its program."""

import json
import sys
from collections.abc import Mapping
from typing import Any

# What names something in the protocols of agents; a request is answered under its own.
_NAMING = ("_id", "Id", "_uuid", "Uuid")


def play(steps: str) -> None:
    """Play steps; what was read before decides which ids are said."""
    known: dict[Any, Any] = {}
    for deed, what in json.loads(steps):
        if deed == "say":
            _print(sys.stdout, what if isinstance(what, str) else json.dumps(_named(what, known)))
        elif deed == "complain":
            _print(sys.stderr, what)
        elif deed == "exit":
            raise SystemExit(what)
        elif deed == "end":
            sys.stdin.read()
        else:
            _learn(sys.stdin.readline(), what, known)


def _print(stream: Any, line: str) -> None:
    stream.write(f"{line}\n")
    stream.flush()


def _learn(line: str, like: Any, known: dict[Any, Any]) -> None:
    """Remember which ids stand for those of the recording."""
    if not line:
        raise SystemExit(0)
    if isinstance(like, dict):
        try:
            known.update(_pairs(like, json.loads(line)))
        except ValueError:
            raise SystemExit(f"not JSON: {line[:200]}") from None


def _pairs(recorded: Any, found: Any) -> "dict[Any, Any]":
    pairs = {}
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in recorded.keys() & found.keys():
            if _is_name(key, recorded[key]):
                pairs[recorded[key]] = found[key]
            else:
                pairs.update(_pairs(recorded[key], found[key]))
    if isinstance(recorded, list) and isinstance(found, list):
        for each, other in zip(recorded, found, strict=False):
            pairs.update(_pairs(each, other))
    return pairs


def _named(value: Any, known: "Mapping[Any, Any]", key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _named(inner, known, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner, known, key) for inner in value]
    return known.get(value, value) if _is_name(key, value) else value


def _is_name(key: str, value: Any) -> bool:
    is_naming = key in {"id", "uuid"} or key.endswith(_NAMING)
    return is_naming and isinstance(value, str | int) and not isinstance(value, bool)
