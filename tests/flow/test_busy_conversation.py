"""Two runs never work in one conversation at once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import TIMEOUT_SECONDS, CliHome, cli_home, steps_around, wait_for_text


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        yield found


def run(home: CliHome, *steps: object, resume: str | None = None) -> list[str]:
    """The words of a direct run with these steps."""
    resumed = ["--resume", resume] if resume else []
    return ["run", "--provider", "scripted", "--json", "script:" + json.dumps(steps), *resumed]


def begin_conversation(home: CliHome) -> str:
    done = home.run(*run(home, {"text": "begun"}))
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["resume_token"])


def test_of_two_runs_that_resume_a_conversation_at_once_one_is_refused(home: CliHome) -> None:
    token, gate = begin_conversation(home), home.place / "gate"
    outputs = [home.place / f"output{number}" for number in range(2)]
    commands = [
        home.start(*run(home, *steps_around(gate), resume=token), into=output) for output in outputs
    ]

    eventually(lambda: any(each.poll() is not None for each in commands), "the refusal")
    [refused] = [number for number, each in enumerate(commands) if each.poll() is not None]
    error = json.loads(outputs[refused].read_text())["error"]
    wait_for_text(home, "one")
    gate.touch()
    assert commands[1 - refused].wait(TIMEOUT_SECONDS) == 0

    assert error["code"] == "conversation_busy"
    assert home.texts().count("one") == 1
    again = home.run(*run(home, {"text": "later"}, resume=token))
    assert again.returncode == 0, again.stderr


def test_conversation_of_a_process_that_began_it_is_refused(home: CliHome) -> None:
    gate = home.place / "gate"
    home.add_agent("ada")
    home.up()
    item = home.send("ada", *steps_around(gate))
    wait_for_text(home, "one")
    shown = json.loads(home.run("agent", "show", "ada", "--json").stdout)
    token, place = shown["resume_token"], shown["home"]
    assert token

    busy = home.run(*run(home, {"text": "two at once"}, resume=token), "--cwd", place)
    gate.touch()
    eventually(lambda: home.item(item).is_settled, "the end of the item")

    assert busy.returncode == 5
    assert json.loads(busy.stdout)["error"]["code"] == "conversation_busy"
    assert "two at once" not in home.texts()


def test_agent_waits_for_a_direct_run_in_its_conversation(home: CliHome) -> None:
    gate = home.place / "gate"
    home.add_agent("ada")
    daemon = home.up()
    first = home.send("ada", {"text": "first"})
    eventually(lambda: home.item(first).is_settled, "the first item")
    shown = json.loads(home.run("agent", "show", "ada", "--json").stdout)
    assert home.run("down").returncode == 0
    daemon.wait(TIMEOUT_SECONDS)
    words = run(home, *steps_around(gate), resume=shown["resume_token"])
    direct = home.start(*words, "--cwd", shown["home"], into=home.place / "output")
    wait_for_text(home, "one")
    home.up()
    item = home.send("ada", {"text": "second"})
    eventually(lambda: home.item(item).status == "running", "its run")
    assert "second" not in home.texts()
    gate.touch()

    eventually(lambda: home.item(item).is_settled, "the end of the item")
    assert direct.wait(TIMEOUT_SECONDS) == 0
    assert home.item(item).status == "completed"
    assert home.texts().index("two") < home.texts().index("second")
