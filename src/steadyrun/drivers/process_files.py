"""Lists, marks and deletes the files of processes, also of those that the store does not have."""

import contextlib
import shutil
from datetime import UTC, datetime
from pathlib import Path

import anyio.to_thread

from steadyrun.drivers import aside_mark, keeper_client
from steadyrun.model.ids import ProcessId


class ProcessFiles:
    """The directories of all processes of a home. `generation` is that of the store."""

    def __init__(self, folder: Path, generation: str) -> None:
        self._folder, self._generation = folder, generation

    async def list_written(self) -> dict[ProcessId, datetime]:
        return await anyio.to_thread.run_sync(_list_written, self._folder)

    async def list_unmarked(self) -> list[ProcessId]:
        return await anyio.to_thread.run_sync(_list_unmarked, self._folder)

    async def list_running(self) -> list[ProcessId]:
        return await anyio.to_thread.run_sync(_list_running, self._folder)

    async def is_stray(self, process: ProcessId) -> bool:
        directory = self._folder / process
        return await anyio.to_thread.run_sync(_is_stray, directory, self._generation)

    async def mark_aside(self, process: ProcessId, why: str) -> None:
        # Without space there is no mark.
        with contextlib.suppress(OSError):
            await anyio.to_thread.run_sync(aside_mark.write_mark, self._folder / process, why)

    async def delete(self, process: ProcessId) -> bool:
        return await anyio.to_thread.run_sync(_delete, self._folder / process)


def _list_written(folder: Path) -> dict[ProcessId, datetime]:
    found = {}
    for directory in filter(Path.is_dir, folder.iterdir()) if folder.is_dir() else ():
        # A process whose files are created and deleted now is running.
        with contextlib.suppress(FileNotFoundError):
            times = [file.stat().st_mtime for file in (directory, *directory.iterdir())]
            found[ProcessId(directory.name)] = datetime.fromtimestamp(max(times), UTC)
    return found


def _list_unmarked(folder: Path) -> list[ProcessId]:
    found = filter(Path.is_dir, folder.iterdir()) if folder.is_dir() else ()
    return [ProcessId(each.name) for each in found if not aside_mark.has_mark(each)]


def _list_running(folder: Path) -> list[ProcessId]:
    found = filter(Path.is_dir, folder.iterdir()) if folder.is_dir() else ()
    return [ProcessId(each.name) for each in found if keeper_client.is_alive(each)]


def _is_stray(directory: Path, generation: str) -> bool:
    is_of_store = aside_mark.is_of_generation(directory, generation)
    return not is_of_store or keeper_client.is_alive(directory)


def _delete(directory: Path) -> bool:
    if keeper_client.is_alive(directory):
        return False
    shutil.rmtree(directory)
    return True
