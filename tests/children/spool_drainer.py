"""Executes the spooled calls of HOME and kills itself at the step `accepted`, before it deletes a
file.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from steadyrun.model.item import Message
from steadyrun.operations.spool import drain_spool
from steadyrun.store import Accepted
from steadyrun.stores.sqlite import SqliteStore
from tests.support.fake_daemon import make_context


class LastAccept:
    """A store that accepts one message, and then this process is gone."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def accept(self, message: Message) -> Accepted:
        await self._store.accept(message)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


async def main(home: Path) -> None:
    store: Any = LastAccept(await SqliteStore.open(home))
    await drain_spool(make_context(store, home))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
