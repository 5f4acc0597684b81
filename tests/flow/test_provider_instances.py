"""Several configured providers of one kind, side by side."""

import json
from pathlib import Path
from typing import Any

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home

CONFIG = """\
[providers.one]
kind = "scripted"
options = { script = "one.json" }
env = { API_KEY = "key-of-the-first-account" }
[providers.two]
kind = "scripted"
options = { script = "two.json" }
env = { API_KEY = "key-of-the-second-account" }
[providers.plain]
kind = "shell"
env = { WHO = "plain" }
options = { allowed = ["printenv"] }
[providers.shell]
env = { WHO = "shell" }
options = { allowed = ["printenv"] }
"""


def configure(home: CliHome, text: str) -> None:
    home.path.mkdir(mode=0o700, exist_ok=True)
    for name in ("one", "two"):
        (home.path / f"{name}.json").write_text(json.dumps([{"text": f"script {name}"}]))
        text = text.replace(f'"{name}.json"', json.dumps(str(home.path / f"{name}.json")))
    (home.path / "config.toml").write_text(text)


def gates(home: CliHome) -> dict[str, Any]:
    found = json.loads(home.run("gate", "--json").stdout)["gates"]
    return {each["provider"]: each["state"] for each in found}


def test_each_instance_runs_with_its_own_options_and_environment(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        configure(home, CONFIG)
        done = {
            name: home.run("run", "--provider", name, "printenv WHO" if is_shell else "go")
            for name, is_shell in (("one", 0), ("two", 0), ("plain", 1), ("shell", 1))
        }

        assert {name: each.stdout for name, each in done.items()} == {
            "one": "script one\n",
            "two": "script two\n",
            "plain": "plain\n",
            "shell": "shell\n",
        }
        runs = json.loads(home.run("runs", "--json").stdout)["runs"]
        assert {run["provider"] for run in runs} == {"one", "two", "plain", "shell"}
        accounts = {run.provider: run.account for run in home.runs()}
        assert accounts["one"] != accounts["two"]
        assert all(accounts[name] for name in ("one", "two"))


def test_closing_the_gate_of_one_instance_leaves_the_others_open(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        configure(home, CONFIG)
        home.add_agent("ada", provider="one")
        home.add_agent("bob", provider="two")
        home.up()
        assert home.run("gate", "close", "one").returncode == 0

        first, second = (home.send(name, {"text": "done"}) for name in ("ada", "bob"))
        eventually(lambda: home.item(second).status == "completed", "that bob is done")
        refused = home.run("run", "--provider", "one", "--json", "go")
        kind = home.run("run", "--provider", "scripted", "say hello")

        assert gates(home) == {"one": "held", "two": "open"}
        assert home.item(first).status == "queued"
        assert json.loads(refused.stdout)["error"]["code"] == "rate_limited"
        assert kind.returncode == 0
        assert home.run("gate", "open", "one").returncode == 0
        eventually(lambda: home.item(first).status == "completed", "that ada is done")


def test_each_instance_has_conversations_of_its_own(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        configure(home, CONFIG)
        home.add_agent("ada", provider="one", fallback="two")
        home.up()
        before = home.send("ada", {"text": "first"})
        eventually(lambda: home.item(before).status == "completed", "the first answer")
        home.run("gate", "close", "one")
        after = home.send("ada", {"text": "second"})
        eventually(lambda: home.item(after).status == "completed", "the second answer")

        shown = json.loads(home.run("agent", "show", "ada", "--json").stdout)
        sessions = {each["provider"]: each["token"] for each in shown["tokens"]}
        assert set(sessions) == {"one", "two"}
        assert sessions["one"] != sessions["two"]


def test_commands_show_the_kind_of_an_instance(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        configure(home, CONFIG)
        shown = home.run("config", "show").stdout
        checked = home.run("config", "check").stdout
        listed = json.loads(home.run("providers", "--json").stdout)["providers"]
        doctor = json.loads(home.run("doctor", "--json").stdout)["checks"]

        assert 'providers.one.kind = "scripted"' in shown
        assert "ok: providers: one (scripted), plain (shell), shell, two (scripted)\n" in checked
        assert "key-of-the-first-account" not in shown
        kinds = {each["name"]: each["kind"] for each in listed}
        assert (kinds["one"], kinds["shell"], kinds["codex"]) == ("scripted", "shell", "codex")
        assert {"provider one", "provider scripted"} <= {each["check"] for each in doctor}


def test_daemon_refuses_to_start_without_the_provider_of_an_agent(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        configure(home, CONFIG)
        home.add_agent("ada", provider="one")
        item = home.send("ada", {"text": "then"})
        configure(home, "")
        refused = home.run("up")

        assert refused.returncode == 2
        assert "the agent ada uses the provider 'one', which does not exist" in refused.stderr
        assert "Add [providers.one] to the configuration" in refused.stderr
        home.run("pause", "ada")
        home.up()
        resumed = home.run("resume", "ada")
        assert resumed.returncode == 5
        assert "ada needs the provider 'one', which does not exist" in resumed.stderr
        home.run("agent", "set", "ada", "--provider", "scripted")
        assert home.run("resume", "ada").returncode == 0
        eventually(lambda: home.item(item).status == "completed", "that ada is done")


def test_daemon_refuses_to_start_without_the_provider_of_a_process(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        configure(home, CONFIG)
        home.add_agent("ada", provider="one")
        daemon = home.up()
        item = home.send("ada", {"text": "first"})
        eventually(lambda: home.item(item).status == "completed", "the first answer")
        daemon.kill()
        daemon.wait()
        home.run("pause", "ada")
        configure(home, "")
        refused = home.run("up")
        configure(home, CONFIG)
        home.up()

        assert refused.returncode == 2
        assert "uses the provider 'one', which does not exist" in refused.stderr
        assert len(home.processes()) == 1
