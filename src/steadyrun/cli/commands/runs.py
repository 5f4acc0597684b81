"""The commands `runs` and `show`. They read the store and need no daemon."""

from argparse import Namespace
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from steadyrun.app.processes import hand_over_abandoned
from steadyrun.app.store import open_store
from steadyrun.cli.output.format import format_run_page, format_run_table, to_json
from steadyrun.config import load
from steadyrun.operations.lookup import find_run
from steadyrun.operations.views import build_run_document
from steadyrun.store import Store


def list_runs(args: Namespace) -> int:
    return anyio.run(_list_runs, args)


def show(args: Namespace) -> int:
    return anyio.run(_show, args)


async def _list_runs(args: Namespace) -> int:
    async with open_record() as (_, store):
        agent = None if args.agent is None else await store.agent(args.agent)
        runs = await store.runs(agent.id if agent else None, limit=args.n)
        named = [(run, (await store.agent(run.agent)).name) for run in runs]
    if args.json:
        print(to_json({"runs": [build_run_document(*pair) for pair in named]}))
    elif named:
        _print_lines(format_run_table(named))
    else:
        print("No runs yet.")
    return 0


async def _show(args: Namespace) -> int:
    async with open_record() as (_, store):
        run = await find_run(store, args.run)
        agent_name = (await store.agent(run.agent)).name
    if args.json:
        print(to_json(build_run_document(run, agent_name)))
    else:
        _print_lines(format_run_page(run, agent_name))
    return 0


@asynccontextmanager
async def open_record() -> AsyncIterator[tuple[Path, Store]]:
    """Open the store. Runs without a living holder are handed to a background process."""
    config = load()
    async with open_store(config) as store:
        await hand_over_abandoned(config.locations.home, store)
        yield config.locations.home, store


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
