"""The command `send`: sends a message to an agent, and with `--wait` shows its run."""

import signal
import sys
from argparse import Namespace
from typing import get_args

import anyio
import msgspec
from anyio.abc import TaskGroup

from steadyrun.api import client
from steadyrun.app.operations import open_operations
from steadyrun.cli import invoke
from steadyrun.cli.event_stream import EventFilter, EventStream
from steadyrun.cli.inputs import read_stdin
from steadyrun.cli.main import EXIT_INTERRUPTED
from steadyrun.cli.output.format import ShownEvent, sanitize, to_json
from steadyrun.cli.output.live import LiveText
from steadyrun.cli.output.tables import BLOCKING_REASONS, describe_blocked, explain_blocked
from steadyrun.config import Config, load
from steadyrun.errors import DaemonNotAnswering, InvalidUsage
from steadyrun.lib.signal import Signal
from steadyrun.lib.task_group import task_group
from steadyrun.model.event import FollowupAbsorbed, RunEnded, RunStarted, StoredEvent
from steadyrun.model.event_json import to_data
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Item
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import ItemDocument
from steadyrun.operations.items import SendRequest
from steadyrun.operations.registry import BY_NAME
from steadyrun.operations.views import build_item_document

EXIT_TIMED_OUT = 7
_EXITS = {"completed": 0, "failed": 1, "cancelled": 8}
_NO_DAEMON = "no daemon is running: steadyrun up"
# A second Ctrl-C within this time cancels the item.
_SECOND_SIGNAL_SECONDS = 2.0
# How long the last event of a run may arrive after its item is settled.
_LAST_EVENT_SECONDS = 5.0
_OPERATION = BY_NAME["item.send"]


async def send(args: Namespace) -> int:
    if args.timeout is not None and not args.wait:
        raise InvalidUsage("--timeout requires --wait", hint="Add --wait, or leave it out.")
    if args.text == "-":
        args.text = read_stdin("message", is_requested=True, hint="")
    config, request = load(), invoke.parse_request(args, _OPERATION)
    if args.wait:
        return await _send_and_wait(config, args, request)
    item, missing = await invoke.call_operation(config, _OPERATION, request)
    invoke.print_answer(_OPERATION, request, item, as_json=args.json)
    if missing and not isinstance(missing, DaemonNotAnswering):
        print(_NO_DAEMON, file=sys.stderr)
    return 0


async def _send_and_wait(config: Config, args: Namespace, request: SendRequest) -> int:
    home = config.locations.home
    # Checked first: without a daemon the store is not created and no message is accepted.
    async with client.connect(home):
        pass
    async with open_operations(config) as context:
        newest = await context.store.events(limit=1, newest=True)
        item: ItemDocument = await client.call(home, _OPERATION, request)
        after = newest[-1].cursor if newest else 0
        return await ItemWatch(context, item, after, as_json=args.json).watch(args.timeout)


class ItemWatch:
    """Shows an item until it is settled, a signal ends the command, or the time is over."""

    def __init__(
        self, context: OperationContext, item: ItemDocument, after: int, *, as_json: bool
    ) -> None:
        self._context, self._item, self._after, self._as_json = context, item, after, as_json
        self._output = None if as_json else LiveText(sys.stdout, sys.stderr)
        # The current run of the item, and the last event of its last run.
        self._run: str | None = None
        self._ended: ShownEvent | None = None
        # The cursor of the last stored event.
        self._cursor = after
        self._changed = Signal()
        self._exit: int | None = None
        # Whether the user has seen why the item is blocked.
        self._has_reported_blocked = item.waiting in BLOCKING_REASONS

    async def watch(self, seconds: float | None) -> int:
        item = self._item
        blocked = f"{describe_blocked(item)} for {item.agent}{explain_blocked(item)}"
        self._note(f"* {item.id} {blocked}")
        agent = (await self._context.store.item(ItemId(self._item.id))).agent
        home, store, filter_ = self._context.home, self._context.store, EventFilter(agent=agent)
        stream = EventStream(home, store, filter_, self._after, self._note)
        with anyio.move_on_after(seconds):
            async with task_group() as tasks:
                tasks.start_soon(stream.follow, self._handle)
                tasks.start_soon(self._handle_signals, tasks)
                settled = await self._wait_until_settled(agent)
                await self._wait_for_last_event(settled)
                self._exit = _EXITS[settled.status]
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
                self._note(f"  + joined {seen.run}")
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
        """Print once why the item is blocked. Its own run may reach a limit that blocks it."""
        if item.status != "queued" or self._has_reported_blocked:
            return
        found = await build_item_document(self._context, item)
        if found.waiting in BLOCKING_REASONS:
            self._has_reported_blocked = True
            self._note(f"* {found.id} {describe_blocked(found)}{explain_blocked(found)}")

    async def _wait_for_last_event(self, item: Item) -> None:
        """Wait until the last event of the run was shown.

        An item that was cancelled in the queue has no run. An item of a repeated key may have been
        settled long ago. A run that could not be launched ends without a start event.
        """
        if item.run is None:
            return
        last = await self._context.store.events(run=item.run, limit=1, newest=True)
        if not last:
            return
        with anyio.move_on_after(_LAST_EVENT_SECONDS):
            while self._cursor < last[0].cursor:
                await self._changed.wait()
        if self._ended is None or self._ended.run != item.run:
            self._show(last[0])

    async def _handle_signals(self, tasks: TaskGroup) -> None:
        """The first Ctrl-C ends the command. A second one cancels the item and waits for the end; a
        third one does not wait."""
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            await anext(signals)
            self._note(f"still open: steadyrun tail {self._item.agent} -f")
            is_repeated = False
            with anyio.move_on_after(_SECOND_SIGNAL_SECONDS):
                await anext(signals)
                is_repeated = True
            if is_repeated:
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
            result = None if self._ended is None else to_data(self._ended.event)
            print(to_json({**msgspec.structs.asdict(item), "result": result}))
        elif self._ended is None and self._exit in _EXITS.values():
            self._note(f"* {item.status}")

    def _note(self, line: str) -> None:
        if self._output:
            self._output.note(line)
        else:
            print(sanitize(line), file=sys.stderr, flush=True)
