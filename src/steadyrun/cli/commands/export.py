"""How does a run travel into a bug report? Packed whole, its secrets taken out.

The files of its process stay what they are, so that they can be replayed: where a secret was taken
out of the journal, what was sent is moved with it.
"""

import gzip
import io
import json
import os
import tarfile
import tempfile
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import anyio

from steadyrun.app.store import open_store
from steadyrun.cli.output import format as render
from steadyrun.config import Config, load, printable
from steadyrun.drivers import keeper
from steadyrun.drivers.launcher import PROCESSES
from steadyrun.errors import Conflict, InvalidUsage
from steadyrun.model.event_json import public
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.operations.documents import build_run_document
from steadyrun.operations.lookup import find_run
from steadyrun.store import Store

CHUNK_BYTES = 16 * 1024 * 1024


def export(args: Namespace) -> int:
    config = load()
    with tempfile.TemporaryFile() as events:
        run, agent_name = anyio.run(_read, config, args.run, events)
        path = Path(args.output or f"{run.id}.tar.gz")
        try:
            _write(path, RunArchive(config, run, agent_name), events)
        except OSError as error:
            raise InvalidUsage(f"{path} cannot be written: {error.strerror}") from error
    shown = printable(path)
    print(render.to_json({"run": run.id, "file": shown}) if args.json else shown)
    return 0


async def _read(config: Config, name: str, events: IO[bytes]) -> tuple[Run, str]:
    async with open_store(config) as store:
        run = await find_run(store, name)
        await _read_events(store, run, events)
        return run, (await store.agent(run.agent)).name


async def _read_events(store: Store, run: Run, events: IO[bytes]) -> None:
    after = 0
    while page := await store.events(after, run=run.id):
        for event in page:
            events.write(render.to_json(public(event)).encode() + b"\n")
        after = page[-1].cursor


def _write(path: Path, parcel: "RunArchive", events: IO[bytes]) -> None:
    """Write the archive, or nothing: one that is there already stays as it is."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Conflict(f"{path} exists already", hint="Name another file with -o.") from error
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            parcel.pack(archive, events)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class RunArchive:
    """What of a run is packed. The same run gives the same bytes."""

    def __init__(self, config: Config, run: Run, agent_name: str) -> None:
        self._scrubber = Scrubber(config.secrets())
        self._run, self._agent_name = run, agent_name
        self._directory = config.places.home / PROCESSES / (run.process or "none")

    def pack(self, archive: tarfile.TarFile, events: IO[bytes]) -> None:
        document = render.to_json(build_run_document(self._run, self._agent_name))
        self._add(archive, "run.json", io.BytesIO(document.encode() + b"\n"))
        events.seek(0)
        self._add(archive, "events.jsonl", events)
        frames = self._read_frames()
        moved = self._add_file(archive, "journal", sorted({at for _, _, at, _ in frames}))
        if frames:
            sent = b"".join(
                self._encode_sent(n, key, moved.get(at, at), raw) for n, key, at, raw in frames
            )
            self._add_member(archive, f"{self._run.process}/sent", io.BytesIO(sent))
        for name in ("stderr", "exit"):
            self._add_file(archive, name, [])

    def _read_frames(self) -> list[tuple[int, str, int, bytes]]:
        try:
            return keeper.read_sent((self._directory / "sent").read_bytes())
        except FileNotFoundError:
            return []

    def _encode_sent(self, number: int, key: str, at: int, raw: bytes) -> bytes:
        body: bytes = self._scrubber.clean(raw)
        header = {"n": number, "key": key, "at": at, "size": len(body)}
        return json.dumps(header, separators=(",", ":")).encode() + b"\n" + body + b"\n"

    def _add_file(self, archive: tarfile.TarFile, name: str, cuts: list[int]) -> dict[int, int]:
        try:
            with (self._directory / name).open("rb") as source:
                return self._add(archive, f"{self._run.process}/{name}", source, cuts)
        except FileNotFoundError:
            return {}

    def _add(
        self, archive: tarfile.TarFile, name: str, source: IO[bytes], cuts: Iterable[int] = ()
    ) -> dict[int, int]:
        with tempfile.TemporaryFile() as clean:
            moved = copy_scrubbed(self._scrubber, source, clean, cuts)
            self._add_member(archive, name, clean)
        return moved

    def _add_member(self, archive: tarfile.TarFile, name: str, clean: IO[bytes]) -> None:
        member = tarfile.TarInfo(f"{self._run.id}/{name}")
        member.size, member.mode = clean.seek(0, os.SEEK_END), 0o600
        clean.seek(0)
        archive.addfile(member, clean)


def copy_scrubbed(
    scrubber: Scrubber, source: IO[bytes], target: IO[bytes], cuts: Iterable[int] = ()
) -> dict[int, int]:
    """Copy without secrets; return where each cut, the end of a line, is afterwards."""
    moved = {}
    for cut in (*cuts, None):
        while piece := _read_lines(source, cut):
            target.write(scrubber.clean(piece))
        if cut is not None:
            moved[cut] = target.tell()
    return moved


def _read_lines(source: IO[bytes], until: int | None) -> bytes:
    """As many whole lines as are good to search at once: a secret may have several."""
    size = CHUNK_BYTES if until is None else min(CHUNK_BYTES, until - source.tell())
    piece = source.read(size) if size > 0 else b""
    is_cut = piece and not piece.endswith(b"\n") and source.tell() != until
    return piece + source.readline() if is_cut else piece
