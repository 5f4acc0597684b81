"""How is a run reached that another process drives? `steer` and `cancel`, through the store."""

import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio

from steadyrun.app.operations import open_desk
from steadyrun.cli.invoke import parse_request, print_answer
from steadyrun.cli.lost_runs import hand_over_abandoned
from steadyrun.cli.opened import open_direct_runs
from steadyrun.cli.output import format as render
from steadyrun.config import load
from steadyrun.dialect import Refused
from steadyrun.errors import Conflict, InvalidUsage
from steadyrun.library import RunHandle
from steadyrun.model.event import FollowupOffered, FollowupReturned
from steadyrun.model.ids import ItemId
from steadyrun.operations.documents import CancelledDocument
from steadyrun.operations.lookup import find_run
from steadyrun.operations.registry import BY_NAME
from steadyrun.store import Store, follow

WAIT_SECONDS = 30.0
EXIT_TIMED_OUT = 7


def steer(args: Namespace) -> int:
    if not args.text.strip():
        raise InvalidUsage("the text is empty", hint='Type it: steadyrun steer RUN "…"')
    return anyio.run(_steer, args)


def cancel(args: Namespace) -> int:
    return anyio.run(_cancel, args)


async def _steer(args: Namespace) -> int:
    async with _open_run(args.run) as (store, run):
        seen = await store.last_events(run=run.id, limit=1)
        with anyio.move_on_after(WAIT_SECONDS):
            answer = await run.steer(args.text)
            if isinstance(answer, Refused):
                raise _build_refusal(run, answer.reason)
            await _wait_until_offered(store, run, answer.item, after=seen[-1].cursor if seen else 0)
            delivery = (await store.item(answer.item)).delivery
            document = {"run": run.id, "item": answer.item, "delivery": delivery}
            print(render.to_json(document) if args.json else f"{delivery}: {run.id}")
            return 0
    return _report_unanswered(run.id)


async def _wait_until_offered(store: Store, run: RunHandle, item: ItemId, *, after: int) -> None:
    """Wait until the run says something of the item; that it was given back is a refusal."""
    async with aclosing(follow(store, after, run=run.id)) as events:
        async for seen in events:
            match seen.event:
                case FollowupOffered(about, _) if about == item:
                    return
                case FollowupReturned(about, _, reason) if about == item:
                    raise _build_refusal(run, reason)
                case _:
                    continue


def _build_refusal(run: RunHandle, reason: str | None) -> Conflict:
    return Conflict(f"{run.id} did not take it: {reason or 'it was given back'}")


async def _cancel(args: Namespace) -> int:
    config, operation = load(), BY_NAME["item.cancel"]
    async with open_desk(config) as desk:
        # A run that nobody drives is driven again first, so that somebody ends it.
        await hand_over_abandoned(config.places.home, desk.store)
        given = parse_request(args, operation, wait_seconds=WAIT_SECONDS)
        found: CancelledDocument = await operation.do(desk, given)
    if not found.is_over:
        return _report_unanswered(found.run or found.item)
    print_answer(operation, given, found, as_json=args.json)
    return 0


@asynccontextmanager
async def _open_run(name: str) -> AsyncIterator[tuple[Store, RunHandle]]:
    async with open_direct_runs() as holding:
        store = holding.around.store
        yield store, RunHandle(holding, (await find_run(store, name)).id)


def _report_unanswered(asked: str | None) -> int:
    look = "steadyrun inbox" if asked is None else f"steadyrun tail {asked} -f"
    print(f"{asked} was asked, but has not answered yet: {look}", file=sys.stderr)
    return EXIT_TIMED_OUT
