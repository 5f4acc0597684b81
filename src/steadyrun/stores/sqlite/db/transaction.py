"""Defines a transaction: what the steps of one write share."""

import sqlite3
from datetime import datetime
from typing import NamedTuple

from steadyrun.lib.notifier import Hint
from steadyrun.model.gate import Accounts, GateRules
from steadyrun.model.ids import AgentId
from steadyrun.model.secret import Scrubber


class StoreSettings(NamedTuple):
    """The settings of every write: the secrets to remove, the rules of gates, the accounts."""

    scrubber: Scrubber
    gate: GateRules
    accounts: Accounts


class Transaction:
    """One write, which began at `now`. It can be used like the connection that it is made on."""

    __slots__ = ("execute", "hints", "now", "settings")

    def __init__(
        self, connection: sqlite3.Connection, now: datetime, settings: StoreSettings
    ) -> None:
        self.execute = connection.execute
        self.now = now
        self.settings = settings
        # The agents whose waiters are notified after the commit; None stands for all.
        self.hints: list[tuple[AgentId | None, Hint]] = []

    def notify(self, agent: AgentId | None, hint: Hint = Hint.WORK) -> None:
        self.hints.append((agent, hint))
