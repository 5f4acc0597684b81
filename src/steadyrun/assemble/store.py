"""Which store is it? Apart from the rest: a quick command needs nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from steadyrun.config import Config
from steadyrun.model.secret import Scrubber
from steadyrun.store import Store
from steadyrun.stores.sqlite import SqliteStore


@asynccontextmanager
async def open_store(config: Config, scrubber: Scrubber | None = None) -> AsyncIterator[Store]:
    """The store the configuration names, scrubbing the secrets the configuration knows."""
    scrubber = scrubber or Scrubber(config.secrets())
    store = await SqliteStore.open(config.places.home, scrubber=scrubber)
    try:
        yield store
    finally:
        await store.close()
