"""What does a runner get? What is asked of it, and what all runners of a process share."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio.to_thread
from msgspec import Struct

from steadyrun.dialect import Image
from steadyrun.driver import Launcher
from steadyrun.lib.clock import Clock
from steadyrun.model.agent import Agent
from steadyrun.model.budget import BudgetRules
from steadyrun.model.event import JsonObject
from steadyrun.model.ids import HolderId, Ids
from steadyrun.model.run import Metadata
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.events.bus import EventBus
from steadyrun.runtime.prompt.system import SystemPrompt, read_system_prompt
from steadyrun.runtime.run.timeouts import Timeouts
from steadyrun.store import Store


class RunRequest(Struct, frozen=True):
    """What is asked of a provider for one run, beyond the text of the item."""

    resume: str | None = None
    # Whether a new conversation will do where the one to resume is not there any more.
    or_fresh: bool = False
    images: tuple[Image, ...] = ()
    schema: JsonObject | None = None
    wall_seconds: float | None = None
    # Kept with the run, for whoever asked.
    metadata: Metadata = {}
    # Given to its process, and kept nowhere.
    env: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Deps:
    """What every runner of this process shares."""

    store: Store
    drivers: Launcher
    clock: Clock
    ids: Ids
    holder: HolderId
    machine: str
    limits: Timeouts
    scrubber: Scrubber
    # STEADYRUN_HOME.
    home: Path
    # The providers that are configured to be told a text of their own in their system prompt.
    appended: Set[str] = frozenset()
    budgets: BudgetRules = field(default_factory=BudgetRules)
    # Where everything that happens here is told.
    hub: EventBus = field(default_factory=EventBus)

    async def standing(self, agent: Agent) -> SystemPrompt:
        """What the agent always knows, from files as they are now."""
        is_appended = agent.provider in self.appended
        read = partial(read_system_prompt, agent, home=self.home, appended=is_appended)
        return await anyio.to_thread.run_sync(read)
