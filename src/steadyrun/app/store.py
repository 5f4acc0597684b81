"""Opens the store of the configuration. It is a module of its own because a quick command needs
nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio.to_thread

from steadyrun.app.accounts import compute_accounts
from steadyrun.config import BudgetSettings, Config, GateSettings
from steadyrun.config.validators import find_zone
from steadyrun.model.budget import BudgetRules
from steadyrun.model.gate import GateRules
from steadyrun.model.retention import RetentionPeriods
from steadyrun.model.secret import Scrubber
from steadyrun.store import MaintainedStore
from steadyrun.stores.sqlite import SqliteStore


def build_gate_rules(settings: GateSettings) -> GateRules:
    return GateRules(
        timedelta(seconds=settings.initial_seconds),
        timedelta(seconds=settings.max_seconds),
        settings.factor,
        settings.attempts,
    )


def build_budget_rules(settings: BudgetSettings) -> BudgetRules:
    zone = find_zone(settings.timezone)
    assert zone, "the configuration was checked"
    return BudgetRules(zone, settings.unknown, settings.unknown_usd_per_million)


def build_periods(config: Config) -> RetentionPeriods:
    daemon = config.settings.daemon
    return RetentionPeriods(
        timedelta(days=daemon.keep_events_days), timedelta(days=daemon.keep_texts_days)
    )


@asynccontextmanager
async def open_store(
    config: Config, scrubber: Scrubber | None = None
) -> AsyncIterator[MaintainedStore]:
    """Open the store of the configuration. It scrubs the secrets of the configuration; its gates
    are those of the configured accounts."""
    scrubber = scrubber or Scrubber(config.list_secrets())
    rules = build_gate_rules(config.settings.gate)
    accounts = await anyio.to_thread.run_sync(compute_accounts, config)
    store = await SqliteStore.open(
        config.locations.home, scrubber=scrubber, rules=rules, accounts=accounts
    )
    try:
        yield store
    finally:
        await store.close()
