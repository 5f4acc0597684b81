"""Stores calls of operations in a folder, for the next daemon to execute.

A spooled call has an idempotency key, so that executing it twice is harmless. Its file is deleted
after the call. If the daemon is killed in between, the next daemon executes the call again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
from msgspec import Struct

from steadyrun.errors import InvalidUsage, SteadyrunError
from steadyrun.lib.atomic import write_file
from steadyrun.lib.safe_paths import make_directory
from steadyrun.model.ids import Ids
from steadyrun.operations.context import OperationContext
from steadyrun.operations.registry import BY_NAME, Operation

BAD = "bad"


class SpooledCall(Struct, frozen=True, forbid_unknown_fields=True):
    op: str
    input: dict[str, Any]
    key: str


class KeptCall(Struct, frozen=True):
    """A call that failed, with its error. The next daemon executes it again."""

    file: str
    code: str
    message: str


class DrainReport(Struct, frozen=True):
    """How many calls were executed, which ones failed, and which files are not valid."""

    done: int = 0
    kept: tuple[KeptCall, ...] = ()
    bad: tuple[str, ...] = ()


async def spool_call(
    home: Path, ids: Ids, op: str, request: Mapping[str, Any], *, key: str
) -> Path:
    """Write a call to the spool. The file is complete when this returns."""
    call = SpooledCall(op, dict(request), key)
    _parse_call(call)
    # Calls are executed in the order of their file names.
    name = f"{ids.make_item().removeprefix('itm_')}.json"
    return await anyio.to_thread.run_sync(_write, locate_spool(home), name, call)


async def drain_spool(context: OperationContext) -> DrainReport:
    """Execute all spooled calls, oldest first."""
    done, kept, bad = 0, [], []
    for file in await anyio.to_thread.run_sync(_list_files, locate_spool(context.home)):
        try:
            operation, request = _parse_call(await anyio.to_thread.run_sync(_read, file))
        except InvalidUsage:
            await anyio.to_thread.run_sync(_set_aside, file)
            bad.append(file.name)
            continue
        try:
            await operation.do(context, request)
        except SteadyrunError as error:
            kept.append(KeptCall(file.name, error.code, error.message))
            continue
        await anyio.to_thread.run_sync(file.unlink)
        done += 1
    return DrainReport(done, tuple(kept), tuple(bad))


def locate_spool(home: Path) -> Path:
    return home / "letters"


def _parse_call(call: SpooledCall) -> tuple[Operation, Struct]:
    """Return the operation and its request; `InvalidUsage` if it is unknown or has no key."""
    operation = BY_NAME.get(call.op)
    if operation is None:
        raise InvalidUsage(f"no operation {call.op!r}")
    if operation.idempotency == "none":
        raise InvalidUsage(f"{call.op} accepts no key, so it cannot be spooled")
    try:
        return operation, msgspec.convert({**call.input, "key": call.key}, operation.request)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{call.op}: {error}") from error


def _list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _read(file: Path) -> SpooledCall:
    try:
        return msgspec.json.decode(file.read_bytes(), type=SpooledCall)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise InvalidUsage(f"{file.name} is not a spooled call: {error}") from error


def _write(folder: Path, name: str, call: SpooledCall) -> Path:
    make_directory(folder)
    write_file(folder / name, msgspec.json.encode(call))
    return folder / name


def _set_aside(file: Path) -> None:
    aside = file.parent / BAD
    make_directory(aside)
    file.rename(aside / file.name)
