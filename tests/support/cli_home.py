"""A home that the real command works on, and the content of its store."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio

from steadyrun.drivers import keeper
from steadyrun.model.event import StoredEvent
from steadyrun.model.item import Item
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.stores.sqlite import SqliteStore
from tests.children.keeper_driver import eventually
from tests.support.commands import COMMAND, environment, steadyrun

TIMEOUT_SECONDS = 60.0
ALL = 100_000


class CliHome:
    """A home, its daemons and what is in its store."""

    def __init__(self, place: Path) -> None:
        self.place, self.path = place, place / "home"
        self.started: list[subprocess.Popen[str]] = []

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return steadyrun(self.path, *words)

    def up(self, *words: str) -> "subprocess.Popen[str]":
        """A daemon in the foreground, once it has said that it is up."""
        daemon = self.start("up", *words)
        assert daemon.stdout
        assert "up" in daemon.stdout.readline()
        return daemon

    def start(self, *words: str, into: Path | None = None) -> "subprocess.Popen[str]":
        """A command that goes on; what it prints can be read from a pipe, or from a file."""
        with ExitStack() as stack:
            log = stack.enter_context((self.place / "log").open("a"))
            out = stack.enter_context(into.open("w")) if into else subprocess.PIPE
            daemon = subprocess.Popen(
                [COMMAND, *words],
                env=environment(self.path),
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                text=True,
            )
        self.started.append(daemon)
        return daemon

    def add_agent(self, name: str, **flags: str) -> None:
        place = self.place / name
        place.mkdir()
        flags = {"provider": "scripted", **flags}
        given = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        done = self.run("agent", "add", name, "--home", str(place), *given)
        assert done.returncode == 0, done.stderr

    def send(self, name: str, *steps: object) -> str:
        done = self.run("send", name, "script:" + json.dumps(steps), "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    def read(self, look: Callable[[SqliteStore], Any]) -> Any:
        async def main() -> Any:
            store = await SqliteStore.open(self.path)
            try:
                return await look(store)
            finally:
                await store.close()

        return anyio.run(main)

    def item(self, item: str) -> Item:
        found: Item = self.read(lambda store: store.item(item))  # type: ignore[arg-type]
        return found

    def runs(self) -> list[Run]:
        found: list[Run] = self.read(lambda store: store.runs())
        return found

    def processes(self) -> list[Process]:
        found: list[Process] = self.read(lambda store: store.open_processes())
        return found

    def events(self) -> list[StoredEvent]:
        found: list[StoredEvent] = self.read(lambda store: store.events(limit=ALL))
        return found

    def texts(self) -> list[str]:
        return [text for each in self.events() if (text := getattr(each.event, "text", None))]

    def folders(self) -> list[str]:
        """The processes that have files."""
        return [each.name for each in (self.path / "processes").iterdir()]

    def read_log(self) -> list[str]:
        """What the daemons have told."""
        return (self.place / "log").read_text().splitlines()

    def list_approvals(self) -> list[Any]:
        """What persons are asked now."""
        found: list[Any] = json.loads(self.run("approvals", "--json").stdout)["approvals"]
        return found

    def list_live_pids(self) -> list[int]:
        """Every process that any keeper of this home has started."""
        names = [each.name for each in (self.path / "processes").glob("*")]
        return [pid for name in names for pid in keeper.find_marked(name)]


@contextmanager
def cli_home(place: Path) -> Iterator[CliHome]:
    """A home; whatever was started in it is ended afterwards."""
    found = CliHome(place)
    try:
        yield found
    finally:
        for daemon in found.started:
            if daemon.poll() is None:
                daemon.kill()
            daemon.wait(TIMEOUT_SECONDS)
            if daemon.stdout:
                daemon.stdout.close()
        left = found.run("down", "--drain", "0s")
        assert left.returncode in {0, 69}
        keeper.sweep([each.name for each in (found.path / "processes").glob("*")])


def steps_around(gate: Path) -> tuple[object, ...]:
    return ({"text": "one"}, {"until": str(gate)}, {"text": "two"})


def wait_for_text(home: CliHome, text: str) -> None:
    eventually(lambda: text in home.texts(), f"that it says {text}")


def end_daemon(daemon: "subprocess.Popen[str]", number: int) -> int:
    os.kill(daemon.pid, number)
    return daemon.wait(TIMEOUT_SECONDS)
