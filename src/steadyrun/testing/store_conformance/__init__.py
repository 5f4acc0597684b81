"""Checks that an engine keeps the promises of `steadyrun.store`, with one function per promise.

Write a `StoreHarness` for the engine and await every promise with a new harness. What needs the
record to outlive its stores is in `DURABLE_PROMISES`; the memory reference makes only the others.
"""

from types import ModuleType

from steadyrun.testing.store_conformance import (
    accounts,
    agents,
    approvals,
    durability,
    events,
    failover,
    gates,
    items,
    lanes,
    lifecycle,
    next_item,
    offers,
    reads,
    requests,
    retention,
    retries,
    runs,
    snapshots,
    starts,
    takeover,
    warm_lanes,
)
from steadyrun.testing.store_conformance.harness import Promise, StoreHarness


def _collect_promises(*rooms: ModuleType) -> tuple[Promise, ...]:
    return tuple(
        check for room in rooms for name, check in vars(room).items() if name.startswith("check_")
    )


PROMISES = _collect_promises(
    agents, items, lanes, starts, offers, requests, next_item, retries, warm_lanes, takeover,
    snapshots, events, approvals, gates, accounts, failover, reads, runs, retention, lifecycle,
)  # fmt: skip
DURABLE_PROMISES = _collect_promises(durability)

__all__ = ["DURABLE_PROMISES", "PROMISES", "Promise", "StoreHarness"]
