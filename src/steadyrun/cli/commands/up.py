"""The command `up`: runs the daemon in the foreground, or starts it in the background."""

import os
import signal
import subprocess
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from steadyrun.api import client
from steadyrun.api.server import locate_folder
from steadyrun.app.daemon import RunningDaemon, open_daemon
from steadyrun.cli.output.format import to_json
from steadyrun.cli.service_manager import ServiceManager
from steadyrun.config import Config, load
from steadyrun.errors import DaemonNotAnswering, DaemonRunning, DaemonUnreachable, StartFailed
from steadyrun.lib.safe_paths import make_directory, open_own
from steadyrun.lib.task_group import task_group
from steadyrun.model.secret import Scrubber
from steadyrun.operations.access.caller import require_person
from steadyrun.operations.daemon import StatusRequest
from steadyrun.operations.documents import StatusDocument
from steadyrun.operations.registry import BY_NAME
from steadyrun.runtime.log import log_to_stderr

LOG = "log"
# How long a detached daemon may take to answer; it may have many processes to recover.
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_MOST_CHARACTERS, _SEARCHED_CHARACTERS = 2000, 65_536


async def up(args: Namespace) -> int:
    config = load()
    require_person(config.locations.home, "run the daemon")
    return await (_detach if args.detach else _serve)(config, args)


# -- foreground


async def _serve(config: Config, args: Namespace) -> int:
    for_people = sys.stderr.isatty() and not args.json
    with log_to_stderr(Scrubber(config.list_secrets()), for_people=for_people):
        manager = ServiceManager(config.environ)
        async with task_group() as reports:
            reports.start_soon(manager.serve)
            async with open_daemon(config) as daemon, task_group() as tasks:
                tasks.start_soon(partial(_handle_signals, daemon, tasks, as_json=args.json))
                _report_start(daemon, manager, as_json=args.json)
                await daemon.wait_until_stopped()
                tasks.cancel_scope.cancel()
                manager.report_end()
            reports.cancel_scope.cancel()
    if not args.json:
        print("* down", flush=True)
    return 0


def _report_start(daemon: RunningDaemon, manager: ServiceManager, *, as_json: bool) -> None:
    print(to_json(daemon.describe()) if as_json else _format_greeting(daemon), flush=True)
    manager.report_ready(lambda: _format_load(daemon))


def _format_load(daemon: RunningDaemon) -> str:
    """The state of the daemon, for `systemctl status`."""
    state = daemon.describe()
    draining = "; no new run starts" if state.is_draining else ""
    breached = ", ".join(each.measure for each in state.health if each.since)
    above = f"; above its limit: {breached}" if breached else ""
    return f"{state.runs.live} of {state.runs.most} runs{draining}{above}"


def _format_greeting(daemon: RunningDaemon) -> str:
    state, lanes = daemon.describe(), daemon.recovered_lanes
    adopted = f", {lanes} recovered" if lanes else ""
    return f"* up: {state.home}, process {state.pid}{adopted}; Ctrl-C stops it"


async def _handle_signals(daemon: RunningDaemon, tasks: TaskGroup, *, as_json: bool) -> None:
    """The first signal waits for current runs, further ones do not."""
    seconds: float | None = None
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if seconds is None and not as_json and daemon.describe().runs.live:
                print("* waiting for current runs; repeat to stop them now", flush=True)
            tasks.start_soon(partial(daemon.stop, seconds, keep=False))
            seconds = 0.0


# -- background


async def _detach(config: Config, args: Namespace) -> int:
    home = config.locations.home
    try:
        status = await client.call(home, BY_NAME["status"], StatusRequest())
    except DaemonNotAnswering:
        raise
    except DaemonUnreachable:
        pass
    else:
        raise DaemonRunning(home, pid=status.daemon.pid)
    log = locate_folder(home) / LOG
    child = await anyio.to_thread.run_sync(_spawn, log)
    try:
        status = await _wait_until_started(home, child)
    except TimeoutError:
        why = _read_last_line(log, Scrubber(config.list_secrets()))
        raise StartFailed(why, log=log, code=child.returncode) from None
    if args.json:
        print(to_json(status.daemon))
    else:
        print(f"* up: {home}, process {status.daemon.pid}; steadyrun down stops it, log in {log}")
    return 0


def _spawn(log: Path) -> "subprocess.Popen[bytes]":
    make_directory(log.parent)
    descriptor = open_own(log, os.O_WRONLY | os.O_APPEND)
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


async def _wait_until_started(home: Path, child: "subprocess.Popen[bytes]") -> StatusDocument:
    """Wait for the daemon; `TimeoutError` if it has ended or does not answer."""
    with anyio.move_on_after(_START_SECONDS):
        while child.poll() is None:
            status = await _load_status(home)
            if status is not None and status.daemon.pid == child.pid:
                return status
            await anyio.sleep(_POLL_SECONDS)
    child.poll()
    raise TimeoutError


async def _load_status(home: Path) -> StatusDocument | None:
    try:
        status: StatusDocument = await client.call(home, BY_NAME["status"], StatusRequest())
    except DaemonUnreachable:
        return None
    return status


def _read_last_line(log: Path, scrubber: Scrubber) -> str:
    """Read the last line of the log, without secrets. An error is one line of JSON."""
    text = scrubber.clean_end(f"\n{log.read_text(errors='replace')}"[-_SEARCHED_CHARACTERS:])
    line = text.rstrip().rpartition("\n")[2][-_MOST_CHARACTERS:]
    try:
        document = msgspec.json.decode(line, type=dict[str, dict[str, object]])
    except msgspec.DecodeError:
        return line
    return str(document.get("error", {}).get("message", line))
