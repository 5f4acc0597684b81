"""Keeps the lease of one lane, in one place for everything that writes for it."""

from steadyrun.model.item import Claim, Lease


class LaneLease:
    """The lease of a lane, as it is now: each write names it, and the store checks it.

    The store gives a new claim with each item. This is the only place where it is kept.
    """

    __slots__ = ("_current", "is_held")

    def __init__(self) -> None:
        self._current: Lease | None = None
        # An item runs. Otherwise the lane is only kept for its process, if there is one.
        self.is_held = False

    @property
    def current(self) -> Lease:
        assert self._current
        return self._current

    @property
    def claim(self) -> Claim:
        """The claim of the last item that was run."""
        assert isinstance(self._current, Claim)
        return self._current

    @property
    def has_claim(self) -> bool:
        return isinstance(self._current, Claim)

    def set(self, lease: Lease) -> None:
        self._current = lease
