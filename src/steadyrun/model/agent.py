"""Defines agents: a name, a chain of providers, a home directory and a policy."""

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.model.ids import AgentId
from steadyrun.model.item import Followup, OnLost
from steadyrun.model.policy import Policy

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
NAME_RULE = "An agent's name is up to 64 of a-z, 0-9, - and _, the first a letter or a digit."
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
ROLE_RULE = "A role's name is a letter or a digit, then up to 62 of those, _ and -."

OnLimited = Literal["wait", "pause"]

# The key in the store, with the id, of an agent that was removed from the configuration.
RETIRED = "config/paused/"


def is_agent_name(name: str) -> bool:
    """Whether a text is a valid name of an agent."""
    return _NAME.fullmatch(name) is not None


def is_role_name(name: str) -> bool:
    """Whether a text is a valid name of a role. It is the name of a file in one directory."""
    return _ROLE.fullmatch(name) is not None


class Agent(Struct, frozen=True):
    """An agent; it is permanent unless `is_direct`. `providers` is the chain: the first one is used
    while its gate is open."""

    id: AgentId
    name: str
    providers: tuple[str, ...]
    home: str
    model: str | None = None
    policy: Policy = Policy()
    # The system prompt, and how many rounds a turn may take.
    system: str | None = None
    max_turns: int | None = None
    # The file in `roles/` that describes its work.
    role: str | None = None
    # The defaults for its messages.
    followup: Followup = "steer"
    on_lost: OnLost = "resume"
    wall_seconds: float | None = None
    # Whether it continues by itself after a rate limit.
    on_limited: OnLimited = "wait"
    # The users who may answer its approvals; empty: every user.
    approvers: tuple[str, ...] = ()
    # An agent of the configuration can only be changed there.
    origin: Literal["store", "config"] = "store"
    # Created for one run without an agent, and not listed.
    is_direct: bool = False
    removed_at: datetime | None = None

    @property
    def provider(self) -> str:
        return self.providers[0]

    def with_provider(self, provider: str) -> "Agent":
        """The agent with another provider of its chain. The model belongs to the first provider and
        is dropped."""
        if provider == self.provider:
            return self
        others = tuple(each for each in self.providers if each != provider)
        return replace(self, providers=(provider, *others), model=None)


def choose_provider(chain: Sequence[str], closed: Collection[str]) -> str | None:
    """The first provider of a chain that is not closed."""
    return next((provider for provider in chain if provider not in closed), None)
