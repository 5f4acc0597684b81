"""Gates belong to an account: another key does not wait for the limit of the first."""

import json
import signal
from pathlib import Path
from typing import Any

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon, steps_around, wait_for_text
from tests.support.commands import steadyrun
from tests.support.daemon_harness import killable_daemon, running_daemon, script

LIMITED = 'script:[{"rate_limit": {"resets_in": 600}}]'
# Each part is too long to appear in an id or a fingerprint by chance.
KEY_A, KEY_B = "himmelblau-ziegelrot", "sonnengelb-grasgruen"


def config(key: str, more: str = "") -> str:
    return f'[providers.scripted.env]\nSCRIPTED_API_KEY = "{key}"\n{more}'


def test_agent_with_a_new_key_continues_while_the_old_account_stays_closed(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        write(home, config(KEY_A))
        home.add_agent("ada")
        daemon = home.up()
        limited = home.run("run", "--provider", "scripted", LIMITED)
        first = home.send("ada", {"text": "with another key"})
        [closed] = gates(home)
        waiting = waiting_for(home, first)
        daemon = restarted(home, daemon, config(KEY_B))
        wait_for_text(home, "with another key")
        done = home.run("send", "ada", "--wait", "--json", "hello")
        both = gates(home)
        shown, status = home.run("gate").stdout, home.run("status").stdout
        daemon = restarted(home, daemon, config(KEY_A, 'EDITOR = "vi"'))
        second = home.send("ada", {"text": "with the first key"})
        again = gates(home)
        still = waiting_for(home, second)
        home.run("gate", "open", "scripted")
        wait_for_text(home, "with the first key")
        end_daemon(daemon, signal.SIGTERM)
        has_key = files_with(home, KEY_A, KEY_B)

    assert limited.returncode == 6
    assert (closed["state"], closed["is_present"]) == ("closed", True)
    assert waiting == ("queued", "gate", closed["until"])
    assert json.loads(done.stdout)["status"] == "completed"
    old, new = sorted(both, key=lambda gate: gate["is_present"])
    assert (old["account"], old["until"]) == (closed["account"], closed["until"])
    assert (old["state"], old["is_present"]) == ("closed", False)
    assert (new["state"], new["dispatchable"], new["level"]) == ("open", True, 0)
    assert f"{closed['account']} (not in use)" in shown
    assert "gate scripted" not in status
    assert [gate for gate in again if gate["is_present"]] == [closed]
    assert still == ("queued", "gate", closed["until"])
    assert has_key == [home.path / "config.toml"]


def test_rate_limit_of_an_adopted_run_closes_the_gate_of_its_own_account(tmp_path: Path) -> None:
    """It is refused with the old key, so the item goes on at once with the new one."""
    with cli_home(tmp_path) as home:
        write(home, config(KEY_A))
        home.add_agent("ada")
        daemon = home.up()
        home.send("ada", *steps_around(tmp_path / "go"), {"rate_limit": {"resets_in": 600}})
        wait_for_text(home, "one")
        end_daemon(daemon, signal.SIGKILL)
        write(home, config(KEY_B))
        home.up()
        (tmp_path / "go").touch()
        home.run("send", "ada", "hello", "--wait", "--timeout", "5s")
        listed = gates(home)
        runs = sorted(home.runs(), key=lambda run: run.id)

    assert [run.status for run in runs] == ["rate_limited", "rate_limited"]
    assert runs[0].account != runs[1].account
    known = {gate["account"]: (gate["run"], gate["is_present"]) for gate in listed}
    assert known == {
        runs[0].account: (runs[0].id, False),
        runs[1].account: (runs[1].id, True),
    }
    assert {gate["state"] for gate in listed} == {"closed"}


async def test_unprompted_turn_is_on_the_account_of_its_process(tmp_path: Path) -> None:
    """The daemon with the new key has found a process that was launched with the old one."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(config(KEY_A))

    async with killable_daemon(tmp_path, "before continue_with warm") as (home, daemon):
        ada = await home.add_agent("ada")
        steps = [{"text": "by itself"}, {"rate_limit": {"resets_in": 600}}]
        later = {"self_turn": {"after": 1.0, "steps": steps}}
        await home.send(ada, script(later, {"text": "one"}))
        await daemon.wait_until_killed()
    async with running_daemon(tmp_path, config=config(KEY_B)) as harness:
        await harness.wait_for_text(ada, "by itself")

        async def has_ended() -> bool:
            return [run.status for run in await harness.runs(ada)][1:] == ["rate_limited"]

        await harness.wait_until(ada, has_ended)
        [asked, own] = await harness.runs(ada)
        assert own.account == asked.account != harness.store.accounts["scripted"]
        assert await harness.store.gates() == []
        [gate] = await harness.store.gates(include_others=True)
        assert (gate.account, gate.is_closed, gate.run) == (own.account, True, own.id)


def test_announced_retry_suspends_the_account_of_its_process(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        write(home, config(KEY_A))
        home.add_agent("ada")
        daemon = home.up()
        retry = {"retrying": {"reason": "rate_limited", "delay_ms": 60_000}}
        home.send("ada", *steps_around(tmp_path / "go"), retry, {"text": "went on"})
        wait_for_text(home, "one")
        end_daemon(daemon, signal.SIGKILL)
        write(home, config(KEY_B))
        home.up()
        (tmp_path / "go").touch()
        listed = eventually(lambda: suspected(home), "that a run waits")
        [old, new] = sorted(listed, key=lambda gate: gate["is_present"])

    assert (old["is_present"], old["state"]) == (False, "suspect")
    assert (new["is_present"], new["state"]) == (True, "open")


def test_unset_variable_of_a_provider_fails_its_item_and_not_the_daemon(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        write(home, config("${NOT_SET_AT_ALL}"))
        home.add_agent("ada")
        home.up()
        closed = home.run("gate", "close", "scripted", "--for", "1h")
        opened = home.run("gate", "open", "scripted")
        done = home.run("send", "ada", "hello", "--wait", "--json")
        listed = gates(home)

    assert (closed.returncode, opened.returncode) == (0, 0)
    item = json.loads(done.stdout)
    assert item["status"] == "failed"
    assert "NOT_SET_AT_ALL" in item["error"]["message"]
    assert [(each["state"], each["is_present"]) for each in listed] == [("open", True)]


def test_every_process_of_a_home_uses_the_same_account_name(tmp_path: Path) -> None:
    """Also before there was any daemon."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(config(KEY_A))

    limited = steadyrun(home, "run", "--provider", "scripted", LIMITED)
    refused = steadyrun(home, "run", "--provider", "scripted", "say hello")
    (home / "config.toml").write_text(config(KEY_B))
    other = steadyrun(home, "run", "--provider", "scripted", "say hello")

    assert [each.returncode for each in (limited, refused, other)] == [6, 6, 0]


def write(home: CliHome, text: str) -> None:
    home.path.mkdir(exist_ok=True)
    (home.path / "config.toml").write_text(text)


def restarted(home: CliHome, daemon: Any, text: str) -> Any:
    """Another daemon with another configuration."""
    assert end_daemon(daemon, signal.SIGTERM) == 0
    write(home, text)
    return home.up()


def gates(home: CliHome) -> list[dict[str, Any]]:
    """As `gate` lists them, which is as `status` does."""
    listed: list[dict[str, Any]] = json.loads(home.run("gate", "--json").stdout)["gates"]
    assert json.loads(home.run("status", "--json").stdout)["gates"] == listed
    return listed


def suspected(home: CliHome) -> list[dict[str, Any]]:
    """All gates, as soon as one of them is suspect."""
    listed = gates(home)
    return listed if any(gate["state"] == "suspect" for gate in listed) else []


def waiting_for(home: CliHome, item: str) -> tuple[str, str, str]:
    items = json.loads(home.run("inbox", "--json").stdout)["items"]
    [found] = [each for each in items if each["id"] == item]
    return found["status"], found["waiting"], found["until"]


def files_with(home: CliHome, *keys: str) -> list[Path]:
    """Files of the home with any part of a key, as it is or in writing for others."""
    parts = [part.encode() for key in keys for part in key.split("-")]
    files = [file for file in home.path.rglob("*") if file.is_file()]
    return [file for file in files if any(part in file.read_bytes() for part in parts)]
