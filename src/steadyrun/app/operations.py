"""What does an operation get in a process that is no daemon? The store, and what is configured."""

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


def build_context(around: Deps) -> OperationContext:
    """In a program that drives runs itself."""

    def abilities(name: str) -> frozenset[Ability] | None:
        try:
            return around.drivers.find_abilities(name)
        except NotFound:
            return None

    return OperationContext(
        around.store,
        around.clock,
        around.ids,
        around.home,
        abilities,
        around.drivers.enforce,
        budgets=around.budgets,
    )


def make_abilities_lookup(config: Config) -> Callable[[str], frozenset[Ability] | None]:
    """What each provider can do as it is configured; None where there is no such provider."""

    def abilities(name: str) -> frozenset[Ability] | None:
        # Few commands ask, and all of the providers take longer to import than most commands run.
        from steadyrun.app.providers import has_provider, make_dialect  # noqa: PLC0415

        return make_dialect(config, name).abilities if has_provider(config, name) else None

    return abilities


def make_enforcer(config: Config) -> Callable[[str, Rights], EnforcedRights | Refused]:
    """How each provider keeps to rights as it is configured."""

    def enforce(name: str, rights: Rights) -> EnforcedRights | Refused:
        from steadyrun.app.providers import make_dialect  # noqa: PLC0415

        return make_dialect(config, name).enforce(rights)

    return enforce


def load_price_source() -> PriceSource:
    """The list of prices that estimates are made with."""
    # Only who asks for costs wants to know.
    from steadyrun.providers.shared.prices import load_prices  # noqa: PLC0415

    prices = load_prices()
    return PriceSource(prices.source, prices.published)
