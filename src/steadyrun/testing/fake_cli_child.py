"""Plays the steps of a fake CLI. This file becomes part of its program."""

import json
import sys
from collections.abc import Mapping
from typing import Any

# The names of fields that hold ids in the protocols of CLIs.
_ID_SUFFIXES = ("_id", "Id", "_uuid", "Uuid")


def play(steps: str) -> None:
    """Play the steps. Ids that were read replace recorded ids in the output."""
    ids: dict[Any, Any] = {}
    for deed, what in json.loads(steps):
        if deed == "say":
            _print(
                sys.stdout, what if isinstance(what, str) else json.dumps(_replace_ids(what, ids))
            )
        elif deed == "complain":
            _print(sys.stderr, what)
        elif deed == "exit":
            raise SystemExit(what)
        elif deed == "end":
            sys.stdin.read()
        else:
            _record_ids(sys.stdin.readline(), what, ids)


def _print(stream: Any, line: str) -> None:
    stream.write(f"{line}\n")
    stream.flush()


def _record_ids(line: str, like: Any, ids: dict[Any, Any]) -> None:
    """Record which real ids correspond to those of the recording."""
    if not line:
        raise SystemExit(0)
    if isinstance(like, dict):
        try:
            ids.update(_match_ids(like, json.loads(line)))
        except ValueError:
            raise SystemExit(f"not JSON: {line[:200]}") from None


def _match_ids(recorded: Any, found: Any) -> "dict[Any, Any]":
    pairs = {}
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in recorded.keys() & found.keys():
            if _is_id(key, recorded[key]):
                pairs[recorded[key]] = found[key]
            else:
                pairs.update(_match_ids(recorded[key], found[key]))
    if isinstance(recorded, list) and isinstance(found, list):
        for each, other in zip(recorded, found, strict=False):
            pairs.update(_match_ids(each, other))
    return pairs


def _replace_ids(value: Any, ids: "Mapping[Any, Any]", key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _replace_ids(inner, ids, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replace_ids(inner, ids, key) for inner in value]
    return ids.get(value, value) if _is_id(key, value) else value


def _is_id(key: str, value: Any) -> bool:
    is_naming = key in {"id", "uuid"} or key.endswith(_ID_SUFFIXES)
    return is_naming and isinstance(value, str | int) and not isinstance(value, bool)
