"""The settings of every write: the secrets to remove, the rules of gates, the accounts."""

from typing import NamedTuple

from steadyrun.model.gate import Accounts, GateRules
from steadyrun.model.secret import Scrubber


class StoreSettings(NamedTuple):
    scrubber: Scrubber
    gate: GateRules
    accounts: Accounts
