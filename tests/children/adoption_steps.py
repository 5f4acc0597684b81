"""Kills a driver at a named step: a verb of the real store, a message to the real keeper.

A step is an action of a driver on the outside: a write to the store, a message to the keeper, a
launch. `Steps` counts them by name and kills this process right before or right after the given
one.
"""

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

from steadyrun.drivers import keeper_client
from steadyrun.drivers.launcher import KeeperLauncher
from steadyrun.model.batch import Batch
from steadyrun.model.event import ApprovalRequested, FollowupAbsorbed, FollowupReturned
from steadyrun.model.item import Claim
from steadyrun.model.run import Finished, Launched
from steadyrun.store import Store

Answer = TypeVar("Answer")

# The verbs of the store that write for a holder.
WRITES = (
    "start_direct", "start", "reap", "change", "open_process", "close_process", "append",
    "offer_followups", "close_offer", "continue_with", "settle", "release_lane",
    "retry", "retire_token", "cancel", "update_gate", "put",
)  # fmt: skip
# The messages to a keeper and the methods that send them; a frame is named by the kind of its key.
METHODS = {
    "claim": "claim",
    "frame": "send_frame",
    "will": "deposit_will",
    "signal": "send_signal",
    "eof": "close_input",
    "stop": "stop",
}
WORDS = tuple(METHODS)


class Steps:
    """Kills this process at one of its steps, named or counted."""

    def __init__(self, name: str | None = None, number: int | None = None) -> None:
        """`name` is like "before settle" or "after append ended 2": the second of that name."""
        self.passed = 0
        self._name = name
        self._number = number
        self._seen: Counter[str] = Counter()

    async def take(self, names: Sequence[str], doing: Awaitable[Answer]) -> Answer:
        """Do what has these names."""
        self._pass("before", names)
        answer = await doing
        self._pass("after", names)
        return answer

    def _pass(self, when: str, names: Sequence[str]) -> None:
        self.passed += 1
        for name in names:
            self._seen[f"{when} {name}"] += 1
            nth = self._seen[f"{when} {name}"]
            if self._name == (f"{when} {name}" if nth == 1 else f"{when} {name} {nth}"):
                self.kill_here(f"{when} {name}")
        if self._number == self.passed:
            self.kill_here(f"{when} {names[0]}")

    def kill_here(self, point: str) -> None:
        """Kill this process: the step is reached."""
        os.kill(os.getpid(), signal.SIGKILL)


class WatchedStore:
    """The store that it is given, and a step for each verb that writes."""

    def __init__(self, store: Store, steps: Steps, writes: Collection[str] = WRITES) -> None:
        self._store, self._steps, self._writes = store, steps, writes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in self._writes:
            return found
        return lambda *args, **more: self._steps.take(
            _named(name, args, more), found(*args, **more)
        )


def watch_processes(steps: Steps) -> None:
    """Make steps of launching and of every word to a keeper, in this whole process."""
    _watch(steps, KeeperLauncher, "launch", "launch")
    _watch(steps, keeper_client, "start", "start keeper")
    for word, method in METHODS.items():
        _watch(steps, keeper_client.KeeperConnection, method, f"link {word}")


def _watch(steps: Steps, owner: Any, verb: str, name: str) -> None:
    do: Callable[..., Awaitable[object]] = getattr(owner, verb)

    def stepped(*args: Any, **more: Any) -> Awaitable[object]:
        named = f"send {args[1].partition(':')[0]}" if name == "link frame" else name
        return steps.take([named], do(*args, **more))

    setattr(owner, verb, stepped)


def _named(verb: str, args: tuple[Any, ...], more: dict[str, Any]) -> list[str]:
    """The verb, with what it writes as far as that matters."""
    if verb == "settle" and more.get("keep_warm"):
        return ["settle warm"]
    if verb == "continue_with" and not isinstance(args[0], Claim):
        return ["continue_with warm"]
    if verb == "close_offer":
        return [f"close_offer {args[2]}"]
    if verb == "change":
        return [f"change {args[2].__struct_config__.tag}"]
    return [f"append {each}" for each in _content(args[1])] if verb == "append" else [verb]


def _content(batch: Batch) -> list[str]:
    kinds = {type(batch.change), *(type(emitted.event) for emitted in batch.events)}
    notable = [name for kind, name in _NOTABLE.items() if kind in kinds]
    return notable or ["events" if batch.events else "offset"]


_NOTABLE: dict[type, str] = {
    Launched: "started",
    Finished: "ended",
    FollowupAbsorbed: "absorbed",
    FollowupReturned: "returned",
    ApprovalRequested: "approval",
}
