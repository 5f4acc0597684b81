"""What processes of agents may do: read and send messages, and nothing that is for a person."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.errors import NotAllowed
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import COMMAND, LIMIT_SECONDS, environment
from tests.support.commands import steadyrun as steadyrun_command

CHILDREN = Path(__file__).parents[1] / "children"
WAYS = ("plain", "unmarked", "empty", "daemon")
# For each operation that is not for agents, one command.
FOR_PERSONS = (
    "agent add eve --provider scripted --home .",
    "agent set ada --model other",
    "agent rm ada",
    "pause ada",
    "resume ada",
    "gate close scripted --reason no",
    "gate open scripted",
    "cancel {item}",
    "retry {item}",
    "approve :1",
    "deny :1 --reason no",
    "down",
    "up --detach",
    "trust",
)
FOR_AGENTS = ("agents", "inbox", "approvals", "gate", "cost", "runs", "send ada hello")


def run_in_agent(home: CliHome, way: str, commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run commands in a process that a run has started; return the result of each."""
    file = home.place / f"calls-{len(list(home.place.glob('calls-*.out')))}.json"
    file.write_text(json.dumps(commands))
    caller = [sys.executable, str(CHILDREN / "agent_caller.py"), way, str(file)]
    done = home.run("run", "--provider", "shell", "--json", shlex.join(caller))
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(file.with_suffix(".out").read_text())
    return found


