"""What may an agent do, and how far may it go?"""

from typing import Literal

from msgspec import Struct

Mode = Literal["default", "accept_edits", "plan", "full_auto", "dangerously_skip_permissions"]


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits in US dollars; None is no limit."""

    run: float | None = None
    day: float | None = None
    month: float | None = None


class Policy(Struct, frozen=True):
    """The permission mode and the tools a run may use (None: the provider's own default)."""

    mode: Mode = "default"
    allowed_tools: tuple[str, ...] | None = None
    budget: Budget = Budget()
