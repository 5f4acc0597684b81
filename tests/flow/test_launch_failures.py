"""A machine that cannot start a provider for a while costs no item: the queue waits and goes on."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from steadyrun.model import event as ev
from steadyrun.providers.scripted import child
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import COMMAND, ROOT, environment
from tests.support.require import require

AGENTS, EACH = 4, 15


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir()
        configure(found, write_program(tmp_path))
        yield found


def write_program(place: Path) -> Path:
    """A program of the scripted provider that can be moved away."""
    program = place / "cli"
    entry = Path(child.__file__).with_name("__main__.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {entry} "$@"\n')
    program.chmod(0o755)
    return program


def configure(home: CliHome, program: Path, more: str = "") -> None:
    (home.path / "config.toml").write_text(
        f'[providers.moving]\nkind = "scripted"\ncommand = ["{program}"]\n{more}'
    )


def load(home: CliHome, *words: str) -> Any:
    return json.loads(home.run(*words, "--json").stdout)


def find_gate(home: CliHome, provider: str = "moving") -> dict[str, Any]:
    [gate] = [each for each in load(home, "gate")["gates"] if each["provider"] == provider]
    found: dict[str, Any] = gate
    return found


def send_many(home: CliHome, count: int, *, agents: int = AGENTS) -> list[str]:
    return [
        home.send(f"agent{number % agents}", {"text": f"answer {number}"})
        for number in range(count)
    ]


def wait_until_completed(home: CliHome, items: list[str]) -> None:
    eventually(lambda: all(home.item(item).is_settled for item in items[:1]), "the first item")
    for item in items:
        eventually(lambda item=item: home.item(item).is_settled, item)  # type: ignore[misc]
    assert {home.item(item).status for item in items} == {"completed"}


def test_queue_survives_a_program_that_is_missing_for_a_moment(home: CliHome) -> None:
    program = home.place / "cli"
    for number in range(AGENTS):
        home.add_agent(f"agent{number}", provider="moving")
    items = send_many(home, AGENTS * EACH)
    program.rename(home.place / "away")
    home.up()

    eventually(lambda: find_gate(home)["state"] == "suspect", "a suspect gate")
    eventually(lambda: find_gate(home)["state"] == "closed", "a closed gate")
    gate, [waiting, *_] = find_gate(home), load(home, "inbox")["items"]
    status = load(home, "status")
    listed = home.run("inbox").stdout
    sent = home.run("send", "agent0", "one more", "--wait", "--timeout", "1s")
    assert {home.item(item).status for item in items} <= {"queued", "running"}
    (home.place / "away").rename(program)
    wait_until_completed(home, items)

    reason = f"launch_failed: cannot start {program}: "
    assert gate["reason"].startswith(reason)
    assert (waiting["waiting"], waiting["reason"].startswith(reason)) == ("gate", True)
    assert {agent["reason"] for agent in status["agents"]} == {gate["reason"]}
    assert f"queued (gate until {gate['until'][:4]}" in sent.stderr
    assert reason in sent.stderr
    assert f"gate: {reason}" in listed
    eventually(lambda: find_gate(home)["state"] == "open", "an open gate")
    assert any('"fact":"launch.failed"' in line for line in home.read_log())
    failed = [run for run in home.runs() if run.status == "failed"]
    assert {run.stop_reason for run in failed} <= {"launch_failed"}
    # Each wait costs at most one run of each agent.
    waits = [
        each for each in home.events() if isinstance(each.event, ev.GateSuspect | ev.GateClosed)
    ]
    assert len(failed) <= AGENTS * len(waits)


def test_direct_run_gets_the_error_at_once(home: CliHome) -> None:
    (home.place / "cli").unlink()

    for _ in range(2):
        done = home.run("run", "--provider", "moving", "--json", "hello")
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["code"]) == (1, "launch_failed")


def test_failed_items_are_retried_with_one_command(home: CliHome) -> None:
    home.add_agent("ada", provider="moving")
    home.up()
    items = [home.send("ada", {"fail": {"code": "auth", "message": "no key"}}) for _ in range(3)]
    for item in items:
        eventually(lambda item=item: home.item(item).is_settled, item)  # type: ignore[misc]

    done = home.run("retry", "--failed", "ada", "--since", "1h")
    refused = home.run("retry", "--since", "1h")
    again = load(home, "retry", "--failed", "--since", "1h")["items"]

    retried = [line.split()[-3].rstrip(",") for line in done.stdout.splitlines()]
    assert (done.returncode, retried) == (0, items)
    assert refused.returncode == 2
    assert not {item["retry_of"] for item in again} & set(items)


def test_fallback_is_used_while_the_first_provider_cannot_be_started(home: CliHome) -> None:
    (home.place / "cli").chmod(0o644)
    home.add_agent("ada", provider="moving", fallback="scripted")
    home.up()

    item = home.send("ada", {"text": "by the fallback"})
    eventually(lambda: home.item(item).is_settled, "its end")

    assert home.item(item).reply == "by the fallback"
    assert "Permission denied" in find_gate(home)["reason"]


def test_item_with_a_fault_of_its_own_fails_and_closes_no_gate(home: CliHome) -> None:
    home.add_agent("ada", provider="shell")
    home.up()
    text = f"true {'x' * (200 << 10)}"
    (home.place / "text").write_text(text)
    with (home.place / "text").open() as file:
        sent = subprocess.run(
            [COMMAND, "send", "ada", "-", "--json"],
            stdin=file, env=environment(home.path), capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
    item = str(json.loads(sent.stdout)["id"])
    eventually(lambda: home.item(item).is_settled, "its end")

    failed = home.item(item)
    assert failed.error
    assert (failed.status, failed.error.code) == ("failed", "usage")
    assert find_gate(home, "shell")["state"] == "open"


def test_queue_survives_a_machine_without_processes() -> None:
    """The same file once more, as a user that has a limit: root has none."""
    # It may read this installation, wherever that is.
    rights = ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *rights]
    attempt = [*user, "sh", "-c", f"{COMMAND} --version && true"]
    is_possible = os.getuid() == 0 and shutil.which("setpriv") is not None
    is_possible = is_possible and not subprocess.run(attempt, check=False).returncode
    require("setpriv", is_possible, "no other user can run the command")
    with TemporaryDirectory(dir="/tmp") as place:
        os.chown(place, 65534, 65534)
        repeat([*user, sys.executable, __file__, "processes", place])


def repeat(command: list[str]) -> None:
    done = subprocess.run(
        command,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def starve_processes(place: Path) -> None:
    with cli_home(place) as home:
        home.path.mkdir()
        configure(home, write_program(place))
        home.add_agent("agent0", provider="moving")
        daemon = home.up()
        home.run("pause", "agent0")
        items = send_many(home, 6, agents=1)
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NPROC)
        resource.prlimit(daemon.pid, resource.RLIMIT_NPROC, (1, before[1]))
        home.run("resume", "agent0")
        eventually(lambda: "launch.failed" in "\n".join(home.read_log()), "a failed launch")
        eventually(lambda: find_gate(home)["reason"], "a closed gate")
        assert not any(home.item(item).is_settled for item in items)
        resource.prlimit(daemon.pid, resource.RLIMIT_NPROC, before)
        wait_until_completed(home, items)


def test_queue_survives_a_disk_without_inodes_or_space(tmp_path: Path) -> None:
    """The same file once more, in a namespace with a small disk of its own."""
    attempt = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    can_mount = shutil.which("unshare") is not None and (
        subprocess.run(attempt, capture_output=True, check=False).returncode == 0
    )
    require("unshare", can_mount, "no tmpfs can be mounted in a namespace of one's own")
    mount = 'mount -t tmpfs -o size=160m,nr_inodes=2000 none "$0" && exec "$@"'
    command = [sys.executable, __file__, "disk", str(tmp_path)]
    repeat(["unshare", "-rm", "sh", "-c", mount, str(tmp_path), *command])


def starve_disk(place: Path) -> None:
    with cli_home(place) as home:
        home.path.mkdir()
        configure(home, write_program(place), "[daemon]\nprocesses = 1\n")
        for number in range(2):
            home.add_agent(f"agent{number}", provider="moving")
        home.up()
        for fill in (take_inodes, take_space):
            wait_until_completed(home, send_many(home, 2, agents=2))
            ballast = fill(place / "ballast")
            items = send_many(home, 6, agents=2)
            eventually(lambda: find_gate(home)["reason"], "a closed gate")
            assert not any(home.item(item).is_settled for item in items)
            shutil.rmtree(ballast)
            wait_until_completed(home, items)


def take_inodes(folder: Path) -> Path:
    """Leave some for the store, and none for the files of a process."""
    folder.mkdir()
    names = iter(range(1 << 20))
    while os.statvfs(folder).f_favail > 3:
        (folder / str(next(names))).touch()
    return folder


def take_space(folder: Path) -> Path:
    """Leave some for the store, and too little for a process."""
    folder.mkdir()
    with (folder / "file").open("wb") as file:
        while shutil.disk_usage(folder).free > 32 << 20:
            file.write(b"x" * (1 << 20))
            file.flush()
    return folder


if __name__ == "__main__":
    {"disk": starve_disk, "processes": starve_processes}[sys.argv[1]](Path(sys.argv[2]))
