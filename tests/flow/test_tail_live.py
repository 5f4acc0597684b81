"""A follower gets each event once and in order, also when the daemon is killed."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon, steps_around, wait_for_text


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        yield found


def follow(home: CliHome, *words: str) -> Path:
    """Start `tail -f` into a file."""
    output = home.place / f"heard{len(home.started)}"
    home.start("tail", "-f", "--jsonl", *words, into=output)
    return output


def read_events(output: Path) -> list[dict[str, Any]]:
    lines = output.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_cursors(output: Path) -> list[int]:
    return [each["cursor"] for each in read_events(output) if each["cursor"] is not None]


def test_tail_gets_every_event_once_in_order_across_a_kill(home: CliHome) -> None:
    gate = home.place / "gate"
    for name in ("ada", "bo", "cy"):
        home.add_agent(name)
    first = home.up()
    output = follow(home, "--all", "--after", "0")
    items = [home.send(name, {"text": f"{name} {n}"}) for n in (1, 2) for name in ("ada", "bo")]
    open_one = home.send("cy", *steps_around(gate))
    wait_for_text(home, "one")
    end_daemon(first, signal.SIGKILL)
    items += [home.send("ada", {"text": "ada 3"}), open_one]

    home.up()
    gate.touch()
    eventually(lambda: all(home.item(item).is_settled for item in items), "their ends")
    newest = home.events()[-1].cursor

    eventually(lambda: newest in read_cursors(output), "the last event")
    assert read_cursors(output) == list(range(1, newest + 1))


STEPS = 6


def list_steps(place: Path) -> Iterator[dict[str, Any]]:
    """For each step a live delta, then the stored text. Each waits for a gate of its own, because
    a stream leaves out a delta that comes after its text."""
    for n in range(STEPS):
        yield {"until": str(place / f"delta{n}")}
        yield {"delta": {"pieces": [f"<{n}>"], "until": str(place / f"text{n}")}}


def open_delta_gate(home: CliHome, n: int) -> None:
    (home.place / f"delta{n}").touch()


def open_text_gate(home: CliHome, n: int) -> None:
    (home.place / f"text{n}").touch()


def wait_for_all(outputs: list[Path], kind: str, text: str) -> None:
    for each in outputs:
        eventually(lambda each=each: text in "".join(read_texts(each, kind)), f"{kind} {text}")  # type: ignore[misc]


def read_texts(output: Path, kind: str) -> list[str]:
    return [each["data"]["text"] for each in read_events(output) if each["type"] == kind]


def test_tail_of_an_agent_and_of_a_run_includes_live_events(home: CliHome) -> None:
    home.add_agent("ada")
    home.add_agent("bo")
    home.up()
    first = home.send("ada", *list_steps(home.place))
    run = eventually(lambda: home.item(first).run, "its run")
    assert run
    of_agent, of_run = both = [follow(home, "ada"), follow(home, run)]
    other = home.send("bo", {"text": "not for them"})
    # A follower that has a stored event is connected. The first delta may come before that.
    open_delta_gate(home, 0)
    open_text_gate(home, 0)
    wait_for_all(both, "text.final", "<0>")
    for n in range(1, STEPS):
        open_delta_gate(home, n)
        wait_for_all(both, "text.delta", f"<{n}>")
        open_text_gate(home, n)
        wait_for_all(both, "text.final", f"<{n}>")
    second = home.send("ada", {"text": "more"})
    for item in (first, second, other):
        eventually(lambda item=item: home.item(item).is_settled, "its end")  # type: ignore[misc]

    mine = [each.cursor for each in home.events() if each.agent == "ada"]
    eventually(lambda: mine[-1] in read_cursors(of_agent), "all of the agent")
    eventually(lambda: read_events(of_run)[-1]["type"] == "run.completed", "all of the run")
    assert {each["run"] for each in read_events(of_run)} == {run}
    assert {each["agent"] for each in read_events(of_agent)} == {"ada"}
    assert read_cursors(of_agent) == mine
