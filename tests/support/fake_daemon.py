"""A minimal daemon: it answers on the socket and plays the run of each item itself.

What an item says is what is played: `fail` fails, `wait` runs until it is cancelled, all else is
answered with a delta, a text and a completed run.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import anyio

from steadyrun.api.server import serve
from steadyrun.dialect import Ability, EnforcedRights, Refused
from steadyrun.lib.clock import Clock, SystemClock
from steadyrun.model import event as ev
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import (
    Emitted,
    ErrorFact,
    Event,
    LiveEvent,
    StoredEvent,
    make_event_id,
)
from steadyrun.model.ids import AgentId, Ids, RunId
from steadyrun.model.item import Item, Message
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished, Launched
from steadyrun.operations.context import OperationContext, ProcessState
from steadyrun.operations.documents import DaemonDocument, LiveCount, StoppedDocument
from steadyrun.providers.registry import make_dialect
from steadyrun.runtime.events.bus import EventBus
from steadyrun.runtime.events.stream import stream_events
from steadyrun.store import Accepted, MaintainedStore, Started, Store
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.version import __version__

ABILITIES: dict[str, frozenset[Ability]] = {
    "scripted": frozenset({"model", "modes", "resume"}),
    "shell": frozenset(),
}


class FakeDaemon:
    """A `DaemonView`."""

    def __init__(self, store: Store, home: Path, clock: Clock, ids: Ids) -> None:
        self.store, self.home, self.clock, self.ids = store, home, clock, ids
        self.processes: dict[AgentId, ProcessState] = {}
        self.waiting: set[AgentId] = set()
        self.stopped: list[tuple[float | None, bool]] = []
        self.is_stopped = anyio.Event()
        self.started_at: datetime = clock.now()
        self.live = 0
        self.bus = EventBus()
        self._published = 0
        self._quiet = anyio.Event()

    def describe(self) -> DaemonDocument:
        return DaemonDocument(
            os.getpid(),
            __version__,
            str(self.home),
            self.started_at,
            LiveCount(self.live, 5),
            LiveCount(len(self.processes), 5),
            is_draining=bool(self.stopped),
        )

    async def accept(self, message: Message) -> Accepted:
        return await self.store.accept(message)

    def find_process_state(self, agent: AgentId) -> ProcessState | None:
        return self.processes.get(agent)

    def is_waiting(self, agent: AgentId) -> bool:
        return agent in self.waiting

    async def release(self, agent: AgentId) -> None:
        self.processes.pop(agent, None)

    async def stop(self, drain_seconds: float | None, *, keep: bool) -> StoppedDocument:
        self.stopped.append((drain_seconds, keep))
        with anyio.move_on_after(0 if keep else drain_seconds):
            while self.live:
                await self._quiet.wait()
        self.is_stopped.set()
        return StoppedDocument(0 if keep else self.live, self.live if keep else 0, 0)

    def follow(
        self, *, agent: Agent | None, run: RunId | None, after: int
    ) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        return stream_events(self.store, self.bus, after, agent=agent, run=run)

    def rest(self) -> None:
        """A run has ended."""
        self.live -= 1
        self._quiet.set()
        self._quiet = anyio.Event()

    async def publish_stored(self) -> None:
        """Publish what was stored since the last call."""
        events = await self.store.events(self._published)
        if events:
            self._published = events[-1].cursor
            self.bus.publish(events)

    async def work(self) -> None:
        """Play every item, until cancelled."""
        holder = await self.store.join("daemon")
        with self.store.hints.watch(None) as watch:
            while True:
                started = await self.store.start(holder.id, self._opened)
                for each in started:
                    await Play(self, each).play()
                if not started:
                    await watch.wait()

    def _opened(self, agent: Agent, item: Item) -> Created:
        return Created(self.ids.make_run(), agent.id, item.id, agent.provider, self.clock.now())


class Play:
    """One run, written through the store's verbs."""

    def __init__(self, daemon: FakeDaemon, started: Started) -> None:
        self._daemon, self._started = daemon, started
        self._store, self._clock = daemon.store, daemon.clock
        self._offset = 0
        agent = started.agent
        self._process = Process(
            daemon.ids.make_process(), agent.id, agent.provider, "here", "none", self._clock.now()
        )

    async def play(self) -> None:
        self._daemon.live += 1
        await self.begin()
        text = self._started.claim.item.text
        if text == "wait":
            await self._be_cancelled()
            ended = Finished(self._clock.now(), "cancelled", stop_reason="user_stop")
        elif text == "fail":
            error = ErrorFact("broken", "it broke")
            ended = Finished(self._clock.now(), "failed", error=error)
        else:
            self.say_live(ev.TextDelta("You said: "))
            await self.say(ev.TextFinal(f"You said: {text}"))
            ended = Finished(self._clock.now(), "completed", text=f"You said: {text}")
        await self._store.settle(self._started.claim, ended)
        self._daemon.rest()
        await self._daemon.publish_stored()

    async def begin(self) -> None:
        claim, run = self._started.claim, self._started.run
        await self._store.open_process(claim, self._process)
        await self._store.change(claim, run.id, Launched(self._clock.now(), self._process.id))
        await self._daemon.publish_stored()

    async def say(self, *events: Event) -> None:
        start, self._offset = self._offset, self._offset + 10
        now = self._clock.now()
        emitted = tuple(Emitted(self._offset, n, now, event) for n, event in enumerate(events))
        batch = Batch(self._process.id, self._started.run.id, start, self._offset, emitted)
        await self._store.append(self._started.claim, batch)
        await self._daemon.publish_stored()

    def say_live(self, event: Event) -> None:
        run, agent = self._started.run, self._started.agent
        # A part of the line whose text follows.
        name = make_event_id(self._process.id, self._offset + 5, 0)
        self._daemon.bus.publish(
            LiveEvent(name, self._clock.now(), agent.name, run.id, run.provider, event)
        )

    async def _be_cancelled(self) -> None:
        item = self._started.claim.item
        with self._store.hints.watch(item.agent) as watch:
            while not (await self._store.item(item.id)).cancel_requested:
                await watch.wait()


