"""Defines what all workers of a process share."""

from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio.to_thread

from steadyrun.driver import Launcher
from steadyrun.lib.clock import Clock
from steadyrun.model.agent import Agent
from steadyrun.model.budget import BudgetRules
from steadyrun.model.ids import HolderId, Ids
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.events.bus import EventBus
from steadyrun.runtime.prompt.system import SystemPrompt, read_system_prompt
from steadyrun.runtime.run.timeouts import Timeouts
from steadyrun.store import MaintainedStore


@dataclass(frozen=True, slots=True)
class Deps:
    """The dependencies of every worker in this process."""

    store: MaintainedStore
    launcher: Launcher
    clock: Clock
    ids: Ids
    holder: HolderId
    machine: str
    timeouts: Timeouts
    scrubber: Scrubber
    # STEADYRUN_HOME.
    home: Path
    # The providers whose configuration adds a text to the system prompt.
    appended: Set[str] = frozenset()
    budgets: BudgetRules = field(default_factory=BudgetRules)
    # Publishes the events of all agents that run here.
    bus: EventBus = field(default_factory=EventBus)

    async def load_system_prompt(self, agent: Agent) -> SystemPrompt:
        """The system prompt of the agent, from its files as they are now."""
        is_appended = agent.provider in self.appended
        read = partial(read_system_prompt, agent, home=self.home, appended=is_appended)
        return await anyio.to_thread.run_sync(read)
