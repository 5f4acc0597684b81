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


STEPS = 12


def list_steps(place: Path) -> Iterator[dict[str, Any]]:
    """Says something live, then something that is stored, whenever the next gate is there."""
    for n in range(STEPS):
        yield {"until": str(place / f"gate{n}")}
        yield {"delta": {"pieces": [f"<{n}>"]}}
        yield {"text": f"said {n}"}


def open_gate(home: CliHome, output: list[Path], n: int) -> bool:
    """Open a gate; whether all have heard what is live of that step, when they have the rest."""
    (home.place / f"gate{n}").touch()
    for each in output:
        eventually(lambda each=each: f"said {n}" in read_texts(each, "text.final"), "it")  # type: ignore[misc]
    return all(f"<{n}>" in "".join(read_texts(each, "text.delta")) for each in output)


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
    steps = iter(range(STEPS))
    # A subscriber that connects during a run gets live events from then on.
    assert any(open_gate(home, both, n) for n in steps)
    later = [open_gate(home, both, n) for n in steps]
    assert later
    assert all(later)
    second = home.send("ada", {"text": "more"})
    for item in (first, second, other):
        eventually(lambda item=item: home.item(item).is_settled, "its end")  # type: ignore[misc]

    mine = [each.cursor for each in home.events() if each.agent == "ada"]
    eventually(lambda: mine[-1] in read_cursors(of_agent), "all of the agent")
    eventually(lambda: read_events(of_run)[-1]["type"] == "run.completed", "all of the run")
    assert {each["run"] for each in read_events(of_run)} == {run}
    assert {each["agent"] for each in read_events(of_agent)} == {"ada"}
    assert read_cursors(of_agent) == mine
