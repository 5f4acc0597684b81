"""Is a provider left alone that has said no? A run of nobody's closes the gate for all."""

import json
from pathlib import Path

from tests.commands import steadyrun
from tests.homes import a_home

LIMITED = 'script:[{"rate_limit": {"resets_in": 600}}]'


def test_a_run_that_was_limited_closes_the_gate_for_the_next_one(tmp_path: Path) -> None:
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


def test_status_tells_how_long_and_an_item_waits(tmp_path: Path) -> None:
    with a_home(tmp_path) as home:
        home.hire("ada")
        home.up()
        first = home.send("ada", {"rate_limit": {"resets_in": 600}})
        waiting = home.run("send", "ada", "hello", "--wait", "--timeout", "2s")

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
