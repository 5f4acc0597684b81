"""Joins the store of a home, claims one lane, says so on stdout and waits to be killed."""

import sys
from datetime import datetime
from pathlib import Path

import anyio
import msgspec

from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.clock import FakeClock


async def main(home: str, now: str) -> None:
    store = await SqliteStore.open(Path(home), clock=FakeClock(datetime.fromisoformat(now)))
    holder = await store.join("child")
    [claim] = await store.claim(holder.id)
    sys.stdout.buffer.write(msgspec.json.encode(claim) + b"\n")
    sys.stdout.buffer.flush()
    # Ends only by being killed, or when whoever started us is gone.
    sys.stdin.buffer.read()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
