"""What may an agent do, and how far may it go?"""

from typing import Literal

from msgspec import Struct

from steadyrun.model.budget import Budget

Mode = Literal["default", "accept_edits", "plan", "full_auto", "dangerously_skip_permissions"]


class Policy(Struct, frozen=True):
    """The permission mode and the tools a run may use (None: the provider's own default)."""

    mode: Mode = "default"
    allowed_tools: tuple[str, ...] | None = None
    budget: Budget = Budget()
