"""The small daemon of the tests as a process of its own: HOME as its argument, `ready` on stdout.

With `idle` as a second argument it plays nothing. It ends at a request to stop.
"""

import fcntl
import os
import sys
from pathlib import Path

import anyio

from tests.support.fake_daemon import serve_daemon


async def main(home: Path, *, is_idle: bool) -> None:
    async with serve_daemon(home) as (_, daemon), anyio.create_task_group() as tasks:
        lock = os.open(home / "daemon" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_idle:
            tasks.start_soon(daemon.work)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await daemon.is_stopped.wait()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(lambda: main(Path(sys.argv[1]), is_idle="idle" in sys.argv[2:]))
