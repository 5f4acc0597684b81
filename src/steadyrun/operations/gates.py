"""Lists, opens and closes the gates of providers.

The runtime closes a gate at a rate limit and opens it later; a user can do both by command.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

from msgspec import Struct

from steadyrun.dialect import Ability
from steadyrun.errors import InvalidUsage
from steadyrun.model.agent import Agent
from steadyrun.model.gate import LONGEST, Closed, Gate, Opened, find_account, is_present_account
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import GateDocument, GatesDocument
from steadyrun.operations.fields import arg
from steadyrun.operations.views import build_gate_document

_BY_HAND = "closed by hand"

ProviderArg = Annotated[str, arg("the provider: see `steadyrun providers`", metavar="P")]


class ListGatesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The request has no fields."""


class OpenGateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    provider: ProviderArg


class CloseGateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    provider: ProviderArg
    duration: Annotated[
        float | None, arg("how long (until it is opened)", metavar="DURATION", flag="--for")
    ] = None
    reason: Annotated[str | None, arg("the reason, shown by `steadyrun gate`", metavar="TEXT")] = (
        None
    )


async def list_gates(context: OperationContext, _: ListGatesRequest) -> GatesDocument:
    return GatesDocument(await build_gate_documents(context, await context.store.agents()))


async def open_gate(context: OperationContext, request: OpenGateRequest) -> GatesDocument:
    require_provider(context, request.provider)
    gate = await context.store.update_gate(request.provider, Opened())
    return GatesDocument((_build_document(context, gate),))


async def close_gate(context: OperationContext, request: CloseGateRequest) -> GatesDocument:
    require_provider(context, request.provider)
    until = None
    if request.duration is not None:
        most = LONGEST.total_seconds()
        if not 0 < request.duration <= most:
            found = f"expected a time up to {LONGEST.days} days, found {request.duration:g} seconds"
            raise InvalidUsage(
                found, hint="Without --for the gate stays closed until it is opened."
            )
        until = context.clock.now() + timedelta(seconds=request.duration)
    report = Closed(until, request.reason or _BY_HAND)
    gate = await context.store.update_gate(request.provider, report)
    return GatesDocument((_build_document(context, gate),))


async def build_gate_documents(
    context: OperationContext, agents: Iterable[Agent]
) -> tuple[GateDocument, ...]:
    """Build the documents of all gates that were ever closed, and of those that agents use now."""
    stored = await context.store.gates(include_others=True)
    used = {provider for agent in agents for provider in agent.providers}
    in_use = {(provider, find_account(provider, context.store.accounts)) for provider in used}
    missing = in_use - {(gate.provider, gate.account) for gate in stored}
    gates = [*stored, *(Gate(*each) for each in missing)]
    gates.sort(key=lambda gate: (gate.provider, gate.account))
    return tuple(_build_document(context, gate) for gate in gates)


def require_provider(context: OperationContext, provider: str) -> frozenset[Ability]:
    """Return the abilities of a provider; `InvalidUsage` if there is no such provider."""
    found = context.abilities(provider)
    if found is None:
        raise InvalidUsage(f"no provider {provider!r}", hint="`steadyrun providers` lists them.")
    return found


def _build_document(context: OperationContext, gate: Gate) -> GateDocument:
    used = is_present_account(gate.provider, gate.account, context.store.accounts)
    return build_gate_document(gate, context.clock.now(), is_present=used)
