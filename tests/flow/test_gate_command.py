"""A limit closes the gate of a provider for all runs; commands close and open it."""

import json
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

from tests.children.keeper_driver import eventually
from tests.support.cli_home import TIMEOUT_SECONDS, cli_home
from tests.support.commands import steadyrun

LIMITED = 'script:[{"rate_limit": {"resets_in": 600}}]'


def test_rate_limited_run_closes_the_gate_for_the_next_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    limited = steadyrun(home, "run", "--provider", "scripted", LIMITED)
    refused = steadyrun(home, "run", "--provider", "scripted", "--json", "say hello")
    other = steadyrun(home, "run", "--provider", "shell", "true")

    assert (limited.returncode, refused.returncode, other.returncode) == (6, 6, 0)
    error = json.loads(refused.stdout)["error"]
    assert (error["code"], error["retryable"]) == ("rate_limited", True)
    assert "scripted is closed until" in error["message"]
    runs = json.loads(steadyrun(home, "runs", "--json").stdout)["runs"]
    assert sorted(run["status"] for run in runs) == ["completed", "rate_limited"]


def test_status_and_inbox_show_until_when_the_gate_is_closed(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        first = home.send("ada", {"rate_limit": {"resets_in": 600}})
        waiting = home.run("send", "ada", "hello", "--wait", "--timeout", "2s")
        sent = home.run("send", "ada", "and this")
        shown = home.run("inbox")

        status = json.loads(home.run("status", "--json").stdout)
        [gate] = status["gates"]
        [agent] = status["agents"]
        items = json.loads(home.run("inbox", "--json").stdout)["items"]

        assert waiting.returncode == 7
        assert (gate["state"], gate["dispatchable"], gate["level"]) == ("closed", False, 0)
        assert gate["until"]
        assert agent["state"] == "gated"
        assert {item["id"] for item in items} >= {first}
        assert {(item["status"], item["waiting"]) for item in items} == {("queued", "gate")}
        assert {item["until"] for item in items} == {gate["until"]}
        until = datetime.fromisoformat(gate["until"]).strftime("%Y-%m-%d %H:%M:%SZ")
        assert waiting.stderr.count(f"queued (gate until {until})") == 1
        assert f"queued (gate until {until}) for ada" in sent.stdout
        assert shown.stdout.count(f"queued (gate until {until})") == 3


def test_waiting_command_reports_a_closed_gate_once(tmp_path: Path) -> None:
    """Also if that comes later, by a limit of the item's own run."""
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.add_agent("bob")
        home.up()
        home.run("pause", "ada")

        def waits(*words: str, why: str) -> "subprocess.Popen[str]":
            watch = home.start("send", *words, "--wait")
            eventually(lambda: f"queued ({why}" in said(), f"that {why} is printed")
            return watch

        def said() -> str:
            return (tmp_path / "log").read_text()

        paused = waits("ada", "hello", why="paused")
        home.run("resume", "ada")
        assert paused.wait(TIMEOUT_SECONDS) == 0
        limited = waits("bob", LIMITED, why="gate until 20")
        [item] = json.loads(home.run("inbox", "bob", "--json").stdout)["items"]
        home.run("cancel", item["id"])
        assert limited.wait(TIMEOUT_SECONDS) == 8
        assert (said().count("queued (paused)"), said().count("queued (gate until ")) == (1, 1)


def test_gate_is_closed_and_opened_by_commands(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def gates(*words: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(
            steadyrun(home, "gate", *words, "--json").stdout
        )["gates"]
        return found

    assert steadyrun(home, "gate").stdout == "No provider is in use yet.\n"
    [closed] = gates("close", "scripted", "--for", "10m", "--reason", "the bill")
    refused = steadyrun(home, "run", "--provider", "scripted", "say hello")
    shown = steadyrun(home, "gate").stdout
    [held] = gates("close", "scripted")
    [opened] = gates("open", "scripted")
    again = steadyrun(home, "run", "--provider", "scripted", "say hello")

    assert (closed["state"], closed["reason"], closed["dispatchable"]) == (
        "closed", "the bill", False,
    )  # fmt: skip
    assert (refused.returncode, again.returncode) == (6, 0)
    assert "the bill" in refused.stderr
    assert "the bill" in shown
    assert (held["state"], held["until"]) == ("held", None)
    assert (opened["state"], opened["dispatchable"]) == ("open", True)


def test_last_close_of_a_gate_sets_its_duration(tmp_path: Path) -> None:
    home, until = tmp_path / "home", []

    for duration in ("1h", "1m"):
        closed = steadyrun(home, "gate", "close", "scripted", "--for", duration, "--json")
        [gate] = json.loads(closed.stdout)["gates"]
        until.append(datetime.fromisoformat(gate["until"]))

    assert until[1] < until[0] - timedelta(minutes=50)


def test_invalid_gate_is_refused_by_name(tmp_path: Path) -> None:
    home = tmp_path / "home"

    unknown = steadyrun(home, "gate", "close", "cloude")
    never = steadyrun(home, "gate", "close", "scripted", "--for", "800h")
    negative = steadyrun(home, "gate", "close", "scripted", "--for=-1s")
    both = steadyrun(home, "pause", "ada", "--provider", "scripted")

    assert [each.returncode for each in (unknown, never, negative, both)] == [2, 2, 2, 2]
    assert "no provider 'cloude'" in unknown.stderr
    assert "up to 7 days" in never.stderr
    assert "expected an agent's name, --all or --provider" in both.stderr
    assert steadyrun(home, "gate").stdout == "No provider is in use yet.\n"


def test_pausing_a_provider_holds_its_agents_until_it_is_resumed(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        paused = home.run("pause", "--provider", "scripted")
        item = home.send("ada", {"text": "at last"})
        [agent] = json.loads(home.run("status", "--json").stdout)["agents"]
        resumed = home.run("resume", "--provider", "scripted")
        done = json.loads(home.run("send", "ada", "--wait", "--json", "and then").stdout)
        items = json.loads(home.run("inbox", "--all", "--json").stdout)["items"]

    closed = "closed the gate of scripted; open it with: steadyrun resume --provider scripted\n"
    assert paused.stdout == f"{closed}waits for its gate: ada\n"
    assert agent["state"] == "gated"
    assert resumed.stdout == "opened the gate of scripted\nresumed ada\n"
    assert done["status"] == "completed"
    assert {each["id"]: each["reply"] for each in items}[item] == "at last"


def test_pausing_a_provider_reports_how_its_agents_continue(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", fallback="shell")
        fallback = home.run("pause", "--provider", "shell").stdout
        opened = home.run("resume", "--provider", "shell").stdout
        first = home.run("pause", "--provider", "scripted").stdout
        both = home.run("pause", "--provider", "shell").stdout
        again = home.run("pause", "--provider", "scripted").stdout

    closed = "closed the gate of {0}; open it with: steadyrun resume --provider {0}\n"
    assert fallback == both == closed.format("shell")
    assert opened == "opened the gate of shell\n"
    assert first == closed.format("scripted") + "continues with a fallback: ada\n"
    assert again == closed.format("scripted") + "waits for its gate: ada\n"
