"""A program that forks daemons, to be killed.

It reads an `Order` from each line of stdin, forks a process that executes it, and prints its states
on stdout, one `StateReport` a line. Forking is faster than a new Python process for each kill.
Several may run at a time.
"""

import gc
import os
import select
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from msgspec import Struct

from steadyrun.app.daemon import open_daemon
from steadyrun.app.runtime import open_runtime
from steadyrun.config import Config, load
from steadyrun.errors import ProviderClosed
from steadyrun.lib.task_group import task_group
from steadyrun.library import Steadyrun
from steadyrun.model.secret import Scrubber
from steadyrun.runtime import daemon as daemon_module
from steadyrun.runtime.agent import recorder
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.runtime.log import log_to_stderr
from tests.children.chaos_steps import ChaosSteps, watch

LOG = "daemon.log"


class Order(Struct, frozen=True):
    """What to be, in which home; and where to be struck: at a point, or at the n-th step.

    A daemon serves until it is stopped. A direct one runs `prompt` without an agent, and ends.
    """

    number: int
    home: str
    kind: Literal["daemon", "direct"] = "daemon"
    point: str | None = None
    step: int | None = None
    then: Literal["kill", "stop"] = "kill"
    prompt: str = ""


class StateReport(Struct, frozen=True):
    """What has become of an order: begun, up, struck at a point, or ended."""

    number: int
    what: Literal["begun", "up", "struck", "ended"]
    pid: int = 0
    point: str = ""
    # How it ended: killed by a signal, or with a problem, or well.
    signal: int | None = None
    problem: str = ""
    points: dict[str, int] = {}


def print_report(word: StateReport) -> None:
    """One line, in one piece: several write to the same pipe."""
    os.write(1, msgspec.json.encode(word) + b"\n")


async def be_daemon(order: Order, config: Config) -> None:
    async with open_daemon(config) as daemon:
        print_report(StateReport(order.number, "up", os.getpid()))
        await daemon.wait_until_stopped()


async def be_direct(order: Order, config: Config) -> None:
    async with (
        open_runtime(config, kind="direct", machine=os.uname().nodename) as around,
        task_group() as tasks,
    ):
        library = Steadyrun(DirectRuns(around, tasks))
        print_report(StateReport(order.number, "up", os.getpid()))
        # Another run may have met a limit since then.
        with suppress(ProviderClosed):
            work = Path(order.home).parent / "work"
            run = await library.start(order.prompt, provider="scripted", cwd=work)
            await run.result()
        tasks.cancel_scope.cancel()


_KINDS: dict[str, Callable[[Order, Config], Awaitable[None]]] = {
    "daemon": be_daemon,
    "direct": be_direct,
}


def _be(order: Order) -> None:
    """In the child: never returns."""
    place, problem = Path(order.home).parent, ""
    log = os.open(place / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def struck(point: str) -> None:
        print_report(StateReport(order.number, "struck", os.getpid(), point))

    steps = ChaosSteps(struck, order.point, order.step, then=order.then, home=Path(order.home))
    try:
        watch(steps)
        # Shorter than in production, so that a short scenario has heartbeats and several writes of
        # one long output.
        daemon_module.HEARTBEAT_SECONDS = 1.0
        recorder._MOST_UNWRITTEN = 4096
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
        config = load(home=Path(order.home), cwd=place, environ=environ)
        with ExitStack() as stack:
            stack.enter_context(log_to_stderr(Scrubber(())))
            anyio.run(_KINDS[order.kind], order, config)
    except BaseException:  # noqa: BLE001 (whatever it is, the test must see it)
        problem = traceback.format_exc()[-3000:]
    points = {} if problem else dict(steps.seen)
    print_report(StateReport(order.number, "ended", os.getpid(), problem=problem, points=points))
    os._exit(0)


class Forks:
    """The children of this process."""

    def __init__(self) -> None:
        self._living: dict[int, tuple[int, int]] = {}

    def fork(self, order: Order) -> None:
        pid = os.fork()
        if pid == 0:
            for pidfd in self._living:
                os.close(pidfd)
            _be(order)
        self._living[os.pidfd_open(pid)] = pid, order.number
        print_report(StateReport(order.number, "begun", pid))

    def serve(self) -> None:
        """Serve until the end of stdin."""
        rest = b""
        while True:
            ready, _, _ = select.select([0, *self._living], [], [])
            for pidfd in set(ready) - {0}:
                self._bury(pidfd)
            if 0 in ready:
                read = os.read(0, 1 << 16)
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    self.fork(msgspec.json.decode(line, type=Order))

    def _bury(self, pidfd: int) -> None:
        pid, number = self._living.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            print_report(StateReport(number, "ended", pid, signal=os.WTERMSIG(status)))


if __name__ == "__main__":
    gc.freeze()  # A collection would touch, and so copy, all that is shared with the forked.
    Forks().serve()
    sys.exit(0)
