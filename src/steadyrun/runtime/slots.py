"""Counts the runs in progress and compares them with the limits. Pure."""

from collections import Counter
from collections.abc import Mapping

from steadyrun.model.ids import AgentId


class Slots:
    """Which agents have a slot, and which of them wait for a person.

    The limits only decide whether a run may start. A run that continues anyway (adopted, begun by
    its provider, or answered by a user) may exceed them. Each method may be called twice.
    """

    def __init__(self, most: int, per_provider: Mapping[str, int]) -> None:
        self._most = most
        self._per_provider = dict(per_provider)
        self._provider_of: dict[AgentId, str] = {}
        self._suspended: set[AgentId] = set()

    @property
    def free(self) -> int:
        return max(0, self._most - (len(self._provider_of) - len(self._suspended)))

    @property
    def full_providers(self) -> frozenset[str]:
        taken = Counter(
            provider
            for agent, provider in self._provider_of.items()
            if agent not in self._suspended
        )
        return frozenset(
            provider for provider, most in self._per_provider.items() if taken[provider] >= most
        )

    def take(self, agent: AgentId, provider: str) -> None:
        """A run of this agent starts, or is found running: an agent has one at a time."""
        self._provider_of.setdefault(agent, provider)

    def set_waiting(self, agent: AgentId, for_person: bool) -> None:
        """A run that waits for a person does not count: another one may run in its slot. It
        continues also without a free slot, as its provider needs none."""
        if not for_person:
            self._suspended.discard(agent)
        elif agent in self._provider_of:
            self._suspended.add(agent)

    def leave(self, agent: AgentId) -> None:
        """The run is over."""
        self._provider_of.pop(agent, None)
        self._suspended.discard(agent)
