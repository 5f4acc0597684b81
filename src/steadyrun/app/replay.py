"""Replays the recorded traffic of a run or of a recording through the dialect of its provider.

Nothing is written, and no process is started.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import anyio
from msgspec import Struct

from steadyrun.app.providers import has_provider, list_providers, make_dialect
from steadyrun.app.store import open_store
from steadyrun.config import Config
from steadyrun.dialect import Dialect, ProcessExit
from steadyrun.drivers import keeper_client
from steadyrun.drivers.launcher import PROCESSES
from steadyrun.drivers.replay import RecordedLine, read_recording, replay
from steadyrun.errors import InvalidUsage, NotFound
from steadyrun.lib.framing import Frame, LineSplitter
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.run import Run
from steadyrun.operations.lookup import find_run
from steadyrun.stores.sqlite import DATABASE

CHUNK_BYTES = 1024 * 1024


class Recording(Struct, frozen=True):
    """What a process was sent and printed. A directory is that of a process; a file has lines of
    JSON. `provider` is None if it is not known."""

    path: Path
    provider: str | None


def find_recording(config: Config, source: str) -> Recording:
    """Find a file or a directory of that name, or the journal of a run."""
    path = Path(source)
    if path.exists():
        return Recording(path, None)
    run = anyio.run(_find_run, config, source)
    directory = config.locations.home / PROCESSES / (run.process or "none")
    if not (directory / "journal").exists():
        hint = "Raw files are kept for a limited time. A run that never started has none."
        raise NotFound("journal of", run.id, hint=hint)
    return Recording(directory, run.provider)


def replay_recording(
    config: Config, recording: Recording, provider: str | None
) -> Iterator[StoredEvent | LiveEvent]:
    """Yield the events of a recording. `provider` overrides the provider of the run."""
    dialect = _build_dialect(config, provider or recording.provider)
    return replay(dialect, _read_lines(recording.path), _find_exit(recording.path))


async def _find_run(config: Config, name: str) -> Run:
    """Find the run. A store that does not exist is not created."""
    if not name.startswith("run_") or not (config.locations.home / DATABASE).exists():
        raise NotFound("run or file", name, hint="`steadyrun runs` lists runs.")
    async with open_store(config) as store:
        return await find_run(store, name)


def _find_exit(path: Path) -> ProcessExit | None:
    return keeper_client.read_exit(path) if (path / "exit").exists() else None


def _read_lines(path: Path) -> Iterator[RecordedLine]:
    try:
        yield from read_process_lines(path) if path.is_dir() else read_recording(path)
    except OSError as error:
        raise InvalidUsage(f"{error.filename or path} cannot be read: {error.strerror}") from error


def read_process_lines(directory: Path) -> Iterator[RecordedLine]:
    """Yield what a process was sent and printed, in the order in which its driver saw it."""
    sent = deque(keeper_client.read_sent(directory, after=0))
    for frame in _read_journal(directory / "journal"):
        while sent and sent[0].end < frame.end:
            yield RecordedLine("in", _decode(sent.popleft()))
        yield RecordedLine("out", _decode(frame))
    for frame in sent:
        yield RecordedLine("in", _decode(frame))


def _read_journal(journal: Path) -> Iterator[Frame]:
    lines = LineSplitter()
    with journal.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield from lines.feed(chunk)
    rest = lines.read_rest()
    if rest:
        yield rest


def _decode(frame: Frame) -> str:
    # A recording is text: bytes that are not UTF-8 are replaced.
    return frame.raw.decode(errors="replace")


def _build_dialect(config: Config, provider: str | None) -> Dialect:
    names = ", ".join(list_providers(config))
    if provider is None:
        hint = f"Add --provider with one of: {names}"
        raise InvalidUsage("the provider of the recording is not known", hint=hint)
    if not has_provider(config, provider):
        raise NotFound("provider", provider, hint=f"There are: {names}")
    return make_dialect(config, provider)
