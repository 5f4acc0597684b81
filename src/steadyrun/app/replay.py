"""Replays the recorded traffic of a run or of a recording through the dialect of its provider.

Nothing is written, and no process is started.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.app.archive import RUN_FILE
from steadyrun.app.providers import has_provider, list_providers, make_dialect
from steadyrun.app.store import open_store
from steadyrun.config import Config
from steadyrun.dialect import Dialect, ProcessExit
from steadyrun.drivers import keeper_client
from steadyrun.drivers.journal.output_lines import OutputLines
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.drivers.replay import RecordedLine, read_recording, replay
from steadyrun.errors import InvalidUsage, NotFound
from steadyrun.lib.framing import Frame
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.operations.lookup import find_run
from steadyrun.stores.sqlite import DATABASE

CHUNK_BYTES = 1024 * 1024


class ExportedRun(Struct, frozen=True):
    """What a replay needs of the run in an archive."""

    provider: str


def replay_source(
    config: Config, source: str, provider: str | None
) -> Iterator[StoredEvent | LiveEvent]:
    """Yield the events of a file or a directory of that name, or of a run, without secrets.
    `provider` overrides the provider of the run. A directory is that of a process; a file has lines
    of JSON."""
    path = Path(source)
    if not path.exists():
        run = anyio.run(_find_run, config, source)
        path, provider = _find_directory(config, run), provider or run.provider
    elif path.is_dir():
        path, exported = _find_exported(path)
        provider = provider or exported
    scrubber, dialect = Scrubber(config.list_secrets()), _build_dialect(config, provider)
    last = _find_exit(path, scrubber)
    splitter = OutputLines(0, scrubber=scrubber, has_parts=dialect.takes_parts)
    events = replay(dialect, _read_lines(path, splitter), last, scrubber)
    return (replace(seen, event=scrubber.clean(seen.event)) for seen in events)


def _find_directory(config: Config, run: Run) -> Path:
    directory = config.locations.home / PROCESSES / (run.process or "none")
    if not (directory / "journal").exists():
        hint = "Raw files are kept for a limited time. A run that never started has none."
        raise NotFound("journal of", run.id, hint=hint)
    return directory


def _find_exported(path: Path) -> tuple[Path, str | None]:
    """The directory of the process and the provider, if `path` is in an unpacked archive: the
    directory of the run or that of its process. Otherwise the path itself."""
    journals = list(path.glob("*/journal")) if (path / RUN_FILE).exists() else []
    process = journals[0].parent if journals else path
    try:
        content = (process.parent / RUN_FILE).read_bytes()
        return process, msgspec.json.decode(content, type=ExportedRun).provider
    except (OSError, msgspec.DecodeError):
        # It is the directory of a process in a home, or a copy of one.
        return process, None


async def _find_run(config: Config, name: str) -> Run:
    """Find the run. A store that does not exist is not created."""
    if not name.startswith("run_") or not (config.locations.home / DATABASE).exists():
        raise NotFound("run or file", name, hint="`steadyrun runs` lists runs.")
    async with open_store(config) as store:
        return await find_run(store, name)


def _find_exit(path: Path, scrubber: Scrubber) -> ProcessExit | None:
    return keeper_client.read_exit(path, scrubber) if (path / "exit").exists() else None


def _read_lines(path: Path, splitter: OutputLines) -> Iterator[RecordedLine | Frame]:
    try:
        if path.is_dir():
            yield from _read_process(path, splitter)
        else:
            yield from read_recording(path)
    except OSError as error:
        raise InvalidUsage(f"{error.filename or path} cannot be read: {error.strerror}") from error


def _read_process(directory: Path, splitter: OutputLines) -> Iterator[RecordedLine | Frame]:
    """Yield what a process was sent and printed, in the order in which its driver saw it."""
    sent = deque(keeper_client.read_sent(directory, after=0))
    for frame in _read_journal(directory / "journal", splitter):
        while sent and sent[0].end < frame.end:
            yield RecordedLine("in", _decode(sent.popleft()))
        yield frame
    for frame in sent:
        yield RecordedLine("in", _decode(frame))


def _read_journal(journal: Path, lines: OutputLines) -> Iterator[Frame]:
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
