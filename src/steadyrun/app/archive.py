"""Packs a run and the files of its process into an archive, with all secrets removed.

The files of the process keep their format, so that an unpacked archive can be replayed. Where a
secret is removed from the journal, later offsets move; the offsets in the file `sent` are adjusted.
"""

import codecs
import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import msgspec

from steadyrun.config import Config
from steadyrun.drivers import keeper
from steadyrun.drivers.keeper_client import is_cut_stderr
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.errors import Conflict
from steadyrun.model.event_json import to_public
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.operations.views import build_run_document
from steadyrun.store import Store

RUN_FILE = "run.json"
CHUNK_BYTES = 16 * 1024 * 1024
_Decoder = codecs.getincrementaldecoder("utf-8")


async def read_events(store: Store, run: Run, target: IO[bytes]) -> None:
    """Write all events of the run to `target`, one JSON document per line."""
    after = 0
    while page := await store.events(after, run=run.id):
        for event in page:
            target.write(msgspec.json.encode(to_public(event)) + b"\n")
        after = page[-1].cursor


def write_archive(path: Path, archive: "RunArchive", events: IO[bytes]) -> None:
    """Write the whole archive or nothing. An existing file is not replaced."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Conflict(f"{path} exists already", hint="Name another file with -o.") from error
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            archive.pack(tar, events)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class RunArchive:
    """The content of an archive. The same run gives the same bytes."""

    def __init__(self, config: Config, run: Run, agent_name: str) -> None:
        self._scrubber = Scrubber(config.list_secrets())
        self._run, self._agent_name = run, agent_name
        self._directory = config.locations.home / PROCESSES / (run.process or "none")

    def pack(self, tar: tarfile.TarFile, events: IO[bytes]) -> None:
        document = msgspec.json.encode(build_run_document(self._run, self._agent_name))
        self._add(tar, RUN_FILE, io.BytesIO(document + b"\n"))
        events.seek(0)
        self._add(tar, "events.jsonl", events)
        frames = self._read_frames()
        moved = self._add_file(tar, "journal", sorted({at for _, _, at, _ in frames}))
        if frames:
            sent = b"".join(
                self._encode_sent(n, key, moved.get(at, at), raw) for n, key, at, raw in frames
            )
            self._add_member(tar, f"{self._run.process}/sent", io.BytesIO(sent))
        for name in ("stderr", "exit"):
            self._add_file(tar, name, [])

    def _read_frames(self) -> list[tuple[int, str, int, bytes]]:
        try:
            return keeper.read_sent((self._directory / "sent").read_bytes())
        except FileNotFoundError:
            return []

    def _encode_sent(self, number: int, key: str, at: int, raw: bytes) -> bytes:
        body: bytes = self._scrubber.clean(raw)
        header = {"n": number, "key": key, "at": at, "size": len(body)}
        return json.dumps(header, separators=(",", ":")).encode() + b"\n" + body + b"\n"

    def _add_file(self, tar: tarfile.TarFile, name: str, cuts: list[int]) -> dict[int, int]:
        try:
            with (self._directory / name).open("rb") as source:
                is_cut = name == "stderr" and is_cut_stderr(os.fstat(source.fileno()).st_size)
                return self._add(tar, f"{self._run.process}/{name}", source, cuts, is_cut=is_cut)
        except FileNotFoundError:
            return {}

    def _add(
        self,
        tar: tarfile.TarFile,
        name: str,
        source: IO[bytes],
        cuts: Iterable[int] = (),
        *,
        is_cut: bool = False,
    ) -> dict[int, int]:
        with tempfile.TemporaryFile() as clean:
            moved = copy_scrubbed(self._scrubber, source, clean, cuts, is_cut=is_cut)
            self._add_member(tar, name, clean)
        return moved

    def _add_member(self, tar: tarfile.TarFile, name: str, clean: IO[bytes]) -> None:
        member = tarfile.TarInfo(f"{self._run.id}/{name}")
        member.size, member.mode = clean.seek(0, os.SEEK_END), 0o600
        clean.seek(0)
        tar.addfile(member, clean)


def copy_scrubbed(
    scrubber: Scrubber,
    source: IO[bytes],
    target: IO[bytes],
    cuts: Iterable[int] = (),
    *,
    is_cut: bool = False,
) -> dict[int, int]:
    """Copy without secrets. Return the new offset of each cut; a cut is the end of a line.

    `is_cut`: the source has lost its beginning, perhaps in the middle of a secret.
    """
    moved, clean = {}, scrubber.clean_end if is_cut else scrubber.clean
    for cut in (*cuts, None):
        # What may be the beginning of a secret is cleaned with the text that follows it.
        held, decoder = "", _Decoder(errors="surrogateescape")
        while piece := _read_piece(source, cut):
            text = held + decoder.decode(piece)
            end = scrubber.find_safe_end(text)
            target.write(clean(text[:end]).encode(errors="surrogateescape"))
            held, clean = text[end:], scrubber.clean
        held += decoder.decode(b"", final=True)
        target.write(clean(held).encode(errors="surrogateescape"))
        if cut is not None:
            moved[cut] = target.tell()
    return moved


def _read_piece(source: IO[bytes], until: int | None) -> bytes:
    size = CHUNK_BYTES if until is None else min(CHUNK_BYTES, until - source.tell())
    return source.read(size) if size > 0 else b""
