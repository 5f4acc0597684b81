"""The commands `steer` and `cancel`. They reach a run of another process through the store."""

import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio

from steadyrun.app.abandoned_runs import hand_over_abandoned
from steadyrun.app.operations import open_operations
from steadyrun.cli.background import open_command_runs
from steadyrun.cli.invoke import parse_request, print_answer
from steadyrun.cli.output.format import to_json
from steadyrun.config import load
from steadyrun.dialect import Refused
from steadyrun.errors import Conflict, InvalidUsage
from steadyrun.library import RunHandle
from steadyrun.model.event import FollowupOffered, FollowupReturned
from steadyrun.model.ids import ItemId
from steadyrun.operations.access.execution import call_here
from steadyrun.operations.documents import CancelledDocument
from steadyrun.operations.lookup import find_run
from steadyrun.operations.registry import BY_NAME
from steadyrun.store import Store, follow

WAIT_SECONDS = 30.0
EXIT_TIMED_OUT = 7


async def steer(args: Namespace) -> int:
    if not args.text.strip():
        raise InvalidUsage("the text is empty", hint='Type it: steadyrun steer RUN "…"')
    async with _open_run(args.run) as (store, run):
        seen = await store.events(run=run.id, limit=1, newest=True)
        with anyio.move_on_after(WAIT_SECONDS):
            answer = await run.steer(args.text)
            if isinstance(answer, Refused):
                raise _build_refusal(run, answer.reason)
            await _wait_until_offered(store, run, answer.item, after=seen[-1].cursor if seen else 0)
            delivery = (await store.item(answer.item)).delivery
            document = {"run": run.id, "item": answer.item, "delivery": delivery}
            print(to_json(document) if args.json else f"{delivery}: {run.id}")
            return 0
    return _report_unanswered(run.id)


async def _wait_until_offered(store: Store, run: RunHandle, item: ItemId, *, after: int) -> None:
    """Wait until the run has offered the item to the provider. A returned item is a refusal."""
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
    return Conflict(f"{run.id} did not accept the message: {reason or 'it was returned'}")


async def cancel(args: Namespace) -> int:
    config, operation = load(), BY_NAME["item.cancel"]
    async with open_operations(config) as context:
        # An abandoned run needs a new holder, which can cancel it.
        await hand_over_abandoned(config.locations.home, context.store)
        request = parse_request(args, operation, wait_seconds=WAIT_SECONDS)
        found: CancelledDocument = await call_here(context, operation, request)
    if not found.is_over:
        return _report_unanswered(found.run or found.item)
    print_answer(operation, request, found, as_json=args.json)
    return 0


@asynccontextmanager
async def _open_run(name: str) -> AsyncIterator[tuple[Store, RunHandle]]:
    async with open_command_runs() as direct_runs:
        store = direct_runs.deps.store
        yield store, RunHandle(direct_runs, (await find_run(store, name)).id)


def _report_unanswered(asked: str | None) -> int:
    command = "steadyrun inbox" if asked is None else f"steadyrun tail {asked} -f"
    print(f"{asked or 'the item'} has not answered yet: {command}", file=sys.stderr)
    return EXIT_TIMED_OUT
