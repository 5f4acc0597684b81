"""The command `down`: stops the daemon and waits until its socket and its lock are free."""

import sys
from argparse import Namespace
from pathlib import Path

import anyio

from steadyrun.api import client
from steadyrun.api.server import locate_lock
from steadyrun.cli.invoke import parse_request, print_answer
from steadyrun.cli.output.format import format_runs
from steadyrun.config import load
from steadyrun.errors import (
    DaemonNotAnswering,
    DaemonUnreachable,
    RpcClosed,
    RpcRefused,
    RpcTimeout,
    SteadyrunError,
    VersionMismatch,
)
from steadyrun.lib.flock import is_locked
from steadyrun.lib.task_group import task_group
from steadyrun.operations.access.caller import require_person
from steadyrun.operations.daemon import StatusRequest, StopDaemonRequest
from steadyrun.operations.documents import StatusDocument, StoppedDocument
from steadyrun.operations.registry import BY_NAME

# The time beyond the drain time: to stop runs, and to exit.
_STOP_SECONDS = 120.0
_DEFAULT_DRAIN_SECONDS = 60.0
_POLL_SECONDS = 0.05
_REPORT_SECONDS = 1.0


async def down(args: Namespace) -> int:
    home, operation = load().locations.home, BY_NAME["daemon.stop"]
    request: StopDaemonRequest = parse_request(args, operation)
    drain = _DEFAULT_DRAIN_SECONDS if request.drain is None else request.drain
    seconds = drain + _STOP_SECONDS
    await _require_answering(home)
    async with task_group() as tasks:
        if not request.keep:
            tasks.start_soon(_report_progress, home, drain)
        stopped = await stop_daemon(home, request, seconds)
        tasks.cancel_scope.cancel()
    print_answer(operation, request, stopped, as_json=args.json)
    return 0


async def _require_answering(home: Path) -> None:
    """Refuse to ask a daemon that is stopped: it would end at the moment it is continued, long
    after this command has given up."""
    try:
        async with client.connect(home):
            pass
    except (VersionMismatch, RpcRefused):
        # A daemon of another version can be stopped as well.
        pass
    except DaemonNotAnswering as silence:
        # A busy daemon may answer later, and is worth the wait.
        if silence.is_stopped:
            raise
    except DaemonUnreachable as error:
        # An agent gets the same answer whether a daemon runs or not.
        require_person(home, BY_NAME["daemon.stop"].summary)
        raise DaemonUnreachable(
            home, found=error.found, hint="Nothing is to be stopped."
        ) from error


async def stop_daemon(home: Path, request: StopDaemonRequest, seconds: float) -> StoppedDocument:
    """Stop the daemon and wait until it has ended; `DaemonUnreachable` if none runs."""
    try:
        answer: StoppedDocument = await client.call(
            home, BY_NAME["daemon.stop"], request, seconds=seconds
        )
    except RpcClosed:
        # The daemon ended before it could answer.
        answer = StoppedDocument(None, None, None)
    await _wait_until_gone(home, seconds)
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
            print(
                f"* waiting for {format_runs(live)} ({remaining:.0f}s)", file=sys.stderr, flush=True
            )
        await anyio.sleep(_REPORT_SECONDS)


async def _wait_until_gone(home: Path, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        # The daemon cannot report its own end, so this polls.
        lock = locate_lock(home)
        while await _is_answering(home) or await anyio.to_thread.run_sync(is_locked, lock):  # noqa: ASYNC110
            await anyio.sleep(_POLL_SECONDS)
        return
    raise RpcTimeout("the end of the daemon", seconds=seconds)


async def _is_answering(home: Path) -> bool:
    try:
        async with client.connect(home, greets=False):
            return True
    except DaemonUnreachable:
        return False
