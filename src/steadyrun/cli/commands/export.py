"""The command `export`: writes a run to an archive for a bug report, without secrets."""

import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from steadyrun.app.archive import RunArchive, read_events, write_archive
from steadyrun.app.store import open_store
from steadyrun.cli.output.format import to_json
from steadyrun.config import load, to_printable
from steadyrun.errors import InvalidUsage
from steadyrun.operations.lookup import find_run


async def export(args: Namespace) -> int:
    config = load()
    with tempfile.TemporaryFile() as events:
        async with open_store(config) as store:
            run = await find_run(store, args.run)
            await read_events(store, run, events)
            agent_name = (await store.agent(run.agent)).name
        path = Path(args.output or f"{run.id}.tar.gz")
        try:
            write_archive(path, RunArchive(config, run, agent_name), events)
        except OSError as error:
            raise InvalidUsage(f"{path} cannot be written: {error.strerror}") from error
    if run.events_pruned:
        print("steadyrun: the events of this run were pruned", file=sys.stderr)
    shown = to_printable(path)
    print(to_json({"run": run.id, "file": shown}) if args.json else shown)
    return 0
