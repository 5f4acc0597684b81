"""An answer by command reaches a real CLI, also after its daemon was killed."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from steadyrun.drivers.keeper_client import read_sent
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import ModelAnswer, answer
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon
from tests.support.real_cli_harness import Cli, CliHarness, cli_harness, each_cli


def touches(cli: Cli, name: str) -> ModelAnswer:
    """The model makes a file by a command that must be approved."""
    return answer(cli.request_command(f"touch {name}"))


@contextmanager
def asking(place: Path, cli: Cli, script: ServerSteps) -> Iterator[tuple[CliHome, CliHarness]]:
    """A home whose agent is a real CLI that asks, as `steadyrun up` would run it."""
    with cli_harness(place, script, cli=cli) as harness, cli_home(place) as home:
        settings = harness.config.settings.providers[cli.name]
        env = {**settings.env, "HOME": str(harness.user)}
        lines = [
            f"[providers.{cli.name}]",
            f"command = {json.dumps(settings.command)}",
            f"[providers.{cli.name}.env]",
            *(f"{name} = {json.dumps(value)}" for name, value in env.items()),
        ]
        home.path.mkdir()
        (home.path / "config.toml").write_text("\n".join(lines))
        added = home.run("agent", "add", "ada", "--provider", cli.name, "--home", str(harness.cwd))
        assert added.returncode == 0, added.stderr
        yield home, harness


def question(home: CliHome) -> dict[str, Any]:
    """The one that is open, as soon as there is one."""

    def found() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(home.run("approvals", "--json").stdout)[
            "approvals"
        ]
        return listed

    eventually(lambda: len(found()) == 1, "a question")
    return found()[0]


def send(home: CliHome) -> str:
    return str(json.loads(home.run("send", "ada", "work", "--json").stdout)["id"])


def settled(home: CliHome, item: str) -> str | None:
    eventually(lambda: home.item(item).is_settled, "the end of the item")
    return home.item(item).reply


def resolved(home: CliHome) -> list[tuple[str, str]]:
    events = [each.event for each in home.events()]
    return [(each.verdict, each.by) for each in events if isinstance(each, ev.ApprovalResolved)]


def decisions(home: CliHome) -> int:
    """How many verdicts were sent to any CLI."""
    frames = [
        frame
        for directory in (home.path / "processes").glob("*")
        for frame in read_sent(directory, 0)
    ]
    return sum(frame.key.startswith("decide:") for frame in frames)


@each_cli
def test_approval_is_allowed_or_denied_by_a_command(tmp_path: Path, cli: Cli) -> None:
    script = [touches(cli, "one"), touches(cli, "two"), answer("So be it.")]
    with asking(tmp_path, cli, script) as (home, harness):
        home.up()
        item = send(home)
        first = question(home)
        approved = home.run("approve", first["id"], "--json")
        eventually(lambda: question(home)["id"] != first["id"], "the next question")
        second = question(home)
        home.run("deny", second["id"], "--reason", "not on a Monday")

        assert settled(home, item) == "So be it."
        by = json.loads(approved.stdout)["by"]
        assert resolved(home) == [("allow", by), ("deny", by)]
        assert "touch one" in json.dumps(first["tool_input"])
        assert sorted(path.name for path in harness.cwd.iterdir()) == ["one"]


@pytest.mark.parametrize("is_up_again", [False, True], ids=["before", "after"])
@each_cli
def test_verdict_reaches_the_cli_once_after_its_daemon_was_killed(
    tmp_path: Path, cli: Cli, is_up_again: bool
) -> None:
    """Given before or after the next daemon is there, it reaches the CLI that waits, once."""
    with asking(tmp_path, cli, [touches(cli, "one"), answer("Done.")]) as (home, harness):
        daemon = home.up()
        item = send(home)
        asked = question(home)
        end_daemon(daemon, signal.SIGKILL)
        if is_up_again:
            home.up()
            assert question(home)["id"] == asked["id"]
        done = home.run("approve", asked["id"], "--json")
        if not is_up_again:
            home.up()

        assert settled(home, item) == "Done."
        assert resolved(home) == [("allow", json.loads(done.stdout)["by"])]
        assert decisions(home) == 1
        assert [path.name for path in harness.cwd.iterdir()] == ["one"]
        assert len(harness.server.main_requests) == 2
        assert len({run.process for run in home.runs()}) == 1


@each_cli
def test_approval_that_the_cli_cancels_is_withdrawn(tmp_path: Path, cli: Cli) -> None:
    with asking(tmp_path, cli, [touches(cli, "one"), answer("Never said.")]) as (home, harness):
        home.up()
        item = send(home)
        asked = question(home)
        home.run("cancel", item)
        too_late = home.run("approve", asked["id"])
        [after] = json.loads(home.run("approvals", "--all", "--json").stdout)["approvals"]

        assert (too_late.returncode, after["status"]) == (5, "withdrawn")
        assert resolved(home) == [("cancelled", "provider")]
        assert list(harness.cwd.iterdir()) == []


@each_cli
def test_tool_that_is_always_allowed_requests_no_second_approval(tmp_path: Path, cli: Cli) -> None:
    script = [touches(cli, "one"), touches(cli, "one"), answer("Done.")]
    with asking(tmp_path, cli, script) as (home, harness):
        home.up()
        item = send(home)
        first = question(home)
        home.run("approve", first["id"], "--always")

        assert settled(home, item) == "Done."
        assert first["offers_always"]
        assert len(resolved(home)) == 1
        assert len(harness.server.main_requests) == 3
        assert not list(harness.cwd.rglob("settings*.json")), "it is for this conversation only"
