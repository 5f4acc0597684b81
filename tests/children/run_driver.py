"""A program that drives one run, to be killed while it does.

The first line on its stdin is an `Order`, each later line is a `Action`. It prints the run's id,
then every event as a line of JSON, and ends when nothing is left to drive.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
from msgspec import Struct

import steadyrun
from steadyrun.config import Config, ProviderSettings, load
from steadyrun.dialect import Verdict
from steadyrun.lib.task_group import task_group
from steadyrun.library import RunHandle, Steadyrun
from steadyrun.model.event_json import to_public

LONGEST_LINE = 1 << 20


class Order(Struct, frozen=True):
    """What to drive, with a real CLI: a new run, or `run`, which another program has begun."""

    home: str
    cwd: str
    environ: dict[str, str]
    provider: str
    settings: ProviderSettings
    prompt: str = ""
    wishes: dict[str, Any] = {}
    run: str | None = None


class Action(Struct, frozen=True):
    """What to do now: offer a message, allow what was asked for, or end it for a reason."""

    steer: str | None = None
    allow: str | None = None
    cancel: str | None = None


def config_of(order: Order) -> Config:
    config = load(home=Path(order.home), cwd=Path(order.cwd), environ=order.environ)
    providers = {order.provider: order.settings}
    return replace(config, settings=msgspec.structs.replace(config.settings, providers=providers))


async def drive() -> None:
    lines = _lines()
    order = msgspec.json.decode(await anext(lines), type=Order)
    async with steadyrun.open(config_of(order)) as library:
        run = await _run(library, order)
        _tell(run.id)
        async with task_group() as tasks:
            tasks.start_soon(_obey, run, lines)
            async for seen in run.events():
                _tell(to_public(seen))
            await run.result()
            tasks.cancel_scope.cancel()


async def _run(library: Steadyrun, order: Order) -> RunHandle:
    if order.run is not None:
        return await library.run(order.run)
    return await library.start(order.prompt, provider=order.provider, cwd=order.cwd, **order.wishes)


async def _obey(run: RunHandle, lines: AsyncIterator[bytes]) -> None:
    async for line in lines:
        wish = msgspec.json.decode(line, type=Action)
        if wish.steer is not None:
            await run.steer(wish.steer)
        if wish.allow is not None:
            await run.decide(wish.allow, Verdict(True))
        if wish.cancel is not None:
            await run.cancel(wish.cancel)


async def _lines() -> AsyncIterator[bytes]:
    rest = b""
    while True:
        await anyio.wait_readable(0)
        read = os.read(0, LONGEST_LINE)
        if not read:
            raise EOFError("the test that wants the run has closed stdin")
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            yield line


def _tell(what: object) -> None:
    os.write(1, msgspec.json.encode(what) + b"\n")


if __name__ == "__main__":
    anyio.run(drive)
