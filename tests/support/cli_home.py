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
        # More variables for the commands that `start` starts.
        self.variables: dict[str, str] = {}

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return steadyrun(self.path, *words)

    def up(self, *words: str) -> "subprocess.Popen[str]":
        """Start a daemon in the foreground and wait until it reports that it is up."""
        daemon = self.start("up", *words)
        assert daemon.stdout
        assert "up" in daemon.stdout.readline()
        return daemon

    def start(self, *words: str, into: Path | None = None) -> "subprocess.Popen[str]":
        """Start a command and do not wait for its end; its output goes to a pipe or a file."""
        with ExitStack() as stack:
            log = stack.enter_context((self.place / "log").open("a"))
            out = stack.enter_context(into.open("w")) if into else subprocess.PIPE
            daemon = subprocess.Popen(
                [COMMAND, *words],
                env={**environment(self.path), **self.variables},
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
        found: list[Process] = self.read(lambda store: store.processes())
        return found

    def events(self) -> list[StoredEvent]:
        found: list[StoredEvent] = self.read(_read_events)
        return found

    def texts(self) -> list[str]:
        return [text for each in self.events() if (text := getattr(each.event, "text", None))]

    def folders(self) -> list[str]:
        """The processes that have files."""
        return [each.name for each in (self.path / "processes").iterdir()]

    def read_log(self) -> list[str]:
        """The log lines of the daemons."""
        return (self.place / "log").read_text().splitlines()

    def list_approvals(self) -> list[Any]:
        """The approvals as the command lists them."""
        found: list[Any] = json.loads(self.run("approvals", "--json").stdout)["approvals"]
        return found

    def list_live_pids(self) -> list[int]:
        """Every process that any keeper of this home has started."""
        names = [each.name for each in (self.path / "processes").glob("*")]
        return [pid for name in names for pid in keeper.find_marked(name)]


async def _read_events(store: SqliteStore) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    # A page of large events is shorter than the limit.
    while page := await store.events(found[-1].cursor if found else 0, limit=ALL):
        found += page
    return found


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
