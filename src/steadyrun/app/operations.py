"""Builds the context of operations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from steadyrun.app.store import build_budget_rules, open_store
from steadyrun.config import Config
from steadyrun.dialect import Ability, EnforcedRights, Refused
from steadyrun.errors import NotFound
from steadyrun.lib.clock import SystemClock
from steadyrun.model.ids import Ids
from steadyrun.model.policy import Rights
from steadyrun.model.secret import Scrubber
from steadyrun.operations.context import DaemonView, OperationContext
from steadyrun.operations.documents import PriceSource
from steadyrun.runtime.deps import Deps


@asynccontextmanager
async def open_operations(config: Config) -> AsyncIterator[OperationContext]:
    """Open the store for operations. Providers are imported only if an operation needs them: to
    import all of them takes longer than most commands run."""

    def abilities(name: str) -> frozenset[Ability] | None:
        from steadyrun.app.providers import has_provider, make_dialect  # noqa: PLC0415

        return make_dialect(config, name).abilities if has_provider(config, name) else None

    def enforce(name: str, rights: Rights) -> EnforcedRights | Refused:
        from steadyrun.app.providers import make_dialect  # noqa: PLC0415

        return make_dialect(config, name).enforce(rights)

    clock, rules = SystemClock(), build_budget_rules(config.settings.budgets)
    scrubber = Scrubber(config.list_secrets())
    async with open_store(config, scrubber) as store:
        yield OperationContext(
            store,
            clock,
            Ids(clock.now),
            config.locations.home,
            abilities,
            enforce,
            budgets=rules,
            prices=load_price_source,
            scrubber=scrubber,
        )


def build_context(deps: Deps, daemon: DaemonView | None = None) -> OperationContext:
    """Build the context of operations in a process that drives runs itself."""

    def abilities(name: str) -> frozenset[Ability] | None:
        try:
            return deps.launcher.find_abilities(name)
        except NotFound:
            return None

    return OperationContext(
        deps.store,
        deps.clock,
        deps.ids,
        deps.home,
        abilities,
        deps.launcher.enforce,
        daemon,
        deps.budgets,
        load_price_source,
        scrubber=deps.scrubber,
    )


def load_price_source() -> PriceSource:
    """Load the source of the price list that is used for estimates."""
    # Only costs need it.
    from steadyrun.providers.shared.prices import load_prices  # noqa: PLC0415

    prices = load_prices()
    return PriceSource(prices.source, prices.published)
