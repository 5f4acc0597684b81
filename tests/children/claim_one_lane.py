"""Joins the store of a home, starts an item of any lane or of a named one, prints the claim, and
waits to be killed."""

import sys
from datetime import datetime
from pathlib import Path

import anyio
import msgspec

from steadyrun.model.ids import AgentId
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.clock import FakeClock
from steadyrun.testing.store_conformance.fixtures import claim_lanes


async def main(home: str, now: str, name: str | None = None) -> None:
    store = await SqliteStore.open(Path(home), clock=FakeClock(datetime.fromisoformat(now)))
    agent = AgentId(name) if name else None
    holder = await store.join("child")
    [claim] = await claim_lanes(store, holder.id, agent=agent)
    sys.stdout.buffer.write(msgspec.json.encode(claim) + b"\n")
    sys.stdout.buffer.flush()
    # Ends only by being killed, or when its parent has ended.
    sys.stdin.buffer.read()


if __name__ == "__main__":
    home, now, *names = sys.argv[1:]
    anyio.run(main, home, now, names[0] if names else None)
