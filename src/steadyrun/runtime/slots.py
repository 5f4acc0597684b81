"""May one more run begin? Pure counting: so many at once, and so many of one provider."""

from collections import Counter
from collections.abc import Mapping

from steadyrun.model.ids import AgentId


class Slots:
    """Who has a slot, and who has stepped aside while a person is asked.

    The numbers only say whether a run may begin: one that goes on anyway (adopted, begun by its
    provider, answered by a person) is counted over them. Saying anything twice is saying it once.
    """

    def __init__(self, most: int, per_provider: Mapping[str, int]) -> None:
        self._most = most
        self._per_provider = dict(per_provider)
        self._provider_of: dict[AgentId, str] = {}
        self._aside: set[AgentId] = set()

    @property
    def free(self) -> int:
        return max(0, self._most - (len(self._provider_of) - len(self._aside)))

    @property
    def full_providers(self) -> frozenset[str]:
        taken = Counter(
            provider for agent, provider in self._provider_of.items() if agent not in self._aside
        )
        return frozenset(
            provider for provider, most in self._per_provider.items() if taken[provider] >= most
        )

    def take(self, agent: AgentId, provider: str) -> None:
        """A run of this agent begins, or is found to be running: it has one at a time."""
        self._provider_of.setdefault(agent, provider)

    def step_aside(self, agent: AgentId) -> None:
        """It waits for a person: another may run meanwhile."""
        if agent in self._provider_of:
            self._aside.add(agent)

    def step_back(self, agent: AgentId) -> None:
        """It goes on, whether there is room or not: its provider does not ask us."""
        self._aside.discard(agent)

    def leave(self, agent: AgentId) -> None:
        """It is over."""
        self._provider_of.pop(agent, None)
        self._aside.discard(agent)
