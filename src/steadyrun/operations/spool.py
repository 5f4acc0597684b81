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


class StoredCall(Struct, frozen=True):
    """A letter that stays, and why: it is tried again by the next one who drains."""

    file: str
    code: str
    message: str


class Drained(Struct, frozen=True):
    """How many were done, which ones stay, and the files that nobody can read."""

    done: int = 0
    kept: tuple[StoredCall, ...] = ()
    bad: tuple[str, ...] = ()


async def put(home: Path, ids: Ids, op: str, given: Mapping[str, Any], *, key: str) -> Path:
    """Leave a letter. It is there, whole, when this returns."""
    letter = SpooledCall(op, dict(given), key)
    _meant(letter)
    # The order of their names is the order they are delivered in.
    name = f"{ids.item().removeprefix('itm_')}.json"
    return await anyio.to_thread.run_sync(_write, folder_of(home), name, letter)


async def drain(desk: OperationContext) -> Drained:
    """Do what the letters say, oldest first."""
    done, kept, bad = 0, [], []
    for file in await anyio.to_thread.run_sync(_letters, folder_of(desk.home)):
        try:
            operation, given = _meant(await anyio.to_thread.run_sync(_read, file))
        except InvalidUsage:
            await anyio.to_thread.run_sync(_put_aside, file)
            bad.append(file.name)
            continue
        try:
            await operation.do(desk, given)
        except SteadyrunError as error:
            kept.append(StoredCall(file.name, error.code, error.message))
            continue
        await anyio.to_thread.run_sync(file.unlink)
        done += 1
    return Drained(done, tuple(kept), tuple(bad))


def folder_of(home: Path) -> Path:
    return home / "letters"


def _meant(letter: SpooledCall) -> tuple[Operation, Struct]:
    """The operation and its input; `Usage` where nobody could do that, or not twice."""
    operation = BY_NAME.get(letter.op)
    if operation is None:
        raise InvalidUsage(f"no operation {letter.op!r}")
    if operation.idempotency == "none":
        raise InvalidUsage(f"{letter.op} takes no key, so it cannot wait in a letter")
    try:
        return operation, msgspec.convert({**letter.input, "key": letter.key}, operation.given)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{letter.op}: {error}") from error


def _letters(folder: Path) -> list[Path]:
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


def _put_aside(file: Path) -> None:
    aside = file.parent / BAD
    aside.mkdir(mode=0o700, exist_ok=True)
    file.rename(aside / file.name)
