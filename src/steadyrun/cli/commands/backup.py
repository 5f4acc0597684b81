"""The commands `backup` and `restore`: copy a home to one file, and put the copy in its place."""

from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from steadyrun.app.backups.backup import BackupDocument, write_backup
from steadyrun.app.backups.restore import RestoreDocument
from steadyrun.app.backups.restore import restore as restore_home
from steadyrun.cli.commands.down import stop_daemon
from steadyrun.cli.output.format import sanitize, to_json
from steadyrun.config import locate
from steadyrun.errors import DaemonUnreachable
from steadyrun.operations.access.caller import require_person
from steadyrun.operations.daemon import StopDaemonRequest

# How long a daemon may take to stop its runs.
_STOP_SECONDS = 120.0


async def make_backup(args: Namespace) -> int:
    home, file = locate().home, Path(args.file)
    require_person(home, "write a backup")
    done = await anyio.to_thread.run_sync(lambda: write_backup(home, file, replaces=args.force))
    if args.json:
        print(to_json(done))
    else:
        _print_backup(done)
    return 0


def _print_backup(done: BackupDocument) -> None:
    settings = ", ".join(done.settings) or "none"
    print(f"* {sanitize(done.file)}: {done.bytes} bytes, {done.attachments} attached files")
    print(f"  settings: {sanitize(settings)}")
    for name in done.left_out:
        print(f"  left out, because it is a link or damaged: {sanitize(name)}")


async def restore(args: Namespace) -> int:
    home = locate().home
    require_person(home, "restore a backup")
    if args.stop:
        # What runs now is not in the restored store: there is nothing to wait for.
        with suppress(DaemonUnreachable):
            await stop_daemon(home, StopDaemonRequest(drain=0.0), _STOP_SECONDS)
    done = await restore_home(home, Path(args.file), stops=args.stop)
    if args.json:
        print(to_json(done))
    else:
        _print_restore(done)
    return 0


def _print_restore(done: RestoreDocument) -> None:
    made = f"made at {done.created_at:%Y-%m-%d %H:%M:%S} UTC by steadyrun {done.version}"
    print(f"* restored from {sanitize(done.file)}, {made}")
    if done.replaced:
        print(f"  the old store is kept: {sanitize(done.replaced)}")
    for name in done.kept:
        print(f"  not changed, it differs from the backup: {sanitize(name)}")
    for process in done.set_aside:
        print(f"  set aside, it did more than the backup has: {sanitize(process)}")
