"""The length of the chaos tests: STEADYRUN_CHAOS_KILLS and STEADYRUN_CHAOS_SEED set it."""

import os

# Enough for every named point once, and for as many kills at any moment.
DEFAULT_KILLS = 300
KILLS = int(os.environ.get("STEADYRUN_CHAOS_KILLS", str(DEFAULT_KILLS)))  # noqa: TID251 (tests only)
SEED = int(os.environ.get("STEADYRUN_CHAOS_SEED", "6"))  # noqa: TID251 (tests only)
