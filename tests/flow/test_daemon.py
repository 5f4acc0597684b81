"""The daemon starts, ends and recovers: the real command, real keepers, kill -9."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from steadyrun.drivers import keeper
from steadyrun.lib.clock import SystemClock
from steadyrun.model.ids import Ids
from steadyrun.operations.spool import spool_call
from tests.children.keeper_driver import eventually
from tests.support.cli_home import (
    TIMEOUT_SECONDS,
    CliHome,
    cli_home,
    end_daemon,
    steps_around,
    wait_for_text,
)
from tests.support.commands import ROOT, environment


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        yield found


def test_message_sent_without_a_daemon_is_completed_by_the_next_one(home: CliHome) -> None:
    home.add_agent("ada")
    item = home.send("ada", {"text": "done"})
    assert home.item(item).status == "queued"

    daemon = home.up()
    eventually(lambda: home.item(item).status == "completed", "its end")

    assert home.item(item).reply == "done"
    assert end_daemon(daemon, signal.SIGTERM) == 0
    assert home.list_live_pids() == []
    assert home.processes() == []


def test_files_of_old_runs_are_deleted_and_their_record_is_kept(home: CliHome) -> None:
    home.path.mkdir(exist_ok=True)
    # A tenth of a second, nearly.
    (home.path / "config.toml").write_text("[daemon]\nkeep_days = 0.000001\nprocesses = 1\n")
    home.add_agent("ada")
    home.add_agent("bo")
    daemon = home.up()
    old = home.send("ada", {"text": "old"})
    eventually(lambda: home.item(old).is_settled, "its end")
    kept = home.send("bo", {"text": "kept"})
    eventually(lambda: home.item(kept).is_settled, "its end")
    [waiting] = home.processes()
    daemon.kill()
    daemon.wait()
    [run] = [each for each in home.runs() if each.item == old]
    # A file that the daemon did not write is left alone and does no harm.
    stray = home.path / "processes" / "stray"
    stray.write_text("what is this?")
    home.up()
    eventually(lambda: len(home.folders()) == 2, "what is deleted")
    stray.unlink()

    replayed = home.run("replay", run.id)
    assert home.folders() == [waiting.id]
    assert (replayed.returncode, "kept for a limited time" in replayed.stderr) == (3, True)
    assert "old" in home.texts()


def test_second_daemon_of_a_home_is_refused(home: CliHome) -> None:
    first = home.up()

    second = home.run("up")
    third = home.run("up", "--detach", "--json")

    assert second.returncode == third.returncode == 5
    assert f"the daemon {first.pid} serves" in second.stderr
    assert json.loads(third.stdout)["error"]["code"] == "daemon_running"
    assert home.run("status").returncode == 0


def test_run_continues_after_the_daemon_was_killed(home: CliHome) -> None:
    gate = home.place / "gate"
    home.add_agent("ada")
    first = home.up()
    item = home.send("ada", *steps_around(gate))
    wait_for_text(home, "one")
    [process] = home.processes()
    end_daemon(first, signal.SIGKILL)

    assert keeper.find_marked(process.id)
    home.up()
    gate.touch()
    eventually(lambda: home.item(item).is_settled, "its end")

    assert home.item(item).status == "completed"
    assert len(home.runs()) == 1
    assert home.texts().count("one") == 1
    assert [each.seq for each in home.events()] == list(range(1, len(home.events()) + 1))


def test_daemon_starts_in_the_documented_order(home: CliHome) -> None:
    """Spooled calls first, then the time without a daemon, then the abandoned lanes."""
    home.add_agent("ada")
    home.add_agent("bo")
    daemon = home.up()
    item = home.send("ada", *steps_around(home.place / "gate"))
    wait_for_text(home, "one")
    daemon.kill()
    daemon.wait()
    closed = home.run("gate", "close", "scripted", "--for", "1h", "--reason", "we said so")
    ids = Ids(SystemClock().now)
    call = {"agent": "bo", "text": "hello"}
    anyio.run(lambda: spool_call(home.path, ids, "item.send", call, key="key"))
    before = len(home.read_log())
    home.up()
    facts = [json.loads(line)["fact"] for line in home.read_log()[before:] if line.startswith("{")]

    assert closed.returncode == 0, closed.stderr
    begun = ["letters.drained", "downtime.credited", "lane.reaped", "daemon.started"]
    assert [fact for fact in facts if fact in begun] == begun
    # The spooled message waits for its gate like every other; the run continues.
    items = json.loads(home.run("inbox", "--json").stdout)["items"]
    assert {(each["agent"], each["status"]) for each in items} == {
        ("ada", "running"), ("bo", "queued"),
    }  # fmt: skip
    (home.place / "gate").touch()
    eventually(lambda: home.item(item).status == "completed", "its end")


def test_warm_process_serves_the_next_item_after_the_daemon_was_killed(home: CliHome) -> None:
    home.add_agent("ada")
    first = home.up()
    before = home.send("ada", {"text": "one"})
    eventually(lambda: home.item(before).is_settled, "its end")
    [process] = home.processes()
    end_daemon(first, signal.SIGKILL)
    after = home.send("ada", {"text": "two"})

    home.up()
    eventually(lambda: home.item(after).is_settled, "its end")

    assert [each.id for each in home.processes()] == [process.id]
    assert {run.process for run in home.runs()} == {process.id}


@pytest.mark.parametrize("is_killed", [False, True], ids=["down waits", "down is killed"])
def test_daemon_completes_running_items_after_down(home: CliHome, is_killed: bool) -> None:
    gate = home.place / "gate"
    home.add_agent("ada")
    daemon = home.up()
    item = home.send("ada", *steps_around(gate))
    wait_for_text(home, "one")

    down = home.start("down")
    eventually(lambda: _is_draining(home), "a daemon that drains")
    if is_killed:
        down.kill()
    gate.touch()

    assert down.wait(TIMEOUT_SECONDS) == (-signal.SIGKILL if is_killed else 0)
    assert daemon.wait(TIMEOUT_SECONDS) == 0
    assert home.item(item).status == "completed"
    assert home.list_live_pids() == []


def test_down_stops_a_long_run_and_the_next_daemon_resumes_it(home: CliHome) -> None:
    gate = home.place / "gate"
    home.add_agent("ada")
    home.up()
    item = home.send("ada", *steps_around(gate))
    wait_for_text(home, "one")

    down = home.run("down", "--drain", "0s", "--json")

    assert down.returncode == 0
    assert json.loads(down.stdout) == {"stopped": 1, "kept": 0, "queued": 1}
    assert home.item(item).status == "queued"
    assert home.list_live_pids() == []
    gate.touch()
    home.up()
    eventually(lambda: home.item(item).status == "completed", "its end")
    assert [run.stop_reason for run in home.runs()] == [None, "shutdown"]


@pytest.mark.parametrize("is_adopted", [True, False])
def test_down_stops_the_run_of_a_killed_command(home: CliHome, is_adopted: bool) -> None:
    prompt = "script:" + json.dumps(steps_around(home.place / "never"))
    if not is_adopted:
        home.up()
    direct = home.start("run", "--provider", "scripted", prompt)
    wait_for_text(home, "one")
    direct.kill()
    direct.wait()
    if is_adopted:
        home.up()

    down = home.run("down", "--drain", "0s", "--json")

    assert down.returncode == 0, down.stderr
    assert json.loads(down.stdout)["stopped"] == 1
    [run] = home.runs()
    assert (run.status, run.stop_reason) == ("cancelled", "shutdown")
    assert home.list_live_pids() == []


def test_down_can_leave_running_processes_to_their_keepers(home: CliHome) -> None:
    gate = home.place / "gate"
    home.add_agent("ada")
    home.add_agent("bo")
    home.up()
    idle = home.send("bo", {"text": "idle"})
    eventually(lambda: home.item(idle).is_settled, "its end")
    item = home.send("ada", *steps_around(gate))
    wait_for_text(home, "one")

    down = home.run("down", "--keep", "--json")

    assert json.loads(down.stdout) == {"stopped": 0, "kept": 1, "queued": 0}
    [process] = home.processes()
    assert keeper.find_marked(process.id)
    gate.touch()
    home.up()
    eventually(lambda: home.item(item).status == "completed", "its end")
    assert len([run for run in home.runs() if run.item == item]) == 1


def test_ctrl_c_drains_the_daemon_and_a_second_one_ends_it(home: CliHome) -> None:
    home.add_agent("ada")
    daemon = home.up()
    home.send("ada", *steps_around(home.place / "never"))
    wait_for_text(home, "one")

    os.kill(daemon.pid, signal.SIGINT)
    assert daemon.stdout
    assert "waiting" in daemon.stdout.readline()
    assert end_daemon(daemon, signal.SIGINT) == 0
    assert home.list_live_pids() == []


def test_detached_daemon_answers_when_its_command_returns(home: CliHome) -> None:
    done = home.run("up", "--detach", "--json")
    state = json.loads(done.stdout)

    status = json.loads(home.run("status", "--json").stdout)

    assert done.returncode == 0
    assert status["daemon"]["pid"] == state["pid"]
    assert home.run("down").returncode == 0
    assert home.run("status").returncode == 69


def test_daemon_with_an_invalid_configuration_does_not_start(home: CliHome) -> None:
    home.path.mkdir(mode=0o700)
    (home.path / "config.toml").write_text('[agents.ada]\nprovider = "missing"\nhome = "."\n')

    here = home.run("up")
    detached = home.run("up", "--detach")

    assert here.returncode == 2
    assert "'missing'" in here.stderr
    assert detached.returncode == 2
    assert not (home.path / "daemon" / "socket").exists()
    (home.path / "config.toml").unlink()


def test_log_contains_no_prompt_and_no_reply(home: CliHome) -> None:
    home.add_agent("ada")
    daemon = home.up()
    item = home.send("ada", {"text": "canary-reply"})
    eventually(lambda: home.item(item).is_settled, "its end")
    end_daemon(daemon, signal.SIGTERM)

    facts = [json.loads(line) for line in (home.place / "log").read_text().splitlines()]

    assert "canary" not in (home.place / "log").read_text()
    assert [each["fact"] for each in facts if each["fact"].startswith("run.")] == [
        "run.started",
        "run.ended",
    ]
    assert not [each for each in facts if "cut" in each or each["level"] == "error"]


def test_demo_starts_a_daemon_with_a_demo_agent(home: CliHome) -> None:
    program, environ = home.place / "claude", environment(home.path)
    program.write_text("#!/bin/sh\necho '2.1.197 (Claude Code)'\n")
    program.chmod(0o755)
    environ["PATH"] = f"{home.place}:{environ['PATH']}"
    demo = subprocess.Popen(
        [sys.executable, ROOT / "scripts/demo.py"],
        env=environ,
        cwd=home.place,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    home.started.append(demo)
    assert demo.stdout
    said = _until_up(demo)

    answer = home.run("send", "demo", "say hello", "--wait")

    assert len([line for line in said if "steadyrun" in line and line.startswith("  ")]) == 3
    assert f"  claude   2.1.197    {program}\n" in said
    assert "You said: say hello" in answer.stdout
    assert end_daemon(demo, signal.SIGINT) == 0


def _until_up(daemon: "subprocess.Popen[str]") -> list[str]:
    said = []
    assert daemon.stdout
    while not (line := daemon.stdout.readline()).startswith("* up"):
        assert line, "it ended"
        said.append(line)
    return said


def test_removing_an_agent_closes_its_warm_process(home: CliHome) -> None:
    home.add_agent("ada")
    home.up()
    item = home.send("ada", {"text": "done"})
    eventually(lambda: home.item(item).is_settled, "its end")

    removed = home.run("agent", "rm", "ada")

    assert removed.returncode == 0, removed.stderr
    assert home.list_live_pids() == []
    assert home.run("send", "ada", "more").returncode == 3


def test_agent_removed_from_the_configuration_cannot_be_resumed(
    home: CliHome,
) -> None:
    place, file = home.place / "una", home.path / "config.toml"
    place.mkdir()
    home.path.mkdir(exist_ok=True)
    written = f'[agents.una]\nprovider = "scripted"\nhome = "{place}"\nbudget = {{ day = 1.0 }}\n'
    file.write_text(written)
    home.up()
    over = {"usage": {"input_tokens": 5, "output_tokens": 0, "cost_usd": 2.0}}
    home.send("una", over, {"text": "done"})
    [asked] = eventually(home.list_approvals, "a question")
    home.run("down")
    file.write_text("")
    home.up()
    waiting = home.send("una", {"text": "more"})
    resumed, all_of_them = home.run("resume", "una"), home.run("resume", "--all")
    approved = home.run("approve", asked["id"])

    assert (resumed.returncode, "not in the configuration any more" in resumed.stderr) == (5, True)
    assert all_of_them.returncode == approved.returncode == 0
    assert home.item(waiting).status == "queued"
    home.run("cancel", waiting)
    assert home.run("agent", "rm", "una").returncode == 0


def test_agent_removed_from_the_configuration_can_be_deleted(home: CliHome) -> None:
    (home.place / "ada").mkdir()
    home.path.mkdir(mode=0o700)
    config = home.path / "config.toml"
    config.write_text(f'[agents.ada]\nprovider = "scripted"\nhome = "{home.place}/ada"\n')
    end_daemon(home.up(), signal.SIGTERM)
    assert home.run("agent", "rm", "ada").returncode == 4

    config.unlink()
    home.up()

    assert '"state":"paused"' in home.run("agent", "show", "ada", "--json").stdout
    assert home.run("agent", "rm", "ada").returncode == 0


def test_waiting_command_reports_why_an_agent_could_not_start(home: CliHome) -> None:
    home.add_agent("ada")
    home.up()
    (home.place / "ada").rmdir()

    failed = home.run("send", "ada", "hello", "--wait")

    assert failed.returncode == 1
    assert f"no directory '{home.place}/ada'" in failed.stderr
    (home.place / "ada").mkdir()
    assert home.run("send", "ada", "hello", "--wait").returncode == 0


def _is_draining(home: CliHome) -> bool:
    return bool(json.loads(home.run("status", "--json").stdout)["daemon"]["is_draining"])


def test_down_without_a_daemon_does_not_advise_to_start_one(home: CliHome) -> None:
    done = home.run("down")

    assert done.returncode == 69
    assert "steadyrun up" not in done.stderr


def test_log_of_a_detached_daemon_has_only_lines_of_json(home: CliHome) -> None:
    home.add_agent("ada")
    assert home.run("up", "--detach").returncode == 0
    try:
        home.send("ada", "hang")
        eventually(lambda: any(run.started_at for run in home.runs()), "the start of the run")
    finally:
        pid = json.loads(home.run("status", "--json").stdout)["daemon"]["pid"]
        os.kill(pid, signal.SIGTERM)
        assert home.run("down", "--drain", "0s").returncode == 0

    lines = (home.path / "daemon/log").read_text().splitlines()
    assert "daemon.draining" in {json.loads(line).get("fact") for line in lines}
