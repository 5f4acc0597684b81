"""What does every write go by? What must not be written, how gates are closed, and for whom."""

from typing import NamedTuple

from steadyrun.model.gate import Accounts, GateRules
from steadyrun.model.secret import Scrubber


class StoreSettings(NamedTuple):
    scrubber: Scrubber
    gate: GateRules
    accounts: Accounts
