"""The command `export`: writes a run to an archive for a bug report, without secrets."""

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import IO

import anyio

from steadyrun.app.archive import RunArchive, read_events, write_archive
from steadyrun.app.store import open_store
from steadyrun.cli.output.format import to_json
from steadyrun.config import Config, load, to_printable
from steadyrun.errors import InvalidUsage
from steadyrun.model.run import Run
from steadyrun.operations.lookup import find_run


def export(args: Namespace) -> int:
    config = load()
    with tempfile.TemporaryFile() as events:
        run, agent_name = anyio.run(_read, config, args.run, events)
        path = Path(args.output or f"{run.id}.tar.gz")
        try:
            write_archive(path, RunArchive(config, run, agent_name), events)
        except OSError as error:
            raise InvalidUsage(f"{path} cannot be written: {error.strerror}") from error
    shown = to_printable(path)
    print(to_json({"run": run.id, "file": shown}) if args.json else shown)
    return 0


async def _read(config: Config, name: str, events: IO[bytes]) -> tuple[Run, str]:
    async with open_store(config) as store:
        run = await find_run(store, name)
        await read_events(store, run, events)
        return run, (await store.agent(run.agent)).name
