"""Computes fingerprints: equal values have equal fingerprints, which do not reveal the values."""

import hashlib
import hmac
from typing import Any

import msgspec


def compute_hmac(key: bytes, content: Any) -> str:
    """Compute the HMAC of a value, in hexadecimal digits. Give mappings in sorted order."""
    return hmac.new(key, msgspec.msgpack.encode(content), hashlib.sha256).hexdigest()
