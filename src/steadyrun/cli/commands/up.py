"""The command `up`: runs the daemon in the foreground, or starts it in the background."""

import os
import signal
import subprocess
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from steadyrun.api import client
from steadyrun.api.server import locate_folder
from steadyrun.app.daemon import DaemonHandle, open_daemon
from steadyrun.cli.output.format import to_json
from steadyrun.config import Config, load
from steadyrun.errors import DaemonRunning, DaemonUnreachable, StartFailed
from steadyrun.lib.task_group import task_group
from steadyrun.model.secret import Scrubber
from steadyrun.operations.daemon import StatusRequest
from steadyrun.operations.documents import StatusDocument
from steadyrun.operations.registry import BY_NAME
from steadyrun.runtime.log import log_to_stderr

LOG = "log"
# How long a detached daemon may take to answer; it may have many processes to recover.
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_MOST_CHARACTERS = 2000


def up(args: Namespace) -> int:
    config = load()
    return anyio.run(_detach if args.detach else _serve, config, args)


# -- foreground


async def _serve(config: Config, args: Namespace) -> int:
    with ExitStack() as stack:
        for_people = sys.stderr.isatty() and not args.json
        stack.enter_context(log_to_stderr(Scrubber(config.list_secrets()), for_people=for_people))
        async with open_daemon(config) as daemon, task_group() as tasks:
            tasks.start_soon(_handle_signals, daemon, tasks)
            if args.json:
                print(to_json(daemon.describe()), flush=True)
            else:
                print(_format_greeting(daemon), flush=True)
            await daemon.wait_until_stopped()
            tasks.cancel_scope.cancel()
    if not args.json:
        print("* down", flush=True)
    return 0


def _format_greeting(daemon: DaemonHandle) -> str:
    state, recovered = daemon.describe(), daemon.recovered
    adopted = f", {recovered.lanes} recovered" if recovered.lanes else ""
    return f"* up: {state.home}, process {state.pid}{adopted}; Ctrl-C stops it"


async def _handle_signals(daemon: DaemonHandle, tasks: TaskGroup) -> None:
    """The first signal waits for current runs, further ones do not."""
    seconds: float | None = None
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if seconds is None and daemon.describe().runs.live:
                print("* waiting for current runs; repeat to stop them now", flush=True)
            tasks.start_soon(_stop, daemon, seconds)
            seconds = 0.0


async def _stop(daemon: DaemonHandle, seconds: float | None) -> None:
    await daemon.stop(seconds, keep=False)


# -- background


async def _detach(config: Config, args: Namespace) -> int:
    home = config.locations.home
    if await _load_status(home) is not None:
        raise DaemonRunning(home)
    log = locate_folder(home) / LOG
    child = await anyio.to_thread.run_sync(_spawn, log)
    status = await _wait_until_started(home, child, log)
    if args.json:
        print(to_json(status.daemon))
    else:
        print(f"* up: {home}, process {status.daemon.pid}; steadyrun down stops it, log in {log}")
    return 0


def _spawn(log: Path) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # Without -P, Python would import a package `steadyrun` of the current directory.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "steadyrun", "up", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


async def _wait_until_started(
    home: Path, child: "subprocess.Popen[bytes]", log: Path
) -> StatusDocument:
    with anyio.move_on_after(_START_SECONDS):
        while child.poll() is None:
            status = await _load_status(home)
            if status is not None and status.daemon.pid == child.pid:
                return status
            await anyio.sleep(_POLL_SECONDS)
    child.poll()
    raise StartFailed(_read_last_line(log), log=log, code=child.returncode)


async def _load_status(home: Path) -> StatusDocument | None:
    try:
        status: StatusDocument = await client.call(home, BY_NAME["status"], StatusRequest())
    except DaemonUnreachable:
        return None
    return status


def _read_last_line(log: Path) -> str:
    """Read the last line of the log. An error is one line of JSON."""
    line = log.read_text(errors="replace")[-_MOST_CHARACTERS:].rstrip().rpartition("\n")[2]
    try:
        document = msgspec.json.decode(line, type=dict[str, dict[str, object]])
    except msgspec.DecodeError:
        return line
    return str(document.get("error", {}).get("message", line))
