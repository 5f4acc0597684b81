"""Old events and texts are deleted by `prune` and by the daemon, and commands report it."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from steadyrun.drivers.keeper import MARK
from steadyrun.model.agent import Agent
from steadyrun.model.item import Message
from steadyrun.model.retention import RetentionLimits
from steadyrun.operations.context import OperationContext
from steadyrun.operations.events import FollowRequest, follow
from steadyrun.runtime.retention import prune_all
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, steps_around, wait_for_text
from tests.support.commands import python, steadyrun
from tests.support.fake_daemon import open_context

# Less than a tenth of a second.
AT_ONCE = "[daemon]\nkeep_events_days = 0.000001\nkeep_texts_days = 0.000001\nprocesses = 1\n"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir(exist_ok=True)
        yield found


def _configure(home: CliHome, text: str = AT_ONCE) -> None:
    (home.path / "config.toml").write_text(text)


def _work(home: CliHome, name: str, text: str) -> str:
    """Send a message and wait for its end. The daemon that does it is killed."""
    daemon = home.up()
    item = home.send(name, {"text": text})
    eventually(lambda: home.item(item).is_settled, "its end")
    daemon.kill()
    daemon.wait()
    return item


def _prune(home: CliHome, *words: str) -> dict[str, int]:
    done = home.run("prune", "--json", *words)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)["pruned"]
    return counts


def test_dry_run_prints_what_the_next_prune_deletes(home: CliHome) -> None:
    home.add_agent("ada")
    home.add_agent("bo")
    item = _work(home, "ada", "old answer")
    kept = _work(home, "bo", "the last answer")
    cost = home.run("cost", "--json").stdout
    before = home.events()
    _configure(home)

    said = home.run("prune", "--dry-run").stdout
    expected = _prune(home, "--dry-run")
    assert home.events() == before
    assert _prune(home) == expected

    # The last event of the store is kept, and with it the whole run.
    run, last = home.item(item).run, home.item(kept).run
    gone = [event for event in before if event.run != last]
    assert run in {event.run for event in gone}
    assert home.events() == [event for event in before if event.run == last]
    assert (expected["events"], expected["runs"], expected["texts"]) == (len(gone), 1, 4)
    assert f"would delete {len(gone)} events of 1 run (" in said
    assert home.run("cost", "--json").stdout == cost
    assert _prune(home)["events"] == 0


def test_commands_report_that_events_and_texts_were_pruned(home: CliHome) -> None:
    home.add_agent("ada")
    home.add_agent("bo")
    item = _work(home, "ada", "old answer")
    _work(home, "bo", "the last answer")
    run, last = home.item(item).run, home.events()[-1].cursor
    assert run
    _configure(home)
    _prune(home)

    [shown, tailed, exported] = [
        home.run("show", run, "--json"),
        home.run("tail", run, "-f"),
        home.run("export", run),
    ]
    document = json.loads(shown.stdout)
    assert (document["events_pruned"], document["text_pruned"], document["text"]) == (
        True, True, None,
    )  # fmt: skip
    assert document["events"] > 0
    assert "they were pruned" in home.run("show", run).stdout
    assert (tailed.returncode, tailed.stdout) == (0, "")
    assert "the events of this run were pruned" in tailed.stderr
    assert exported.returncode == 0, exported.stderr
    assert "the events of this run were pruned" in exported.stderr
    late, current = home.run("tail", "--all", "--after", "1"), home.run(
        "tail", "--all", "--after", str(last)
    )  # fmt: skip
    assert "events after cursor 1 up to" in late.stderr
    assert (current.returncode, current.stderr) == (0, "")


LIBRARY = """
import anyio, sys, steadyrun

async def main():
    async with steadyrun.open() as library:
        run = await library.run(sys.argv[1])
        print([event async for event in run.events()], (await run.result()).status)

