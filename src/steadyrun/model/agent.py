"""Who works? An agent is a name, a chain of providers, a home directory and a policy."""

from msgspec import Struct

from steadyrun.model.ids import AgentId
from steadyrun.model.policy import Policy


class Agent(Struct, frozen=True):
    """A lasting teammate. `providers` is the chain: the first is used while its gate is open."""

    id: AgentId
    name: str
    providers: tuple[str, ...]
    home: str
    model: str | None = None
    policy: Policy = Policy()
    # What its provider is told before everything else, and how many rounds a turn may take.
    system: str | None = None
    max_turns: int | None = None

    @property
    def provider(self) -> str:
        return self.providers[0]
