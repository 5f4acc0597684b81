"""Resolves approvals that were answered or withdrawn."""

from collections.abc import Callable
from typing import TypeVar

from steadyrun.dialect import DialectOutput
from steadyrun.model.event import ApprovalResolved

ApprovalT = TypeVar("ApprovalT")


def resolve_approvals(
    asks: dict[str, ApprovalT], is_resolved: Callable[[ApprovalT], bool], verdict: str, by: str
) -> list[DialectOutput]:
    """Remove the approvals that are resolved, and report the verdict of each."""
    names = [name for name, ask in asks.items() if is_resolved(ask)]
    for name in names:
        del asks[name]
    return [ApprovalResolved(name, verdict, by) for name in names]
