"""The points at which a daemon is killed: every verb that writes, every message to a keeper.

A point is the moment right before or right after one of these. The names are made from the verbs of
the store and of the link, so that a new verb is a new point, and a test that wants all of them hit
fails until there is a way to it.
"""

import fcntl
import inspect
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path, PosixPath
from typing import Any, Literal, get_args

from steadyrun.app import runtime
from steadyrun.app.store import open_store
from steadyrun.config import Config
from steadyrun.model.secret import Scrubber
from steadyrun.operations import spool
from steadyrun.store import OfferOutcome, Store
from tests.children.adoption_steps import WORDS, Steps, WatchedStore, watch_processes

# The verbs of the store that change nothing.
_READS = frozenset(
    {
        "agent", "agents", "agent_overviews", "sessions", "item", "items", "lane", "holders",
        "pending_requests", "run", "runs", "processes", "events", "usage", "gates",
        "lane_snapshots", "approval", "approvals", "get", "close",
    }
)  # fmt: skip
WRITES = frozenset(
    name
    for name, verb in inspect.getmembers(Store, inspect.iscoroutinefunction)
    if not name.startswith("_") and name not in _READS
)
# What is written by a verb that has several uses.
_APPENDS = ("started", "events", "offset", "absorbed", "returned", "approval", "ended")
_CHANGES = ("created", "finished")
_FRAMES = ("open", "begin", "offer", "recall", "interrupt", "decide")
# No provider of ours is interrupted by a signal.
_UNSAID = frozenset({"signal"})

NAMES = frozenset(
    {
        *(WRITES - {"append", "change", "close_offer"}),
        "settle warm",
        "continue_with warm",
        *(f"close_offer {outcome}" for outcome in get_args(OfferOutcome)),
        *(f"append {what}" for what in _APPENDS),
        *(f"change {what}" for what in _CHANGES),
        *(f"send {what}" for what in _FRAMES),
        *(f"link {word}" for word in set(WORDS) - {"frame"} - _UNSAID),
        "launch",
        "start keeper",
        "letter",
    }
)
POINTS = frozenset(f"{when} {name}" for when in ("before", "after") for name in NAMES)


class ChaosSteps(Steps):
    """Prints the point, then kills or stops this process there; counts the passed points."""

    def __init__(
        self,
        tell: Callable[[str], None],
        point: str | None = None,
        number: int | None = None,
        *,
        then: Literal["kill", "stop"] = "kill",
        home: Path,
    ) -> None:
        super().__init__(point, number)
        self._tell, self._then, self._home = tell, then, home
        self.seen: Counter[str] = self._seen

    def pass_by(self, when: str, name: str) -> None:
        """For what is no coroutine."""
        self._pass(when, [name])

    def kill_here(self, point: str) -> None:
        self._tell(point)
        if self._then == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            let_go_of_locks(self._home)
            with closing(
                sqlite3.connect(self._home / "steadyrun.db", isolation_level=None)
            ) as file:
                # A process stopped in the middle of a write would block all other writers.
                file.execute("BEGIN IMMEDIATE")
                file.execute("ROLLBACK")
                os.kill(os.getpid(), signal.SIGSTOP)


def let_go_of_locks(home: Path) -> None:
    """Release all locks: other processes treat this one as ended, although it continues."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = link.readlink()
        except OSError:
            continue
        if target.suffix == ".lock" or target == home / "daemon" / "lock":
            fcntl.flock(int(link.name), fcntl.LOCK_UN)


def watch(steps: ChaosSteps) -> None:
    """Make points of all that this process does to the world."""
    watch_processes(steps)
    _watch_spool(steps)
    setattr(runtime, "open_store", _watched(steps, open_store))  # noqa: B010 (not ours to set)


def _watched(
    steps: Steps, opens: Callable[..., AbstractAsyncContextManager[Store]]
) -> Callable[..., AbstractAsyncContextManager[Store]]:
    @asynccontextmanager
    async def open_watched(config: Config, scrubber: Scrubber | None = None) -> AsyncIterator[Any]:
        async with opens(config, scrubber) as store:
            yield WatchedStore(store, steps, WRITES)

    return open_watched


def _watch_spool(steps: ChaosSteps) -> None:
    """A spooled call is done when its file is deleted."""

    class Watched(PosixPath):
        def unlink(self, missing_ok: bool = False) -> None:
            steps.pass_by("before", "letter")
            super().unlink(missing_ok)
            steps.pass_by("after", "letter")

    find = spool._list_files
    spool._list_files = lambda folder: [Watched(file) for file in find(folder)]
