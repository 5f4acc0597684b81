"""Drives the fake agent with steadyrun, as any program would: through the public library.

The store is on disk, secrets are scrubbed, and the subscriber gets what was stored.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import steadyrun
from bench import agent_lines
from bench.corpus import SECRETS
from bench.measure import expect
from steadyrun.config import Config, load
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.model.event import StoredEvent
from steadyrun.providers.scripted.frames import (
    TextFrame,
    ToolEndFrame,
    ToolStartFrame,
    decode_output,
)

_LINES = frozenset({ev.TextFinal, ev.ToolStarted, ev.ToolCompleted, ev.TextDelta})


async def drive(home: Path, order: Any, stopwatch: Callable[[], Any]) -> Any:
    command = agent_lines.build_command("scripted", Path(order.lines), order.pace_seconds)
    async with steadyrun.open(write_config(home, command)) as sr:
        watch = stopwatch()
        run = await sr.start("Go.", provider="scripted", cwd=home)
        async for event in run.events():
            kind = type(event.event)
            if kind in _LINES:
                watch.events += 1
                if order.is_stamped:
                    watch.stamp(event.event.text)  # type: ignore[union-attr]
        watch.stop()
        result = await run.result()
        expect(result.status == "completed", f"the run is {result.status}: {result.error}")
        if not order.is_stamped:
            check(await read_stored(run), Path(order.lines))
    return watch.seen(result.text)


def write_config(home: Path, command: Sequence[str]) -> Config:
    """The settings of a user with a few secrets and an agent at `command`."""
    secrets = "\n".join(f'TOKEN_{n} = "{each.reveal()}"' for n, each in enumerate(SECRETS))
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f"[providers.scripted]\ncommand = {json.dumps(command)}\n"
        f"[providers.scripted.env]\n{secrets}\n"
    )
    return load(home, cwd=home, environ={"PATH": "/usr/bin:/bin"})


async def read_stored(run: RunHandle) -> list[StoredEvent]:
    return [event async for event in run.events() if isinstance(event, StoredEvent)]


def check(found: Sequence[StoredEvent], printed: Path) -> None:
    """Check that everything printed is in the record: once, in order, and without secrets."""
    lines = [decode_output(_clean(line)) for line in printed.read_bytes().splitlines()]
    wanted = [
        _make_event(each)
        for each in lines
        if isinstance(each, TextFrame | ToolStartFrame | ToolEndFrame)
    ]
    events = [each.event for each in found if type(each.event) in _LINES]
    expect(len(events) == len(wanted), f"{len(events)} of {len(wanted)} lines are in the record")
    expect(events == wanted, "other events are in the record")


def _clean(line: bytes) -> bytes:
    for secret in SECRETS:
        line = line.replace(secret.reveal().encode(), b"[redacted]")
    return line


def _make_event(printed: Any) -> ev.Event:
    match printed:
        case TextFrame(text):
            return ev.TextFinal(text)
        case ToolStartFrame(call, name, given):
            return ev.ToolStarted(call, name, given)
        case ToolEndFrame(call, name, given, output, None):
            return ev.ToolCompleted(call, name, given, output)
        case _:
            raise AssertionError(printed)