anyio.run(main)
"""


def test_library_streams_no_events_of_a_pruned_run(home: CliHome) -> None:
    home.add_agent("ada")
    home.add_agent("bo")
    item = _work(home, "ada", "old answer")
    _work(home, "bo", "the last answer")
    _configure(home)
    _prune(home)

    program = home.place / "program.py"
    program.write_text(LIBRARY.replace("sys.argv[1]", repr(home.item(item).run)))
    done = python(home.path, program)

    assert done.stdout == "[] completed\n", done.stderr


def test_item_whose_text_was_pruned_is_not_sent_again(home: CliHome) -> None:
    home.add_agent("ada")
    item = _work(home, "ada", "old answer")
    _configure(home)
    _prune(home)

    listed = json.loads(home.run("inbox", "--all", "--json").stdout)["items"]
    again = home.run("retry", item)

    assert [(each["text"], each["reply"], each["text_pruned"]) for each in listed] == [
        ("", None, True)
    ]
    assert (again.returncode, "was pruned" in again.stderr) == (5, True)


def test_ages_of_the_command_line_replace_those_of_the_configuration(home: CliHome) -> None:
    home.add_agent("ada")
    home.add_agent("bo")
    for name in ("ada", "bo", "ada"):
        _work(home, name, "answer")
    _configure(home)

    assert _prune(home, "--dry-run", "--events-older-than", "1h")["events"] == 0
    assert _prune(home, "--dry-run", "--texts-older-than", "90d")["texts"] == 0
    one = _prune(home, "--dry-run", "--agent", "bo")
    assert (one["runs"], one["texts"]) == (1, 2)
    assert _prune(home, "--dry-run")["runs"] == 2


def test_prune_without_a_limit_is_a_usage_error(home: CliHome) -> None:
    without = home.run("prune")
    wrong = home.run("prune", "--events-older-than", "soon")

    assert (without.returncode, wrong.returncode) == (2, 2)
    assert "keeps all events and texts" in without.stderr
    assert "expected an age such as 12h or 90d" in wrong.stderr
    assert home.run("prune", "--events-older-than", "1h", "--agent", "no").returncode == 3


def test_prune_is_refused_to_agents(home: CliHome) -> None:
    _configure(home)
    refused = steadyrun(home.path, "prune", wrapper=("env", f"{MARK}=prc_1"))
    assert refused.returncode == 4, refused.stderr


def test_daemon_prunes_in_the_background_and_keeps_what_runs(home: CliHome) -> None:
    home.add_agent("ada")
    home.add_agent("bo")
    old = _work(home, "ada", "old answer")
    gate = home.place / "gate"
    daemon = home.up()
    running = home.send("bo", *steps_around(gate))
    wait_for_text(home, "one")
    daemon.kill()
    daemon.wait()
    _configure(home)

    home.up()
    eventually(lambda: "old answer" not in home.texts(), "the pruning of the old run")
    eventually(lambda: any("store.pruned" in line for line in home.read_log()), "the log")

    assert home.item(old).payload.text_pruned
    assert "one" in home.texts()
    gate.touch()
    eventually(lambda: home.item(running).is_settled, "its end")
    item = home.item(running)
    assert (item.status, item.payload.text_pruned) == ("completed", False)
    numbers = [event.seq for event in home.events() if event.agent == "bo"]
    first = numbers[0]
    assert first is not None
    assert numbers == list(range(first, first + len(numbers)))


async def test_stream_tells_its_caller_which_events_were_pruned(tmp_path: Path) -> None:
    async with open_context(tmp_path) as (context, daemon):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.work)
            for name in ("ada", "bo"):
                await _complete(context, name, tmp_path)
            tasks.cancel_scope.cancel()
        events = await context.store.events()
        await prune_all(context.store, RetentionLimits(datetime.now(UTC)))
        feed = await follow(context, FollowRequest(after=0))
        await feed.events.aclose()

        kept = await context.store.events()
        assert 0 < len(kept) < len(events)
        assert feed.answer.pruned_to == kept[0].cursor - 1


async def _complete(context: OperationContext, name: str, place: Path) -> None:
    agent = Agent(context.ids.make_agent(), name, ("scripted",), str(place))
    await context.store.add_agent(agent)
    with context.store.hints.watch(agent.id) as watch:
        item = (await context.store.accept(Message(agent.id, "hello"))).item
        while not (await context.store.item(item.id)).is_settled:
            await watch.wait()


def test_new_store_gives_free_space_back(home: CliHome) -> None:
    home.add_agent("ada")
    with sqlite3.connect(home.path / "steadyrun.db") as connection:
        [mode] = connection.execute("PRAGMA auto_vacuum").fetchone()
    assert mode == 2
