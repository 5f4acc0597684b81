"""Does an engine keep the promises of `steadyrun.store`? One function per promise.

Write a `StoreHarness` for the engine and await every promise with a new harness. What needs the
record to outlive its stores is in `DURABLE_PROMISES`; the memory reference makes only the others.
"""

from types import ModuleType

from steadyrun.testing.store_suite import (
    accounts,
    agents,
    approvals,
    calls,
    durable,
    events,
    failover,
    followups,
    gates,
    going_on,
    items,
    known,
    lanes,
    life,
    reading,
    records,
    starting,
    takeover,
    trying_again,
    warm,
)
from steadyrun.testing.store_suite.harness import Promise, StoreHarness


def _promises(*rooms: ModuleType) -> tuple[Promise, ...]:
    return tuple(
        check for room in rooms for name, check in vars(room).items() if name.startswith("check_")
    )


PROMISES = _promises(
    agents, items, lanes, starting, followups, calls, going_on, trying_again, warm, takeover,
    known, events, approvals, gates, accounts, failover, reading, records, life,
)  # fmt: skip
DURABLE_PROMISES = _promises(durable)

__all__ = ["DURABLE_PROMISES", "PROMISES", "Promise", "StoreHarness"]
