"""Skips a test whose program is missing on this machine; in CI the test fails."""

import os

import pytest


def require(name: str, is_there: bool, reason: str) -> None:
    """Skip unless `is_there`; fail instead where STEADYRUN_REQUIRE names it."""
    if is_there:
        return
    required = os.environ.get("STEADYRUN_REQUIRE", "").split(",")  # noqa: TID251 (tests only)
    if name in required:
        pytest.fail(f"{name} is required here: {reason}")
    pytest.skip(f"{name} is missing: {reason}")