def enforced(provider: str, rights: Rights) -> EnforcedRights | Refused:
    return make_dialect(provider, {}).enforce(rights)


def make_context(
    store: MaintainedStore,
    home: Path,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    daemon: FakeDaemon | None = None,
) -> OperationContext:
    clock = clock or SystemClock()
    return OperationContext(
        store, clock, ids or Ids(clock.now), home, ABILITIES.get, enforced, daemon
    )


@asynccontextmanager
async def open_context(
    home: Path, *, clock: Clock | None = None, ids: Ids | None = None
) -> AsyncIterator[tuple[OperationContext, FakeDaemon]]:
    """Open an operation context with a fake daemon on a real store."""
    clock = clock or SystemClock()
    ids = ids or Ids(clock.now)
    store = await SqliteStore.open(home, clock=clock, ids=ids)
    try:
        daemon = FakeDaemon(store, home, clock, ids)
        yield make_context(store, home, clock=clock, ids=ids, daemon=daemon), daemon
    finally:
        await store.close()


@asynccontextmanager
async def serve_daemon(
    home: Path,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    bugs: list[tuple[str, Exception]] | None = None,
) -> AsyncIterator[tuple[OperationContext, FakeDaemon]]:
    """The same, with its socket; what breaks in it is put into `bugs`."""
    found: list[tuple[str, Exception]] = [] if bugs is None else bugs
    async with (
        open_context(home, clock=clock, ids=ids) as (context, daemon),
        serve(context, lambda method, bug: found.append((method, bug))),
    ):
        yield context, daemon
    if bugs is None:
        assert found == []
