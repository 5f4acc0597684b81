"""What does recorded traffic come to? `replay` plays a run or a recording; it writes nothing."""

from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import anyio

from steadyrun.app.providers import has_provider, list_providers, make_dialect
from steadyrun.app.store import open_store
from steadyrun.cli.output import format as render
from steadyrun.config import Config, load
from steadyrun.dialect import Dialect, ProcessExit
from steadyrun.drivers import keeper_client
from steadyrun.drivers.launcher import PROCESSES
from steadyrun.drivers.replay import RecordedLine, read_recording
from steadyrun.drivers.replay import replay as play
from steadyrun.errors import InvalidUsage, NotFound
from steadyrun.lib.framing import Frame, Lines
from steadyrun.model.event import LiveEvent, StoredEvent, TextDelta, ThinkingDelta
from steadyrun.model.event_json import public
from steadyrun.model.run import Run
from steadyrun.operations.lookup import find_run
from steadyrun.stores.sqlite import DATABASE

CHUNK_BYTES = 1024 * 1024


def replay(args: Namespace) -> int:
    config, path = load(), Path(args.source)
    lines, provider, last = (
        (_read_recorded(path), args.provider, _find_exit(path))
        if path.exists()
        else _read_stored(config, args.source, args.provider)
    )
    for seen in play(_build_dialect(config, provider), lines, last):
        _print(seen, as_json=args.jsonl)
    return 0


def _find_exit(path: Path) -> ProcessExit | None:
    return keeper_client.read_exit(path) if (path / "exit").exists() else None


def _read_recorded(path: Path) -> Iterator[RecordedLine]:
    """The lines of a file, or of a process's directory, such as an export has."""
    try:
        yield from read_process_lines(path) if path.is_dir() else read_recording(path)
    except OSError as error:
        raise InvalidUsage(f"{error.filename or path} cannot be read: {error.strerror}") from error


def _read_stored(
    config: Config, name: str, provider: str | None
) -> tuple[Iterator[RecordedLine], str, ProcessExit | None]:
    run = anyio.run(_find_run, config, name)
    directory = config.places.home / PROCESSES / (run.process or "none")
    if not (directory / "journal").exists():
        hint = "Raw files are kept for a time only; a run that never started has none."
        raise NotFound("journal of", run.id, hint=hint)
    return read_process_lines(directory), provider or run.provider, _find_exit(directory)


async def _find_run(config: Config, name: str) -> Run:
    """The run of that name. The store is opened only if there is one: nothing is written."""
    if not name.startswith("run_") or not (config.places.home / DATABASE).exists():
        raise NotFound("run or file", name, hint="`steadyrun runs` lists runs.")
    async with open_store(config) as store:
        return await find_run(store, name)


def read_process_lines(directory: Path) -> Iterator[RecordedLine]:
    """What a process was told and printed, in the order in which its driver saw it."""
    sent = deque(keeper_client.read_sent(directory, after=0))
    for frame in _read_journal(directory / "journal"):
        while sent and sent[0].end < frame.end:
            yield RecordedLine("in", _decode(sent.popleft()))
        yield RecordedLine("out", _decode(frame))
    for frame in sent:
        yield RecordedLine("in", _decode(frame))


def _read_journal(journal: Path) -> Iterator[Frame]:
    lines = Lines()
    with journal.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield from lines.feed(chunk)
    rest = lines.rest()
    if rest:
        yield rest


def _decode(frame: Frame) -> str:
    # A recording is text: bytes that are none cannot come back as they were.
    return frame.raw.decode(errors="replace")


def _build_dialect(config: Config, provider: str | None) -> Dialect:
    known = ", ".join(list_providers(config))
    if provider is None:
        raise InvalidUsage("whose traffic is it?", hint=f"Add --provider; there are: {known}")
    if not has_provider(config, provider):
        raise NotFound("provider", provider, hint=f"There are: {known}")
    return make_dialect(config, provider)


def _print(seen: StoredEvent | LiveEvent, *, as_json: bool) -> None:
    if as_json:
        print(render.to_json({**public(seen), "cursor": None}))
    elif not isinstance(seen.event, TextDelta | ThinkingDelta):
        print(render.format_event(seen))
