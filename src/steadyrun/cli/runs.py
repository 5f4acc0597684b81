"""What has been run? `runs`, `show` and `tail` read the record; they need no daemon."""

from argparse import Namespace
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

import anyio

from steadyrun.assemble.store import open_store
from steadyrun.cli import render
from steadyrun.cli.lost import hand_over_lost
from steadyrun.config import load
from steadyrun.errors import NotFound, Usage
from steadyrun.model.event import RunEnded, StoredEvent, public
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.run import Run
from steadyrun.store import Store, follow


def list_runs(args: Namespace) -> int:
    return anyio.run(_list_runs, args)


def show(args: Namespace) -> int:
    return anyio.run(_show, args)


def tail(args: Namespace) -> int:
    return anyio.run(_tail, args)


async def _list_runs(args: Namespace) -> int:
    async with _opened() as store:
        agent = None if args.agent is None else await store.agent(args.agent)
        runs = await store.runs(agent.id if agent else None, limit=args.n)
        named = [(run, (await store.agent(run.agent)).name) for run in runs]
    if args.json:
        print(render.to_json({"runs": [render.run_document(*pair) for pair in named]}))
    elif named:
        _print_lines(render.run_table(named))
    else:
        print("No runs yet.")
    return 0


async def _show(args: Namespace) -> int:
    async with _opened() as store:
        run = await find_run(store, args.run)
        agent_name = (await store.agent(run.agent)).name
    if args.json:
        print(render.to_json(render.run_document(run, agent_name)))
    else:
        _print_lines(render.run_page(run, agent_name))
    return 0


async def _tail(args: Namespace) -> int:
    async with _opened() as store:
        agent, run = await _find(store, args.name)
        events = await store.last_events(agent=agent, run=run, limit=args.n)
        _print_events(events, as_json=args.jsonl)
        if args.follow and not _is_over(events, run):
            await _follow(store, events, agent, run, as_json=args.jsonl)
    return 0


@asynccontextmanager
async def _opened() -> AsyncIterator[Store]:
    """The store, with every run that nobody drives handed to somebody who does."""
    config = load()
    async with open_store(config) as store:
        await hand_over_lost(config.places.home, store)
        yield store


async def _follow(
    store: Store,
    seen: list[StoredEvent],
    agent: AgentId | None,
    run: RunId | None,
    *,
    as_json: bool,
) -> None:
    """Print events as they come; a run's last event ends it."""
    after = seen[-1].cursor if seen else 0
    async with aclosing(follow(store, after, agent=agent, run=run)) as events:
        async for event in events:
            _print_events([event], as_json=as_json)
            if _is_over([event], run):
                return


async def find_run(store: Store, text: str) -> Run:
    """The one run whose id begins with `text`."""
    found = await store.runs_like(text) if text else []
    if not found:
        raise NotFound("run", text, hint="`steadyrun runs` lists them.")
    if len(found) > 1:
        raise Usage(f"{text!r} fits several runs", hint="Type more of the id: `steadyrun runs`.")
    return found[0]


async def _find(store: Store, text: str) -> tuple[AgentId | None, RunId | None]:
    if text.startswith("run_"):
        return None, (await find_run(store, text)).id
    try:
        return (await store.agent(text)).id, None
    except NotFound as error:
        raise NotFound("agent or run", text, hint="`steadyrun runs` lists both.") from error


def _is_over(events: list[StoredEvent], run: RunId | None) -> bool:
    return run is not None and bool(events) and isinstance(events[-1].event, RunEnded)


def _print_events(events: Iterable[StoredEvent], *, as_json: bool) -> None:
    for event in events:
        line = render.to_json(public(event)) if as_json else render.event_line(event)
        print(line, flush=True)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
