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
from steadyrun.cli.event_stream import EventFilter, EventStream, ShownEvent
from steadyrun.cli.main import EXIT_INTERRUPTED
from steadyrun.cli.output import format as render
from steadyrun.cli.output.live import LiveText
from steadyrun.cli.output.tables import BLOCKING_REASONS, describe_blocked
from steadyrun.cli.stdin import read_stdin
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
from steadyrun.operations.items import SendRequest
from steadyrun.operations.lookup import build_item_document
from steadyrun.operations.registry import BY_NAME

EXIT_TIMED_OUT = 7
_EXITS = {"completed": 0, "failed": 1, "cancelled": 8}
_NO_DAEMON = "no daemon runs: steadyrun up"
# How long after a Ctrl-C a second one still means the item.
_SECOND_SIGNAL_SECONDS = 2.0
# How long the last event of a run may take to come after its item is settled.
_LAST_EVENT_SECONDS = 5.0
_OPERATION = BY_NAME["item.send"]


def send(args: Namespace) -> int:
    if args.timeout is not None and not args.wait:
        raise InvalidUsage("--timeout is for --wait", hint="Add --wait, or leave it out.")
    if args.text == "-":
        args.text = read_stdin("message", is_requested=True, hint="")
    return anyio.run(_send, args, invoke.parse_request(args, _OPERATION))


async def _send(args: Namespace, given: SendRequest) -> int:
    config = load()
    if args.wait:
        return await _send_and_wait(config, args, given)
    item, is_told = await invoke.call_operation(config, _OPERATION, given)
    invoke.print_answer(_OPERATION, given, item, as_json=args.json)
    if not is_told:
        print(_NO_DAEMON, file=sys.stderr)
    return 0


async def _send_and_wait(config: Config, args: Namespace, given: SendRequest) -> int:
    home = config.places.home
    # Before the store is touched: without a daemon nothing shall be made or accepted.
    async with client.connect(home):
        pass
    async with open_desk(config) as desk:
        newest = await desk.store.last_events(limit=1)
        item: ItemDocument = await client.call(home, _OPERATION, given)
        after = newest[-1].cursor if newest else 0
        return await ItemWatch(desk, item, after, as_json=args.json).watch(args.timeout)


class ItemWatch:
    """Shows what becomes of an item, as long as somebody wants to see it."""

    def __init__(
        self, desk: OperationContext, item: ItemDocument, after: int, *, as_json: bool
    ) -> None:
        self._context, self._item, self._after, self._as_json = desk, item, after, as_json
        self._output = None if as_json else LiveText(sys.stdout, sys.stderr)
        # The run that the item is in, and how the last one ended.
        self._run: str | None = None
        self._ended: ShownEvent | None = None
        # How far the record was heard.
        self._cursor = after
        self._changed = Signal()
        self._exit: int | None = None
        # Whether it was said why nothing happens.
        self._has_reported_blocked = item.waiting in BLOCKING_REASONS

    async def watch(self, seconds: float | None) -> int:
        self._note(f"* {self._item.id} {describe_blocked(self._item)} for {self._item.agent}")
        agent = (await self._context.store.item(ItemId(self._item.id))).agent
        hearing = EventStream(
            self._context.home, self._context.store, EventFilter(agent=agent), self._after
        )  # fmt: skip
        with anyio.move_on_after(seconds):
            async with task_group() as tasks:
                tasks.start_soon(hearing.follow, self._handle)
                tasks.start_soon(self._handle_signals, tasks)
                item = await self._wait_until_settled(agent)
                await self._wait_for_last_event(item)
                self._exit = _EXITS[item.status]
                tasks.cancel_scope.cancel()
        if self._exit is None:
            self._note(f"still open: steadyrun tail {self._item.agent} -f")
            self._exit = EXIT_TIMED_OUT
        await self._print()
        return self._exit

    async def _handle(self, seen: ShownEvent) -> bool:
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
            self._cursor = seen.cursor
            self._changed.notify()
        return False

    def _show(self, seen: ShownEvent) -> None:
        if self._output:
            self._output.show(seen)
        if isinstance(seen.event, get_args(RunEnded)):
            self._ended = seen
            self._changed.notify()

    async def _wait_until_settled(self, agent: AgentId) -> Item:
        store = self._context.store
        with store.hints.watch(agent) as watch:
            while not (item := await store.item(ItemId(self._item.id))).is_settled:
                await self._report_blocked(item)
                await watch.wait()
        return item

    async def _report_blocked(self, item: Item) -> None:
        """It may be held back later, too: by a limit that its own run has come to."""
        if item.status != "queued" or self._has_reported_blocked:
            return
        found = await build_item_document(self._context, item)
        if found.waiting in BLOCKING_REASONS:
            self._has_reported_blocked = True
            self._note(f"* {found.id} {describe_blocked(found)}")

    async def _wait_for_last_event(self, item: Item) -> None:
        """One that was cancelled while it waited has no run, one that a key has named may have been
        settled long ago, and what could not be launched ends without having begun."""
        if item.run is None:
            return
        last = await self._context.store.last_events(run=item.run, limit=1)
        if not last:
            return
        with anyio.move_on_after(_LAST_EVENT_SECONDS):
            while self._cursor < last[0].cursor:
                await self._changed.wait()
        if self._ended is None or self._ended.run != item.run:
            self._show(last[0])

    async def _handle_signals(self, tasks: TaskGroup) -> None:
        """Once: stop watching. Twice: have it cancelled, and see that. Once more: leave."""
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            await anext(signals)
            self._note(f"still open: steadyrun tail {self._item.agent} -f")
            is_meant = False
            with anyio.move_on_after(_SECOND_SIGNAL_SECONDS):
                await anext(signals)
                is_meant = True
            if is_meant:
                self._note(f"cancelling {self._item.id}")
                await self._context.store.cancel(ItemId(self._item.id), "Ctrl-C")
                await anext(signals)
            self._exit = EXIT_INTERRUPTED
            tasks.cancel_scope.cancel()

    async def _print(self) -> None:
        item = await build_item_document(
            self._context, await self._context.store.item(ItemId(self._item.id))
        )
        if self._as_json:
            result = None if self._ended is None else data_of(self._ended.event)
            print(render.to_json({**msgspec.structs.asdict(item), "result": result}))
        elif self._ended is None and self._exit in _EXITS.values():
            self._note(f"* {item.status}")

    def _note(self, line: str) -> None:
        if self._output:
            self._output.note(line)
        else:
            print(render.sanitize(line), file=sys.stderr, flush=True)
