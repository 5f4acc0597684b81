"""Makes ids: a prefix for the type and 26 characters that sort by time."""

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import NewType

AgentId = NewType("AgentId", str)
ItemId = NewType("ItemId", str)
RunId = NewType("RunId", str)
ProcessId = NewType("ProcessId", str)
HolderId = NewType("HolderId", str)
ApprovalId = NewType("ApprovalId", str)

# Crockford's alphabet in lower case: no i, l, o, u, and its order is the order of its values.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80


class Ids:
    """Makes ids. They sort by their creation; ids of one instance are unique and ordered."""

    def __init__(
        self, now: Callable[[], datetime], randbits: Callable[[int], int] = secrets.randbits
    ) -> None:
        self._now = now
        self._randbits = randbits
        self._last = 0

    def make_agent(self) -> AgentId:
        return AgentId(self._make("agt"))

    def make_item(self) -> ItemId:
        return ItemId(self._make("itm"))

    def make_run(self) -> RunId:
        return RunId(self._make("run"))

    def make_process(self) -> ProcessId:
        return ProcessId(self._make("prc"))

    def make_holder(self) -> HolderId:
        return HolderId(self._make("hld"))

    def _make(self, prefix: str) -> str:
        milliseconds = int(self._now().timestamp() * 1000)
        fresh = milliseconds << _RANDOM_BITS | self._randbits(_RANDOM_BITS)
        # Within one millisecond, and when the clock steps back, the order is kept by counting.
        self._last = max(fresh, self._last + 1)
        return f"{prefix}_{_encode(self._last)}"


def _encode(number: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -5, -5))
