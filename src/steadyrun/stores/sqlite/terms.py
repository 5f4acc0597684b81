"""What does every write go by? What must not be written, and how gates are closed."""

from typing import NamedTuple

from steadyrun.model.gate import GateRules
from steadyrun.model.secret import Scrubber


class Terms(NamedTuple):
    scrubber: Scrubber
    gate: GateRules
