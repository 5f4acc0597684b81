"""The command `down`: stops the daemon and waits until its socket and its lock are free."""

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

# The time beyond the drain time: to stop runs, and to exit.
_STOP_SECONDS = 120.0
_DEFAULT_DRAIN_SECONDS = 60.0
_POLL_SECONDS = 0.05
_REPORT_SECONDS = 1.0


def down(args: Namespace) -> int:
    return anyio.run(_down, args)


async def _down(args: Namespace) -> int:
    home, operation = load().locations.home, BY_NAME["daemon.stop"]
    require_person(operation)
    request: StopDaemonRequest = parse_request(args, operation)
    drain = _DEFAULT_DRAIN_SECONDS if request.drain is None else request.drain
    seconds = drain + _STOP_SECONDS
    async with task_group() as tasks:
        if not request.keep:
            tasks.start_soon(_report_progress, home, drain)
        stopped = await _stop(home, request, seconds)
        await _wait_until_gone(home, seconds)
        tasks.cancel_scope.cancel()
    print_answer(operation, request, stopped, as_json=args.json)
    return 0


async def _stop(home: Path, request: StopDaemonRequest, seconds: float) -> StoppedDocument:
    try:
        answer: StoppedDocument = await client.call(
            home, BY_NAME["daemon.stop"], request, seconds=seconds
        )
    except RpcClosed:
        # The daemon ended before it could answer.
        return StoppedDocument(None, None, None)
    return answer


async def _report_progress(home: Path, drain: float) -> None:
    """Print how many runs the daemon waits for, whenever the number changes."""
    began, reported = anyio.current_time(), 0
    while True:
        try:
            status: StatusDocument = await client.call(home, BY_NAME["status"], StatusRequest())
        except SteadyrunError:
            # The daemon has ended, or has another version: there is nothing to report.
            return
        live = status.daemon.runs.live
        if live and live != reported:
            reported = live
            remaining = max(0.0, drain - (anyio.current_time() - began))
            runs = "1 run" if live == 1 else f"{live} runs"
            print(f"* waiting for {runs} ({remaining:.0f}s)", file=sys.stderr, flush=True)
        await anyio.sleep(_REPORT_SECONDS)


async def _wait_until_gone(home: Path, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        # The daemon cannot report its own end, so this polls.
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
