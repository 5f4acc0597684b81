"""How long is it tried, and what? STEADYRUN_CHAOS_KILLS and STEADYRUN_CHAOS_SEED say so."""

import os

USUAL_KILLS = 210
KILLS = int(os.environ.get("STEADYRUN_CHAOS_KILLS", str(USUAL_KILLS)))  # noqa: TID251 (tests only)
SEED = int(os.environ.get("STEADYRUN_CHAOS_SEED", "6"))  # noqa: TID251 (tests only)
