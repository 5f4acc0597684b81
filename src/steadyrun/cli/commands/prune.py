"""The command `prune`: deletes old events and texts, or prints what it would delete.

The command writes to the store itself, with or without a daemon. It can be interrupted at any time:
the next one does the rest.
"""

from argparse import Namespace
from datetime import timedelta

from steadyrun.app.store import build_periods, open_store
from steadyrun.cli.output.format import format_runs, to_json
from steadyrun.config import Config, load
from steadyrun.errors import InvalidUsage
from steadyrun.lib.clock import SystemClock
from steadyrun.model.retention import PruneCounts, RetentionPeriods
from steadyrun.operations.access.caller import require_person
from steadyrun.runtime.retention import prune_all, release_all_space


async def prune(args: Namespace) -> int:
    config = load()
    require_person(config.locations.home, "delete old events and texts")
    periods = _choose_periods(args, config)
    async with open_store(config) as store:
        agent = None if args.agent is None else (await store.agent(args.agent)).id
        limits = periods.to_limits(SystemClock().now(), agent)
        counts = await prune_all(store, limits, is_dry=args.dry_run)
        if not args.dry_run:
            await release_all_space(store)
    _print(counts, is_dry=args.dry_run, as_json=args.json)
    return 0


def _choose_periods(args: Namespace, config: Config) -> RetentionPeriods:
    """Take the ages of the command line; without any, those of the configuration."""
    events, texts = args.events_older_than, args.texts_older_than
    if events or texts:
        return RetentionPeriods(timedelta(seconds=events or 0), timedelta(seconds=texts or 0))
    periods = build_periods(config)
    if periods.is_endless:
        hint = "Name an age: steadyrun prune --dry-run --events-older-than 90d"
        raise InvalidUsage("the configuration keeps all events and texts", hint=hint)
    return periods


def _print(counts: PruneCounts, *, is_dry: bool, as_json: bool) -> None:
    if as_json:
        print(to_json({"dry_run": is_dry, "pruned": counts}))
        return
    what = "would delete" if is_dry else "deleted"
    events = f"{counts.events} events of {format_runs(counts.runs)} ({counts.event_bytes} bytes)"
    print(f"{what} {events}, {counts.texts} texts ({counts.text_bytes} bytes)")
