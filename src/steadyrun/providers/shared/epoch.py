"""Converts the times that CLIs print."""

from datetime import UTC, datetime


def to_datetime(epoch: float | None) -> datetime | None:
    """Convert seconds since 1970; None for a number that is not a valid time."""
    try:
        return None if epoch is None else datetime.fromtimestamp(epoch, UTC)
    except (ValueError, OverflowError, OSError):
        return None
