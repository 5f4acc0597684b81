"""A home that an earlier version made is opened by the present version, and its agents continue.

The earlier version is commit 4a92a63, the last one before the packages were renamed. The first test
uses a home that was packed after a crash. The second starts a daemon of that commit from the
history of the repository, kills it while CLIs run, and starts the present daemon on its home.
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, steps_around
from tests.support.commands import ROOT, environment
from tests.support.require import require

EARLIER = "4a92a63"
ARCHIVE = ROOT / "tests/homes/first-layout.tar.gz"
LIMIT_SECONDS = 60
PROGRAM = "import sys; from steadyrun.__main__ import main; sys.exit(main())"
APPROVAL = {"approval": {"name": "Bash", "input": {"command": "ls"}}}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        yield found


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The sources of the earlier version, from the history of this repository."""
    packed = subprocess.run(
        ["git", "archive", EARLIER, "src"], cwd=ROOT, capture_output=True, check=False
    )
    require("history", packed.returncode == 0, f"the repository has no commit {EARLIER}")
    sources = tmp_path / "earlier"
    sources.mkdir()
    subprocess.run(["tar", "x"], cwd=sources, input=packed.stdout, check=True)
    return sources / "src"


def as_earlier(home: CliHome, sources: Path, *words: str) -> str:
    """The output of a command of the earlier version."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**environment(home.path), "PYTHONPATH": str(sources)},
        cwd=home.place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(home: CliHome, *words: str) -> Any:
    """The JSON document that a command of the present version prints."""
    done = home.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def reply(home: CliHome, item: str) -> str | None:
    """The reply of an item that has been completed; None before that."""
    [found] = [each for each in answer(home, "inbox", "--all")["items"] if each["id"] == item]
    return found["reply"] if found["status"] == "completed" else None


def open_approval(home: CliHome) -> str:
    """The one approval that is open, once there is one."""
    asked = eventually(
        lambda: [each for each in home.list_approvals() if each["status"] == "open"], "an approval"
    )
    assert [each["agent"] for each in asked] == ["bob"]
    return str(asked[0]["id"])


def test_home_of_the_first_layout_opens_and_every_agent_continues(home: CliHome) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home.place, filter="data")
    for name in ("ada", "bob", "cy"):
        (home.place / name).mkdir()
        answer(home, "agent", "set", name, "--home", str(home.place / name))
    texts = {run["text"] for run in answer(home, "runs")["runs"]}
    assert {"stored by the old version", "one", "direct"} <= texts
    [item] = [each["id"] for each in answer(home, "inbox", "bob")["items"]]

    home.up()

    # bob's CLI was killed while its approval was open: the item is retried and asks again.
    answer(home, "approve", open_approval(home))
    assert eventually(lambda: reply(home, item), "bob's reply") == "after the answer"
    for name in ("ada", "cy"):
        sent = answer(home, "send", name, 'script:[{"text":"two"}]', "--wait")
        assert (sent["status"], sent["reply"]) == ("completed", "two")


def test_running_cli_of_an_earlier_version_is_adopted(home: CliHome, earlier: Path) -> None:
    gate = home.place / "gate"
    for name in ("ada", "bob", "cy"):
        (home.place / name).mkdir()
        place = str(home.place / name)
        as_earlier(home, earlier, "agent", "add", name, "--provider", "scripted", "--home", place)
    daemon = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "up"],
        env={**environment(home.path), "PYTHONPATH": str(earlier)},
        cwd=home.place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    home.started.append(daemon)
    assert daemon.stdout
    assert "up" in daemon.stdout.readline()
    as_earlier(home, earlier, "send", "ada", 'script:[{"text":"one"}]', "--wait")
    bob, cy = home.send("bob", APPROVAL, {"text": "allowed"}), home.send("cy", *steps_around(gate))
    approval = open_approval(home)
    eventually(lambda: len(home.processes()) == 3, "three processes")
    before = {each.id: each.agent for each in home.processes()}

    daemon.kill()
    daemon.wait(LIMIT_SECONDS)
    home.up()

    gate.touch()
    answer(home, "approve", approval)
    assert eventually(lambda: reply(home, cy), "cy's reply") == "two"
    assert eventually(lambda: reply(home, bob), "bob's reply") == "allowed"
    sent = answer(home, "send", "ada", 'script:["recall"]', "--wait")
    assert len(json.loads(sent["reply"])["earlier"]) == 1
    # The runs of bob and cy ended in the processes of the earlier daemon. Only ada's idle process
    # may be replaced: a version with another system prompt launches it anew in its conversation.
    busy = {home.item(each).agent for each in (bob, cy)}
    kept = {process for process, agent in before.items() if agent in busy}
    assert len(kept) == 2
    assert kept <= {each.id for each in home.processes()}
    assert [run.status for run in home.runs()] == ["completed"] * 4
