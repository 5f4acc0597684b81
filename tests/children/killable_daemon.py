"""A daemon in a process of its own, which may kill itself at a named step.

killable_daemon.py HOME [STEP]        says "up" when it takes items in
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio

from steadyrun.app.runtime import open_runtime
from steadyrun.config import load
from steadyrun.lib.task_group import task_group
from steadyrun.runtime.daemon import Daemon
from steadyrun.runtime.process_pool import Capacity
from steadyrun.store import MaintainedStore
from tests.children.adoption_steps import Steps, WatchedStore, watch_processes

KEY = b"k" * 32


async def main(home: Path, step: str | None) -> None:
    steps = Steps(step)
    watch_processes(steps)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home.parent)}
    config = load(home=home, cwd=home.parent, environ=environ)
    async with (
        open_runtime(config, kind="daemon", machine="here") as around,
        task_group() as tasks,
    ):
        store: MaintainedStore = WatchedStore(around.store, steps)
        daemon = Daemon(replace(around, store=store), tasks, capacity=Capacity(), key=KEY)
        await daemon.recover()
        os.write(1, b"up\n")
        await daemon.serve()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2] or None)
