"""How do the parts come together? From a configuration to an open store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from steadyrun.config import Config
from steadyrun.model.secret import Scrubber
from steadyrun.store import Store
from steadyrun.stores.sqlite import SqliteStore


@asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[Store]:
    """The store the configuration names, scrubbing the secrets the configuration knows."""
    store = await SqliteStore.open(config.places.home, scrubber=Scrubber(config.secrets()))
    try:
        yield store
    finally:
        await store.close()
