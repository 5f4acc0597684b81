"""The command `tail`: prints the last events, and with `-f` new events as they happen."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import get_args

from steadyrun.app.abandoned_runs import open_record
from steadyrun.cli.event_stream import EventFilter, EventStream
from steadyrun.cli.output.format import ShownEvent, format_event, to_json
from steadyrun.config import load
from steadyrun.errors import InvalidUsage, NotFound
from steadyrun.model.event import EVENT_TYPES, RunEnded, StoredEvent, get_type
from steadyrun.model.event_json import to_public
from steadyrun.operations.lookup import find_run
from steadyrun.store import PAGE, MaintainedStore, Store

_DEFAULT_EVENTS = 50
# The most events that are searched for events of a kind.
_MOST_EVENTS = 100_000
_TYPES = [str(kind.__struct_config__.tag) for kind in EVENT_TYPES]
KINDS = sorted({name.partition(".")[0] for name in _TYPES} | {"error"})
_ERRORS = frozenset(
    {name for name in _TYPES if name.endswith(".failed")}
    | {"run.timed_out", "run.rate_limited", "policy.violated", "budget.reached", "gate.closed"}
)


async def tail(args: Namespace) -> int:
    if (args.name is None) != args.all:
        hint = "usage: steadyrun tail AGENT|RUN|--all"
        raise InvalidUsage("expected an agent, a run or --all", hint=hint)
    unknown = [kind for kind in args.kind or () if kind not in KINDS]
    if unknown:
        raise InvalidUsage(
            f"unknown kind of event {unknown[0]!r}", hint=f"Kinds are: {', '.join(KINDS)}"
        )
    config = load()
    async with open_record(config) as store:
        filter_ = await _parse_filter(store, args.name)
        is_pruned = await _report_pruned(store, filter_, args.after)
        # A run that was pruned has ended, but its last event may be gone.
        can_follow = args.follow and not is_pruned
        printer = EventPrinter(args.kind, filter_, as_json=args.jsonl)
        if args.after is None:
            seen = await _load_last(store, filter_, args.n or _DEFAULT_EVENTS, printer)
            after = seen[-1].cursor if seen else 0
            await printer.show_all(seen[-_MOST_EVENTS:])
        elif can_follow:
            after = args.after
        else:
            await _print_after(store, filter_, args, printer)
            return 0
        if can_follow and not printer.is_over:
            stream = EventStream(config.locations.home, store, filter_, after, _print_note)
            await stream.follow(printer.show)
    return 0


def _print_note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class EventPrinter:
    """Prints events of some kinds, or of all kinds if none is named."""

    def __init__(self, kinds: Sequence[str] | None, filter_: EventFilter, *, as_json: bool) -> None:
        self._kinds, self._filter_, self._as_json = kinds, filter_, as_json
        self.is_over = False

    async def show(self, seen: ShownEvent) -> bool:
        if self.is_shown(seen):
            line = to_json(to_public(seen)) if self._as_json else format_event(seen)
            print(line, flush=True)
        # After the last event of a run there is nothing more to print.
        self.is_over = self._filter_.run is not None and isinstance(seen.event, get_args(RunEnded))
        return self.is_over

    async def show_all(self, events: Iterable[StoredEvent]) -> None:
        for event in events:
            await self.show(event)

    def is_shown(self, seen: ShownEvent) -> bool:
        name = get_type(seen.event)
        return not self._kinds or any(is_kind(name, kind) for kind in self._kinds)


def is_kind(name: str, kind: str) -> bool:
    """Return whether an event type is of that kind: the first part of its name, or an error."""
    return name in _ERRORS if kind == "error" else name.partition(".")[0] == kind


async def _load_last(
    store: Store, filter_: EventFilter, wanted: int, printer: EventPrinter
) -> list[StoredEvent]:  # fmt: skip
    """Load the newest events, until `wanted` of them pass the filter or no more exist."""
    limit = wanted
    while True:
        found = await store.events(agent=filter_.agent, run=filter_.run, limit=limit, newest=True)
        shown = [event for event in found if printer.is_shown(event)]
        if len(shown) >= wanted or len(found) < limit or limit >= _MOST_EVENTS:
            return found[found.index(shown[-wanted]) :] if len(shown) > wanted else found
        limit = min(limit * 8, _MOST_EVENTS)


async def _report_pruned(store: MaintainedStore, filter_: EventFilter, after: int | None) -> bool:
    """Report on stderr that events after the cursor were deleted because they are old; whether they
    are those of the chosen run."""
    if filter_.run is not None:
        is_pruned = (await store.run(filter_.run)).events_pruned
        if is_pruned:
            print("steadyrun: the events of this run were pruned", file=sys.stderr)
        return is_pruned
    pruned_to = await store.pruned_to(filter_.agent) if after is not None else 0
    if after is not None and after < pruned_to:
        print(
            f"steadyrun: events after cursor {after} up to {pruned_to} were pruned",
            file=sys.stderr,
        )
    return False


async def _print_after(
    store: Store, filter_: EventFilter, args: Namespace, printer: EventPrinter
) -> None:
    after, remaining = args.after, args.n
    while page := await store.events(after, agent=filter_.agent, run=filter_.run, limit=PAGE):
        after = page[-1].cursor
        shown = [event for event in page if printer.is_shown(event)]
        await printer.show_all(shown[:remaining])
        remaining = None if remaining is None else remaining - len(shown)
        if remaining is not None and remaining <= 0:
            return


async def _parse_filter(store: Store, text: str | None) -> EventFilter:
    if text is None:
        return EventFilter()
    if text.startswith("run_"):
        return EventFilter(run=(await find_run(store, text)).id)
    try:
        return EventFilter(agent=(await store.agent(text)).id)
    except NotFound as error:
        hint = "`steadyrun agents` and `steadyrun runs` list them."
        raise NotFound("agent or run", text, hint=hint) from error
