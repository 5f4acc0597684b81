"""Which process has a seat? One at most: launched or taken up, and gone before the next one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from steadyrun.dialect import Turn
from steadyrun.errors import SteadyrunError
from steadyrun.model.agent import Agent
from steadyrun.model.event import RecordPhase
from steadyrun.model.gate import find_account
from steadyrun.model.item import Lease
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process
from steadyrun.runtime.agent.process import Ear, LiveProcess
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.bus import EventPublisher
from steadyrun.runtime.log import log_event
from steadyrun.runtime.prompt.builder import TurnPlan
from steadyrun.store import LaneSnapshot

Answer = TypeVar("Answer")


class Sitter(Ear, Protocol):
    """Whose process it is."""

    agent: Agent
    feed: EventPublisher
    is_held: bool

    @property
    def hold(self) -> Lease: ...

    async def write(self, verb: Callable[[], Awaitable[Answer]], phase: RecordPhase) -> Answer:
        """Write, as often as it takes."""

    async def gone(self, live: LiveProcess) -> None:
        """Nobody hears this process any more."""


class ProcessSlot:
    """The process of one seat."""

    def __init__(self, around: Deps, sitter: Sitter, tasks: TaskGroup) -> None:
        self.live: LiveProcess | None = None
        # What an earlier holder has launched it for, if that is for the item that runs: it is told
        # nothing else.
        self.taken_up: Turn | None = None
        self._around = around
        self._sitter = sitter
        self._tasks = tasks
        self._launched: LiveProcess | None = None
        self._ending = asyncio.Lock()

    def serves(self, seal: str) -> bool:
        """Whether it is there, was launched with this seal, and can be told."""
        live = self.live
        if live is None or live.is_gone or live.is_closing:
            return False
        return bool(seal) and live.process.seal == seal

    def was_launched(self, live: LiveProcess) -> bool:
        """Whether it is the one that was launched last, and has served nobody yet."""
        return self._launched is live

    def has_served(self) -> None:
        """What it was launched for is done."""
        self._launched = None

    async def launch(self, order: TurnPlan) -> LiveProcess:
        around, agent, sitter = self._around, self._sitter.agent, self._sitter
        name, now = around.ids.new_process(), around.clock.now()
        place = around.drivers.name_directory(name)
        account = find_account(agent.provider, around.store.accounts)
        process = Process(
            name, agent.id, agent.provider, around.machine, place, now,
            seal=order.seal, account=account,
        )  # fmt: skip
        hold = sitter.hold
        await sitter.write(lambda: around.store.open_process(hold, process), "start")
        try:
            await around.drivers.launch(process, order.request, env=order.env)
        except SteadyrunError:
            await sitter.write(lambda: around.store.close_process(hold, process.id), "start")
            raise
        log_event("process.launched", agent=agent.name, process=process.id)
        self._launched = self.hear(process, order.request.rights)
        return self._launched

    def hear(
        self, process: Process, rights: Rights, known: LaneSnapshot | None = None
    ) -> LiveProcess:
        """Hear it from now on, to its end. It was launched with these rights; `known`: what the
        record says of what it does."""
        sitter = self._sitter
        live = LiveProcess(
            self._around, sitter.hold, sitter.agent, process, ear=sitter, feed=sitter.feed
        )
        self.live, live.rights, live.known = live, rights, known
        self._tasks.start_soon(self._serve, live)
        return live

    async def _serve(self, live: LiveProcess) -> None:
        await live.serve()
        await self._sitter.gone(live)

    async def end(self) -> None:
        """End it, if there is one, and write that down."""
        async with self._ending:
            live = self.live
            if live:
                await live.end(self._around.limits.close)
                await self._close(live)

    async def end_idle(self) -> bool:
        """End it as long as nothing runs; False if something does, which has it then."""
        async with self._ending:
            live, sitter = self.live, self._sitter
            if live is None or sitter.is_held:
                return not sitter.is_held
            await live.close()
            with anyio.move_on_after(self._around.limits.close or None):
                while not live.is_gone and not sitter.is_held:
                    await live.changed()
            if sitter.is_held:
                return False
            await live.stop("shutdown")
            await self._close(live)
            return not sitter.is_held

    async def abandon(self) -> None:
        """End it though nobody can hear it any more."""
        async with self._ending:
            live, hold = self.live, self._sitter.hold
            if live:
                drivers = self._around.drivers
                await drivers.end(live.process, holder=hold.holder, fence=hold.fence)
                await self._close(live)

    async def _close(self, live: LiveProcess) -> None:
        hold, process, store = self._sitter.hold, live.process.id, self._around.store
        await self._sitter.write(lambda: store.close_process(hold, process), "settle")
        log_event("process.closed", agent=self._sitter.agent.name, process=process)
        self.live = self.taken_up = None
