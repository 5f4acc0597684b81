"""May a provider be used, and who decides that? Gates close and open by themselves, or by hand."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

from msgspec import Struct

from steadyrun.errors import InvalidUsage
from steadyrun.model.agent import Agent
from steadyrun.model.gate import LONGEST, Closed, Gate, Opened, account_of, is_present
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import GateDocument, GatesDocument, build_gate_document
from steadyrun.operations.fields import arg

_BY_HAND = "closed by hand"

ProviderArg = Annotated[str, arg("the provider's name: `steadyrun providers`", metavar="P")]


class ListGatesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to say."""


class OpenGateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    provider: ProviderArg


class CloseGateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    provider: ProviderArg
    duration: Annotated[
        float | None, arg("for how long (until it is opened)", metavar="DURATION", flag="--for")
    ] = None
    reason: Annotated[str | None, arg("why, for whoever looks", metavar="TEXT")] = None


async def list_gates(desk: OperationContext, _: ListGatesRequest) -> GatesDocument:
    return GatesDocument(await build_gate_documents(desk, await desk.store.agents()))


async def open_gate(desk: OperationContext, given: OpenGateRequest) -> GatesDocument:
    require_provider(desk, given.provider)
    gate = await desk.store.update_gate(given.provider, Opened())
    return GatesDocument((_build_document(desk, gate),))


async def close_gate(desk: OperationContext, given: CloseGateRequest) -> GatesDocument:
    require_provider(desk, given.provider)
    until = None
    if given.duration is not None:
        most = LONGEST.total_seconds()
        if not 0 < given.duration <= most:
            found = f"expected a time up to {LONGEST.days} days, found {given.duration:g} seconds"
            raise InvalidUsage(found, hint="Without --for it stays closed until it is opened.")
        until = desk.clock.now() + timedelta(seconds=given.duration)
    news = Closed(until, given.reason or _BY_HAND)
    gate = await desk.store.update_gate(given.provider, news)
    return GatesDocument((_build_document(desk, gate),))


async def build_gate_documents(
    desk: OperationContext, agents: Iterable[Agent]
) -> tuple[GateDocument, ...]:
    """Of every account that was ever closed, and of those that agents use now."""
    known = await desk.store.gates(include_others=True)
    used = {provider for agent in agents for provider in agent.providers}
    present = {(provider, account_of(provider, desk.store.accounts)) for provider in used}
    unknown = present - {(gate.provider, gate.account) for gate in known}
    gates = [*known, *(Gate(*each) for each in unknown)]
    gates.sort(key=lambda gate: (gate.provider, gate.account))
    return tuple(_build_document(desk, gate) for gate in gates)


def require_provider(desk: OperationContext, provider: str) -> None:
    if desk.abilities(provider) is None:
        raise InvalidUsage(f"no provider {provider!r}", hint="`steadyrun providers` lists them.")


def _build_document(desk: OperationContext, gate: Gate) -> GateDocument:
    used = is_present(gate.provider, gate.account, desk.store.accounts)
    return build_gate_document(gate, desk.clock.now(), is_present=used)