def split(line: str, **names: str) -> list[str]:
    return [str(COMMAND), *line.format(**names).split()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_up", [False, True], ids=["store", "daemon"])
def test_process_of_an_agent_reads_and_sends_and_does_nothing_for_persons(
    tmp_path: Path, way: str, is_up: bool
) -> None:
    (tmp_path / "steadyrun.toml").write_text("# harmless\n")
    with cli_home(tmp_path) as home:
        home.add_agent("ada", model="first")
        if is_up:
            home.up()
        item = home.send("ada", {"approval": "Bash"})
        if is_up:
            eventually(home.list_approvals, "a request")
        refused = run_in_agent(home, way, [split(line, item=item) for line in FOR_PERSONS])
        allowed = run_in_agent(home, way, [split(line) for line in FOR_AGENTS])
        ada = json.loads(home.run("agent", "show", "ada", "--json").stdout)

        for each in refused:
            assert each["exit"] == 4, each
            assert "an agent cannot" in each["stderr"], each
            assert "was started by prc_" in each["stderr"], each
        assert [each["exit"] for each in allowed] == [0] * len(FOR_AGENTS), allowed
        assert (ada["model"], ada["state"]) == ("first", "waiting" if is_up else ada["state"])
        assert [
            each["name"] for each in json.loads(home.run("agents", "--json").stdout)["agents"]
        ] == ["ada"]
        assert not home.item(item).is_settled
        assert not (home.path / "trusted.json").exists()
        assert home.run("status").returncode == (0 if is_up else 69)


@pytest.mark.parametrize("way", WAYS)
def test_agent_is_refused_on_the_socket_itself(tmp_path: Path, way: str) -> None:
    calls = {
        "daemon.stop": {"drain": 0},
        "agent.set": {"name": "ada", "model": "other"},
        "approval.approve": {"id": ":1", "by": "cli:root"},
    }
    with cli_home(tmp_path) as home:
        home.add_agent("ada", model="first")
        home.up()
        home.send("ada", {"approval": "Bash"})
        eventually(home.list_approvals, "a request")
        found = run_in_agent(
            home,
            way,
            [
                call_raw(home, method, params, *more)
                for method, params in calls.items()
                for more in ((), ("orphan",))
            ],
        )
        ada = json.loads(home.run("agent", "show", "ada", "--json").stdout)
        still_open = home.list_approvals()

        answers = [json.loads(each["stdout"]) for each in found]
        assert len(answers) == 2 * len(calls)
        for answer in answers:
            assert answer["error"]["data"]["code"] == "not_allowed", answer
            assert "an agent cannot" in answer["error"]["message"]
        assert ada["model"] == "first"
        assert len(still_open) == 1


def call_raw(home: CliHome, method: str, params: object, *more: str) -> list[str]:
    words = [sys.executable, str(CHILDREN / "raw_caller.py")]
    return [*words, str(home.path), method, json.dumps(params), *more]


def test_caller_that_ends_after_connecting_is_refused(tmp_path: Path) -> None:
    params = {"name": "ada", "model": "other"}
    with cli_home(tmp_path) as home:
        home.add_agent("ada", model="first")
        home.up()
        answer = _run_raw(home, "agent.set", params, "orphan")
        reading = _run_raw(home, "agent.list", {}, "orphan")
        direct = _run_raw(home, "agent.set", params)
        ada = json.loads(home.run("agent", "show", "ada", "--json").stdout)

        assert answer["error"]["data"]["code"] == "not_allowed"
        assert "has ended" in answer["error"]["message"]
        assert [each["name"] for each in reading["result"]["agents"]] == ["ada"]
        assert direct["result"]["model"] == ada["model"] == "other"


def _run_raw(home: CliHome, method: str, params: object, *more: str) -> Any:
    # The pipe ends when the child of the caller ends, too.
    done = subprocess.run(
        call_raw(home, method, params, *more),
        env=environment(home.path),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return json.loads(done.stdout)


def test_answer_has_the_name_of_the_user_who_connected(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", approvers="cli:eve")
        home.up()
        home.send("ada", {"approval": "Bash"})
        [question] = eventually(home.list_approvals, "a request")
        as_eve = _run_raw(home, "approval.approve", {"id": question["id"], "by": "cli:eve"})
        unnamed = _run_raw(home, "approval.approve", {"id": question["id"]})
        user = unnamed["error"]["message"].split()[0]
        home.run("agent", "set", "ada", "--approvers", user)
        by_socket = _run_raw(home, "approval.approve", {"id": question["id"]})

        assert as_eve["error"]["data"]["code"] == "not_allowed"
        assert f"{user} cannot answer as cli:eve" in as_eve["error"]["message"]
        assert "may not answer for ada" in unnamed["error"]["message"]
        assert by_socket["result"]["by"] == user


LIBRARY = """
import anyio, steadyrun
from steadyrun.errors import NotAllowed

async def main():
    async with steadyrun.open() as sr:
        await sr.answer(":1", allow=True)

try:
    anyio.run(main)
except NotAllowed as error:
    print(error.message)
"""


@pytest.mark.parametrize("way", WAYS)
def test_program_of_an_agent_cannot_answer_with_the_library(tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(LIBRARY)
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        home.send("ada", {"approval": "Bash"})
        eventually(home.list_approvals, "a request")
        [found] = run_in_agent(home, way, [[sys.executable, str(program)]])

        assert found["stdout"].startswith("an agent cannot answer approval requests"), found
        assert len(home.list_approvals()) == 1


def test_program_cannot_answer_in_the_name_of_another_user(tmp_path: Path) -> None:
    async def main() -> None:
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        async with steadyrun.open(load(home=tmp_path / "home", environ=environ)) as sr:
            with pytest.raises(NotAllowed, match="cannot answer as cli:eve"):
                await sr.answer("prc_1:1", allow=True, by="cli:eve")

    anyio.run(main)


@pytest.mark.parametrize("is_up", [False, True], ids=["store", "daemon"])
def test_process_with_the_mark_of_another_home_is_refused(tmp_path: Path, is_up: bool) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        if is_up:
            home.up()
        words, wrapper = ("agent", "set", "ada", "--model", "m"), ("env", "STEADYRUN_PROCESS=prc_9")
        marked = steadyrun_command(home.path, *words, wrapper=wrapper)
        unmarked = home.run(*words)

        assert (marked.returncode, unmarked.returncode) == (4, 0)
        assert "was started by prc_9" in marked.stderr


def test_user_in_the_directory_of_a_process_is_not_taken_for_an_agent(tmp_path: Path) -> None:
    """A shell there has the directory of a keeper and an argument like it."""
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.run("run", "--provider", "scripted", "hello")
        [folder] = (home.path / "processes").iterdir()
        script = f"{shlex.join([str(COMMAND), 'agent', 'set', 'ada', '--model', 'm'])}; exit $?"
        done = subprocess.run(
            ["/bin/sh", "-c", script, str(folder)],
            env=environment(home.path),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

        assert done.returncode == 0, done.stderr
