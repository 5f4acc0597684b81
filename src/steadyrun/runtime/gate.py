"""What does an operator hear of a provider that takes no more?"""

from steadyrun.model.gate import opens_at, shut_gate
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import fact


async def tell_closed(around: Deps, provider: str) -> None:
    """A run was refused: until when the provider is left alone."""
    now = around.clock.now()
    gate = shut_gate(await around.store.gates(), provider, now)
    if gate:
        until = opens_at(gate, now)
        fact("gate.closed", provider=provider, until=until.isoformat() if until else None)
