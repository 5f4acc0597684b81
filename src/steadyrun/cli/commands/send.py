"""How is an agent told something from the command line, and its answer awaited? `send`."""

import signal
import sys
from argparse import Namespace
from typing import get_args

import anyio
import msgspec
from anyio.abc import TaskGroup

from steadyrun.api import client
from steadyrun.app.operations import open_desk
from steadyrun.cli import invoke
from steadyrun.cli.event_stream import EventFilter, EventStream, Seen
from steadyrun.cli.main import EXIT_INTERRUPTED
from steadyrun.cli.output import format as render
from steadyrun.cli.output.live import LiveText
from steadyrun.cli.output.tables import HELD_BACK, held_back
from steadyrun.cli.stdin import read_input
from steadyrun.config import Config, load
from steadyrun.errors import InvalidUsage
from steadyrun.lib.signal import Signal
from steadyrun.lib.task_group import task_group
from steadyrun.model.event import FollowupAbsorbed, RunEnded, RunStarted, StoredEvent
from steadyrun.model.event_json import data_of
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Item
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import ItemDocument
from steadyrun.operations.items import SendMessage
from steadyrun.operations.lookup import item_document
from steadyrun.operations.registry import BY_NAME

EXIT_TIMED_OUT = 7
_EXITS = {"completed": 0, "failed": 1, "cancelled": 8}
_NO_DAEMON = "no daemon runs: steadyrun up"
# How long after a Ctrl-C a second one still means the item.
_AGAIN_SECONDS = 2.0
# How long the last event of a run may take to come after its item is settled.
_LAST_SECONDS = 5.0
_OPERATION = BY_NAME["item.send"]


def send(args: Namespace) -> int:
    if args.timeout is not None and not args.wait:
        raise InvalidUsage("--timeout is for --wait", hint="Add --wait, or leave it out.")
    if args.text == "-":
        args.text = read_input("message", is_asked_for=True, hint="")
    return anyio.run(_send, args, invoke.given_by(args, _OPERATION))


async def _send(args: Namespace, given: SendMessage) -> int:
    config = load()
    if args.wait:
        return await _send_and_wait(config, args, given)
    item, is_told = await invoke.ask(config, _OPERATION, given)
    invoke.show(_OPERATION, given, item, as_json=args.json)
    if not is_told:
        print(_NO_DAEMON, file=sys.stderr)
    return 0


async def _send_and_wait(config: Config, args: Namespace, given: SendMessage) -> int:
    home = config.places.home
    # Before the store is touched: without a daemon nothing shall be made or accepted.
    async with client.connected(home):
        pass
    async with open_desk(config) as desk:
        newest = await desk.store.last_events(limit=1)
        item: ItemDocument = await client.call(home, _OPERATION, given)
        after = newest[-1].cursor if newest else 0
        return await _Watch(desk, item, after, as_json=args.json).see_through(args.timeout)


class _Watch:
    """Shows what becomes of an item, as long as somebody wants to see it."""

    def __init__(
        self, desk: OperationContext, item: ItemDocument, after: int, *, as_json: bool
    ) -> None:
        self._desk, self._item, self._after, self._as_json = desk, item, after, as_json
        self._output = None if as_json else LiveText(sys.stdout, sys.stderr)
        # The run that the item is in, and how the last one ended.
        self._run: str | None = None
        self._ended: Seen | None = None
        # How far the record was heard.
        self._heard = after
        self._changed = Signal()
        self._exit: int | None = None
        # Whether it was said why nothing happens.
        self._has_said_why = item.waiting in HELD_BACK

    async def see_through(self, seconds: float | None) -> int:
        self._note(f"* {self._item.id} {held_back(self._item)} for {self._item.agent}")
        agent = (await self._desk.store.item(ItemId(self._item.id))).agent
        hearing = EventStream(
            self._desk.home, self._desk.store, EventFilter(agent=agent), self._after
        )  # fmt: skip
        with anyio.move_on_after(seconds):
            async with task_group() as tasks:
                tasks.start_soon(hearing.hear, self._hear)
                tasks.start_soon(self._obey_signals, tasks)
                item = await self._settled(agent)
                await self._hear_last(item)
                self._exit = _EXITS[item.status]
                tasks.cancel_scope.cancel()
        if self._exit is None:
            self._note(f"still open: steadyrun tail {self._item.agent} -f")
            self._exit = EXIT_TIMED_OUT
        await self._print()
        return self._exit

    async def _hear(self, seen: Seen) -> bool:
        match seen.event:
            case RunStarted(item=item) if item == self._item.id:
                self._run = seen.run
            case FollowupAbsorbed(item) if item == self._item.id:
                self._run = seen.run
                self._note(f"  + taken into {seen.run}")
            case _:
                pass
        if self._run is not None and seen.run == self._run:
            self._show(seen)
        if isinstance(seen, StoredEvent):
            self._heard = seen.cursor
            self._changed.notify()
        return False

    def _show(self, seen: Seen) -> None:
        if self._output:
            self._output.show(seen)
        if isinstance(seen.event, get_args(RunEnded)):
            self._ended = seen
            self._changed.notify()

    async def _settled(self, agent: AgentId) -> Item:
        store = self._desk.store
        with store.hints.watch(agent) as watch:
            while not (item := await store.item(ItemId(self._item.id))).is_settled:
                await self._say_why(item)
                await watch.wait()
        return item

    async def _say_why(self, item: Item) -> None:
        """It may be held back later, too: by a limit that its own run has come to."""
        if item.status != "queued" or self._has_said_why:
            return
        found = await item_document(self._desk, item)
        if found.waiting in HELD_BACK:
            self._has_said_why = True
            self._note(f"* {found.id} {held_back(found)}")

    async def _hear_last(self, item: Item) -> None:
        """One that was cancelled while it waited has no run, one that a key has named may have been
        settled long ago, and what could not be launched ends without having begun."""
        if item.run is None:
            return
        last = await self._desk.store.last_events(run=item.run, limit=1)
        if not last:
            return
        with anyio.move_on_after(_LAST_SECONDS):
            while self._heard < last[0].cursor:
                await self._changed.wait()
        if self._ended is None or self._ended.run != item.run:
            self._show(last[0])

    async def _obey_signals(self, tasks: TaskGroup) -> None:
        """Once: stop watching. Twice: have it cancelled, and see that. Once more: leave."""
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            await anext(signals)
            self._note(f"still open: steadyrun tail {self._item.agent} -f")
            is_meant = False
            with anyio.move_on_after(_AGAIN_SECONDS):
                await anext(signals)
                is_meant = True
            if is_meant:
                self._note(f"cancelling {self._item.id}")
                await self._desk.store.cancel(ItemId(self._item.id), "Ctrl-C")
                await anext(signals)
            self._exit = EXIT_INTERRUPTED
            tasks.cancel_scope.cancel()

    async def _print(self) -> None:
        item = await item_document(self._desk, await self._desk.store.item(ItemId(self._item.id)))
        if self._as_json:
            result = None if self._ended is None else data_of(self._ended.event)
            print(render.to_json({**msgspec.structs.asdict(item), "result": result}))
        elif self._ended is None and self._exit in _EXITS.values():
            self._note(f"* {item.status}")

    def _note(self, line: str) -> None:
        if self._output:
            self._output.note(line)
        else:
            print(render.plain(line), file=sys.stderr, flush=True)
