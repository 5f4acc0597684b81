"""How does the daemon end? It is asked to, and gone when its socket and its lock are free."""

import sys
from argparse import Namespace
from pathlib import Path

import anyio

from steadyrun.api import client
from steadyrun.api.server import locate_folder
from steadyrun.cli.invoke import parse_request, print_answer, require_person
from steadyrun.config import load
from steadyrun.errors import DaemonUnreachable, RpcClosed, RpcTimeout, SteadyrunError
from steadyrun.lib.flock import is_locked
from steadyrun.lib.task_group import task_group
from steadyrun.operations.daemon import StatusRequest, StopDaemonRequest
from steadyrun.operations.documents import StatusDocument, StoppedDocument
from steadyrun.operations.registry import BY_NAME

# Beyond the time it has to drain: for what has to be stopped, and for its own end.
_STOP_SECONDS = 120.0
_DEFAULT_DRAIN_SECONDS = 60.0
_POLL_SECONDS = 0.05
_REPORT_SECONDS = 1.0


def down(args: Namespace) -> int:
    return anyio.run(_down, args)


async def _down(args: Namespace) -> int:
    home, operation = load().places.home, BY_NAME["daemon.stop"]
    require_person(operation)
    given: StopDaemonRequest = parse_request(args, operation)
    drain = _DEFAULT_DRAIN_SECONDS if given.drain is None else given.drain
    seconds = drain + _STOP_SECONDS
    async with task_group() as tasks:
        if not given.keep:
            tasks.start_soon(_report_progress, home, drain)
        stopped = await _stop(home, given, seconds)
        await _wait_until_gone(home, seconds)
        tasks.cancel_scope.cancel()
    print_answer(operation, given, stopped, as_json=args.json)
    return 0


async def _stop(home: Path, given: StopDaemonRequest, seconds: float) -> StoppedDocument:
    try:
        answer: StoppedDocument = await client.call(
            home, BY_NAME["daemon.stop"], given, seconds=seconds
        )
    except RpcClosed:
        # It ended before it could say what it left.
        return StoppedDocument(None, None, None)
    return answer


async def _report_progress(home: Path, drain: float) -> None:
    """Say how many runs it still waits for, whenever that has changed."""
    began, told = anyio.current_time(), 0
    while True:
        try:
            status: StatusDocument = await client.call(home, BY_NAME["status"], StatusRequest())
        except SteadyrunError:
            # It is going, or of another version: there is nothing to tell.
            return
        live = status.daemon.runs.live
        if live and live != told:
            told = live
            left = max(0.0, drain - (anyio.current_time() - began))
            runs = "1 run" if live == 1 else f"{live} runs"
            print(f"* waiting for {runs} ({left:.0f}s)", file=sys.stderr, flush=True)
        await anyio.sleep(_REPORT_SECONDS)


async def _wait_until_gone(home: Path, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        # Nobody is left who could tell us.
        while await _is_answering(home) or await anyio.to_thread.run_sync(_is_locked, home):  # noqa: ASYNC110
            await anyio.sleep(_POLL_SECONDS)
        return
    raise RpcTimeout("the end of the daemon", seconds=seconds)


async def _is_answering(home: Path) -> bool:
    try:
        async with client.connect(home, greets=False):
            return True
    except DaemonUnreachable:
        return False


def _is_locked(home: Path) -> bool:
    return is_locked(locate_folder(home) / "lock")
