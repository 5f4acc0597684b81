"""The daemon reports when it is slow, when its queue waits and when its memory is above a limit."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon, steps_around, wait_for_text
from tests.support.otlp_collector import collecting

GAUGES = {
    "steadyrun.daemon.loop_delay",
    "steadyrun.daemon.commit_time",
    "steadyrun.daemon.queue_age",
    "steadyrun.daemon.memory",
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir()
        yield found


def configure(home: CliHome, *lines: str) -> None:
    (home.path / "config.toml").write_text("\n".join(lines))


def read_health(home: CliHome) -> dict[str, dict[str, Any]]:
    """What `status` says, by measure."""
    status = json.loads(home.run("status", "--json").stdout)
    return {each["measure"]: each for each in status["daemon"]["health"]}


def read_facts(home: CliHome, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in home.read_log() if line.startswith("{")]
    return [each for each in lines if each["fact"] == name]


def test_measures_below_their_limits_are_shown_without_a_breach(home: CliHome) -> None:
    home.up()
    eventually(lambda: read_health(home)["memory_bytes"]["value"], "the first measurement")

    health = read_health(home)

    assert {name: each["limit"] for name, each in health.items()} == {
        "loop_seconds": 2.0,
        "commit_seconds": 5.0,
        "queue_seconds": 900.0,
        "memory_bytes": 1 << 30,
    }
    assert 10 << 20 < health["memory_bytes"]["value"] < 1 << 30
    assert "!" not in home.run("status").stdout


def test_waiting_item_is_reported_once_and_again_when_it_runs(home: CliHome) -> None:
    configure(home, "[daemon]", "runs = 1", "[watch]", "queue_seconds = 0.1")
    for name in ("ada", "bea", "cy"):
        home.add_agent(name)
    home.run("pause", "cy")
    gate = home.place / "gate"
    home.up()
    home.send("ada", *steps_around(gate))
    wait_for_text(home, "one")
    home.send("cy", {"text": "paused"})
    eventually(lambda: read_health(home)["memory_bytes"]["value"], "the first measurement")
    waiting = home.send("bea", {"text": "at last"})

    eventually(lambda: read_facts(home, "health.breached"), "the report")
    assert "! the wait of the oldest item that could run is " in home.run("status").stdout
    assert read_health(home)["queue_seconds"]["since"]
    gate.touch()
    eventually(lambda: home.item(waiting).is_settled, "the item")
    eventually(lambda: read_facts(home, "health.recovered"), "the second report")

    # The item of the paused agent still waits, and does not count.
    assert read_health(home)["queue_seconds"] == {
        "measure": "queue_seconds",
        "value": 0.0,
        "limit": 0.1,
        "since": None,
    }
    [breached] = read_facts(home, "health.breached")
    [recovered] = read_facts(home, "health.recovered")
    assert (breached["measure"], breached["limit"]) == ("queue_seconds", 0.1)
    assert breached["value"] > 0.1
    assert recovered["measure"] == "queue_seconds"


def test_stopped_event_loop_is_reported(home: CliHome) -> None:
    configure(home, "[watch]", "loop_seconds = 1.5")
    daemon = home.up()
    eventually(lambda: read_health(home)["memory_bytes"]["value"], "the first measurement")
    os.kill(daemon.pid, signal.SIGSTOP)
    # No condition can be awaited: the time itself is the fault.
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(3.0)
    os.kill(daemon.pid, signal.SIGCONT)

    [breached] = eventually(lambda: read_facts(home, "health.breached"), "the report")

    assert breached["measure"] == "loop_seconds"
    assert breached["value"] > 1.5


def test_slow_commit_is_reported_while_it_lasts(home: CliHome) -> None:
    configure(home, "[watch]", "commit_seconds = 0.5")
    home.add_agent("ada")
    home.up()
    with closing(sqlite3.connect(home.path / "steadyrun.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        sender = home.start("send", "ada", "script:[]")

        [breached] = eventually(lambda: read_facts(home, "health.breached"), "the report")
        other.execute("ROLLBACK")

    assert sender.wait(30) == 0
    assert breached["measure"] == "commit_seconds"
    assert breached["value"] > 0.5


def test_memory_above_its_limit_is_reported_once(home: CliHome) -> None:
    configure(home, "[watch]", "memory_bytes = 1")
    home.up()

    eventually(lambda: read_facts(home, "health.breached"), "the report")
    eventually(lambda: "! the memory of the daemon is " in home.run("status").stdout, "the line")

    assert [each["measure"] for each in read_facts(home, "health.breached")] == ["memory_bytes"]


def test_measures_are_exported_as_metrics(home: CliHome) -> None:
    with collecting() as collector:
        configure(home, "[telemetry]", f'endpoint = "{collector.endpoint}"')
        daemon = home.up()
        eventually(lambda: read_health(home)["memory_bytes"]["value"], "the first measurement")

        assert end_daemon(daemon, signal.SIGTERM) == 0

    assert collector.gauges.keys() == GAUGES
    assert collector.gauges["steadyrun.daemon.memory"] > 10 << 20
