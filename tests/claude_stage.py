"""The real Claude Code on a stage of its own: a home, a working directory, a simulated model.

with staged(tmp_path, [answer("42")]) as stage:
    run, events = stage.played("What is six times seven?")
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec

import steadyrun
from steadyrun.config import Config, ProviderSettings, load
from steadyrun.library import RunHandle, Steadyrun
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.simulated.faults import Gate
from steadyrun.testing.simulated.messages import Ask, MessagesServer, Steps
from tests.real_cli import claude_environment, descendants, real_claude

PATIENCE_SECONDS = 60.0
ALL = 1_000_000

Seen = StoredEvent | LiveEvent
Event = TypeVar("Event")


@dataclass(frozen=True)
class Played:
    """How a run went, and everything in the record of its home."""

    run: Run
    stored: list[StoredEvent]
    items: list[Item]

    def of(self, kind: type[Event]) -> list[Event]:
        return [seen.event for seen in self.stored if isinstance(seen.event, kind)]


class Stage:
    """A home with the real CLI as its provider `claude`."""

    def __init__(self, folder: Path, server: MessagesServer, settings: ProviderSettings) -> None:
        self.server = server
        self.home, self.cwd = folder / "steadyrun", folder / "work"
        self.cwd.mkdir(exist_ok=True)
        self.user = folder / "user"
        self.user.mkdir(exist_ok=True)
        self._settings = settings

    @property
    def config(self) -> Config:
        given = claude_environment(self.user, self.server.url)
        environ = {key: given.pop(key) for key in ("PATH", "HOME", "LANG")}
        config = load(home=self.home, cwd=self.cwd, environ=environ)
        settings = msgspec.structs.replace(
            self._settings,
            command=(str(real_claude()),),
            env={**given, **self._settings.env},
        )
        both = msgspec.structs.replace(config.settings, providers={"claude": settings})
        return replace(config, settings=both)

    @asynccontextmanager
    async def library(self) -> AsyncIterator[Steadyrun]:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with steadyrun.open(self.config) as library:
                yield library

    async def start(self, library: Steadyrun, prompt: str, **wishes: Any) -> RunHandle:
        wishes.setdefault("mode", "full_auto")
        return await library.start(prompt, provider="claude", cwd=self.cwd, **wishes)

    def played(self, prompt: str, **wishes: Any) -> Played:
        """Run a prompt to its end."""

        async def main() -> Played:
            async with self.library() as library:
                run = await self.start(library, prompt, **wishes)
                return await self.read(await run.result())

        return anyio.run(main)

    async def read(self, run: Run) -> Played:
        """The record of the run's home, from the store itself."""
        store = await SqliteStore.open(self.home)
        try:
            run = await store.run(run.id)
            items = await store.items(run.agent, include_settled=True)
            stored = await store.last_events(agent=run.agent, limit=ALL)
        finally:
            await store.close()
        return Played(run, stored, sorted(items, key=lambda item: item.seq))


@contextmanager
def staged(folder: Path, script: Steps, **settings: Any) -> Iterator[Stage]:
    """A stage whose model plays `script`; nothing may be left running behind it."""
    real_claude()
    with MessagesServer(script) as server:
        yield Stage(folder, server, ProviderSettings(**settings))
    assert left_behind(folder) == []


def left_behind(folder: Path) -> list[str]:
    """Processes that still have to do with a folder: in their arguments, environment or place."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(process / name).read_bytes() for name in ("cmdline", "environ")]
            texts.append(str((process / "cwd").readlink()).encode())
        except OSError:
            continue
        if any(str(folder).encode() in text for text in texts):
            found.append(f"{process.name} {texts[0][:200]!r}")
    return found


async def until(run: RunHandle, is_it: Callable[[Any], bool]) -> Any:
    """The first event, stored or live, that is the one."""
    async for seen in run.events():
        if is_it(seen.event):
            return seen.event
    raise AssertionError("the run ended without it")


def tree_of(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *descendants(pid)]


async def reached(gate: Gate) -> None:
    """An answer has come to the gate."""
    await anyio.to_thread.run_sync(gate.wait_until_reached)


def times_told(server: MessagesServer, words: str) -> int:
    """How often the model was told these words; what it was told once stays in what it is asked."""
    return max((_written(ask).count(words) for ask in server.main_asks), default=0)


def _written(ask: Ask) -> str:
    return json.dumps(list(ask.messages), ensure_ascii=False)
