"""Merges JSON objects."""

from collections.abc import Mapping
from typing import Any


def merge_objects(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `new` into `old`. Nested objects are merged; any other value of `new` replaces."""
    both = dict(old)
    for key, value in new.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            both[key] = merge_objects(before, value)
        else:
            both[key] = value
    return both
