"""Who works? An agent is a name, a chain of providers, a home directory and a policy."""

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

# Under this and its id the store remembers an agent whose name is gone from the configuration.
RETIRED = "config/paused/"


def is_agent_name(name: str) -> bool:
    """Whether somebody may give an agent that name."""
    return _NAME.fullmatch(name) is not None


def is_role_name(name: str) -> bool:
    """Whether it can be one: it is the name of a file, and leads to no other directory."""
    return _ROLE.fullmatch(name) is not None


class Agent(Struct, frozen=True):
    """A teammate, lasting unless `is_direct`. `providers` is the chain: the first is used while
    its gate is open."""

    id: AgentId
    name: str
    providers: tuple[str, ...]
    home: str
    model: str | None = None
    policy: Policy = Policy()
    # What its provider is told before everything else, and how many rounds a turn may take.
    system: str | None = None
    max_turns: int | None = None
    # The file in `roles/` that says what its work is.
    role: str | None = None
    # What holds for a message that does not say it itself.
    followup: Followup = "steer"
    on_lost: OnLost = "resume"
    wall_seconds: float | None = None
    # Whether it goes on by itself when its provider takes more again.
    on_limited: OnLimited = "wait"
    # Who may answer what it asks; nobody is named: whoever can.
    approvers: tuple[str, ...] = ()
    # Those of the configuration are changed there only.
    origin: Literal["store", "config"] = "store"
    # Made for one run that no agent was asked for, and listed nowhere.
    is_direct: bool = False
    removed_at: datetime | None = None

    @property
    def provider(self) -> str:
        return self.providers[0]

    def with_provider(self, provider: str) -> "Agent":
        """The agent as it works with one of its providers. Its model is a word of the first one,
        which no other knows."""
        if provider == self.provider:
            return self
        others = tuple(each for each in self.providers if each != provider)
        return replace(self, providers=(provider, *others), model=None)


def choose_provider(chain: Sequence[str], closed: Collection[str]) -> str | None:
    """The first provider of a chain that is not closed: it does the work."""
    return next((provider for provider in chain if provider not in closed), None)
