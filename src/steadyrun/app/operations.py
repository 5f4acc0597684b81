"""Builds the context of operations in a process that is not the daemon."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from steadyrun.app.store import build_budget_rules, open_store
from steadyrun.config import Config
from steadyrun.dialect import Ability, EnforcedRights, Refused
from steadyrun.errors import NotFound
from steadyrun.lib.clock import SystemClock
from steadyrun.model.ids import Ids
from steadyrun.model.policy import Rights
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import PriceSource
from steadyrun.runtime.deps import Deps


@asynccontextmanager
async def open_operations(config: Config) -> AsyncIterator[OperationContext]:
    clock, rules = SystemClock(), build_budget_rules(config.settings.budgets)
    async with open_store(config) as store:
        yield OperationContext(
            store,
            clock,
            Ids(clock.now),
            config.locations.home,
            make_abilities_lookup(config),
            make_enforcer(config),
            budgets=rules,
            prices=load_price_source,
        )


def build_context(deps: Deps) -> OperationContext:
    """Build the context of operations in a program that drives runs itself."""

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
        budgets=deps.budgets,
    )


def make_abilities_lookup(config: Config) -> Callable[[str], frozenset[Ability] | None]:
    """Make a lookup of the abilities of a configured provider; None if there is none."""

    def abilities(name: str) -> frozenset[Ability] | None:
        # Few commands need it, and to import all providers takes longer than most commands run.
        from steadyrun.app.providers import has_provider, make_dialect  # noqa: PLC0415

        return make_dialect(config, name).abilities if has_provider(config, name) else None

    return abilities


def make_enforcer(config: Config) -> Callable[[str, Rights], EnforcedRights | Refused]:
    """Make a lookup of how a configured provider enforces rights."""

    def enforce(name: str, rights: Rights) -> EnforcedRights | Refused:
        from steadyrun.app.providers import make_dialect  # noqa: PLC0415

        return make_dialect(config, name).enforce(rights)

    return enforce


def load_price_source() -> PriceSource:
    """Load the source of the price list that is used for estimates."""
    # Only costs need it.
    from steadyrun.providers.shared.prices import load_prices  # noqa: PLC0415

    prices = load_prices()
    return PriceSource(prices.source, prices.published)
