"""Prunes all events of a home that are older than a time, to be killed: `pruner.py HOME TIME`."""

import os
import sys
from datetime import datetime
from pathlib import Path

import anyio

from steadyrun.model.retention import RetentionLimits
from steadyrun.runtime.retention import prune_all, release_all_space
from steadyrun.stores.sqlite import SqliteStore


async def main(home: Path, before: datetime) -> None:
    store = await SqliteStore.open(home)
    os.write(1, b"ready\n")
    await prune_all(store, RetentionLimits(before))
    await release_all_space(store)
    await store.close()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), datetime.fromisoformat(sys.argv[2]))
