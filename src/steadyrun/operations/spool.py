"""What could not be delivered while no daemon was there? It waits in a folder for the next one.

A letter is an operation with a key, so that delivering it twice is harmless: it is deleted after it
was done, and whoever is killed in between does it again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
from msgspec import Struct

from steadyrun.errors import InvalidUsage, SteadyrunError
from steadyrun.lib.atomic import write_file
from steadyrun.model.ids import Ids
from steadyrun.operations.context import OperationContext
from steadyrun.operations.registry import BY_NAME, Operation

BAD = "bad"


class SpooledCall(Struct, frozen=True, forbid_unknown_fields=True):
    op: str
    input: dict[str, Any]
    key: str


class KeptCall(Struct, frozen=True):
    """A letter that stays, and why: it is tried again by the next one who drains."""

    file: str
    code: str
    message: str


class DrainReport(Struct, frozen=True):
    """How many were done, which ones stay, and the files that nobody can read."""

    done: int = 0
    kept: tuple[KeptCall, ...] = ()
    bad: tuple[str, ...] = ()


async def spool_call(home: Path, ids: Ids, op: str, given: Mapping[str, Any], *, key: str) -> Path:
    """Leave a letter. It is there, whole, when this returns."""
    letter = SpooledCall(op, dict(given), key)
    _parse_call(letter)
    # The order of their names is the order they are delivered in.
    name = f"{ids.item().removeprefix('itm_')}.json"
    return await anyio.to_thread.run_sync(_write, locate_spool(home), name, letter)


async def drain_spool(desk: OperationContext) -> DrainReport:
    """Do what the letters say, oldest first."""
    done, kept, bad = 0, [], []
    for file in await anyio.to_thread.run_sync(_list_files, locate_spool(desk.home)):
        try:
            operation, given = _parse_call(await anyio.to_thread.run_sync(_read, file))
        except InvalidUsage:
            await anyio.to_thread.run_sync(_set_aside, file)
            bad.append(file.name)
            continue
        try:
            await operation.do(desk, given)
        except SteadyrunError as error:
            kept.append(KeptCall(file.name, error.code, error.message))
            continue
        await anyio.to_thread.run_sync(file.unlink)
        done += 1
    return DrainReport(done, tuple(kept), tuple(bad))


def locate_spool(home: Path) -> Path:
    return home / "letters"


def _parse_call(letter: SpooledCall) -> tuple[Operation, Struct]:
    """The operation and its input; `Usage` where nobody could do that, or not twice."""
    operation = BY_NAME.get(letter.op)
    if operation is None:
        raise InvalidUsage(f"no operation {letter.op!r}")
    if operation.idempotency == "none":
        raise InvalidUsage(f"{letter.op} takes no key, so it cannot wait in a letter")
    try:
        return operation, msgspec.convert({**letter.input, "key": letter.key}, operation.request)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{letter.op}: {error}") from error


def _list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _read(file: Path) -> SpooledCall:
    try:
        return msgspec.json.decode(file.read_bytes(), type=SpooledCall)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise InvalidUsage(f"{file.name} is no letter: {error}") from error


def _write(folder: Path, name: str, letter: SpooledCall) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(folder / name, msgspec.json.encode(letter))
    return folder / name


def _set_aside(file: Path) -> None:
    aside = file.parent / BAD
    aside.mkdir(mode=0o700, exist_ok=True)
    file.rename(aside / file.name)
