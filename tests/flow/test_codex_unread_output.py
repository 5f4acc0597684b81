"""What becomes of what a driver has said to the real Codex, if it is killed before that is read and
recorded? Codex goes on, another program takes it over, and what was said counts once."""

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from steadyrun.dialect import Verdict
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.model.item import Item
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.model_servers.anthropic import answer, text
from steadyrun.testing.model_servers.faults import Cut, StreamGate
from tests.children.keeper_driver import parent
from tests.support.codex_stage import ASKING, BEGUN, DONE, asks_for, go_on, on_stage, runs
from tests.support.killed_driver import (
    ENDS,
    Before,
    Driver,
    Tool,
    adopted,
    check_adopted,
    cli_of,
    hears,
    wait_for_words,
)
from tests.support.real_cli_stage import PATIENCE_SECONDS, Stage, reached, times_told


def unrecorded(
    stage: Stage, first: Before, key: bytes, is_noted: Callable[[Item], bool], **wish: str
) -> Before:
    """Codex is stopped after `first` and told what is wished; its driver is killed before it can
    write down that it was told."""

    async def before(driver: Driver) -> None:
        await first(driver)
        cli = cli_of(stage)
        os.kill(cli, signal.SIGSTOP)
        # A keeper that is stopped tells the CLI nothing, and a locked store lets nobody write.
        os.kill(parent(cli), signal.SIGSTOP)
        await driver.wish(**wish)
        await wait_for_item(stage, is_noted)
        with locked(stage):
            os.kill(parent(cli), signal.SIGCONT)
            await wait_for_words(stage, key, "sent")
            await driver.kill()

    return before


@contextmanager
def locked(stage: Stage) -> Iterator[None]:
    """Nobody else can write to the store."""
    with closing(sqlite3.connect(stage.home / "steadyrun.db", isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        yield
        store.execute("ROLLBACK")


async def wait_for_item(stage: Stage, is_it: Callable[[Item], bool]) -> None:
    """Wait until the record has such an item."""
    store = await SqliteStore.open(stage.home)
    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            while not any(map(is_it, await store.items())):
                await anyio.lowlevel.checkpoint()
    finally:
        await store.close()


async def wait_for_answer(stage: Stage) -> None:
    """Wait until the record has the answer to the only question."""
    store = await SqliteStore.open(stage.home)
    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            while [each.status for each in await store.approvals()] != ["answered"]:
                await anyio.lowlevel.checkpoint()
    finally:
        await store.close()


@pytest.mark.parametrize("ends", ENDS)
def test_an_answer_that_is_read_after_the_kill_counts_once(tmp_path: Path, ends: str) -> None:
    done = tmp_path / "done"
    with on_stage(tmp_path, [asks_for(f"echo once >> {done}"), answer("Done.")]) as stage:

        async def before(driver: Driver) -> None:
            asked = await driver.hear("approval.requested")
            cli = cli_of(stage)
            os.kill(cli, signal.SIGSTOP)
            os.kill(parent(cli), signal.SIGSTOP)
            await driver.wish(allow=asked["approval"])
            await wait_for_answer(stage)
            with locked(stage):
                os.kill(parent(cli), signal.SIGCONT)
                await wait_for_words(stage, b"decide:", "sent")
                await driver.kill()

        home = adopted(stage, before, lambda: go_on(stage), ends=ends, **ASKING)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "tool.started", "approval.requested", "approval.resolved",
            "tool.completed", *DONE,
        ]  # fmt: skip
        assert [(each.verdict, each.by) for each in home.of(ev.ApprovalResolved)] == [
            ("allow", "library")
        ]
        assert done.read_text() == "once\n"


@pytest.mark.parametrize("ends", ENDS)
def test_a_follow_up_that_is_read_after_the_kill_is_taken_once(tmp_path: Path, ends: str) -> None:
    gate = StreamGate()
    with on_stage(tmp_path, [answer(text("Hel", gate, "lo")), answer("That, too.")]) as stage:
        before = unrecorded(
            stage,
            hears("text.delta"),
            b"offer:",
            lambda item: item.delivery == "offered",
            steer="and THAT",
        )

        home = adopted(stage, before, lambda: go_on(stage), ends=ends)

        check_adopted(home, stage)
        assert home.outline == [*BEGUN, "followup.offered", "followup.absorbed", *DONE]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "That, too.")]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "absorbed")]
        assert times_told(stage.server, "THAT") == 1


@pytest.mark.parametrize("ends", ENDS)
def test_an_interruption_that_is_read_after_the_kill_ends_the_turn(
    tmp_path: Path, ends: str
) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(tool.command)]) as stage:
        before = unrecorded(
            stage,
            hears("tool.started", tool.runs),
            b"interrupt:",
            lambda item: item.cancel_requested,
            cancel="enough",
        )

        home = adopted(stage, before, lambda: go_on(stage), ends=ends)

        check_adopted(home, stage)
        assert [(run.status, run.stop_reason) for run in home.runs] == [("cancelled", "user_stop")]
        assert home.outline[-1] == "run.cancelled"
        assert len(home.of(ev.ToolFailed)) == 1
        assert tool.alive == []


def test_two_questions_may_be_answered_by_two_programs(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    parts = [part for file in files for part in asks_for(f"echo once >> {file}").parts]
    with on_stage(tmp_path, [answer(*parts), answer("Done.")]) as stage:

        async def before(driver: Driver) -> None:
            one = await driver.hear("approval.requested")
            await driver.hear("approval.requested")
            await driver.wish(allow=one["approval"])
            await driver.hear("approval.resolved")

        async def then(run: RunHandle) -> None:
            asked = [event async for event in _asked(run)]
            await run.decide(asked[1].approval, Verdict(True))

        home = adopted(stage, before, lambda: None, then=then, **ASKING)

        check_adopted(home, stage)
        assert [run.status for run in home.runs] == ["completed"]
        assert [each.verdict for each in home.of(ev.ApprovalResolved)] == ["allow", "allow"]
        assert [file.read_text() for file in files] == ["once\n", "once\n"]


async def _asked(run: RunHandle) -> Any:
    """The first two questions."""
    count = 0
    async for seen in run.events():
        if isinstance(seen.event, ev.ApprovalRequested):
            yield seen.event
            count += 1
        if count == 2:
            return


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_while_the_model_is_asked_again(tmp_path: Path, ends: str) -> None:
    gate = StreamGate()
    script = [answer(text("Hel", Cut())), answer(text("Hel", "lo"), held=gate)]
    with on_stage(tmp_path, script) as stage:
        before = hears("provider.retrying", lambda: reached(gate))

        home = adopted(stage, before, gate.open, ends=ends)

        check_adopted(home, stage)
        assert home.outline == [*BEGUN, "provider.retrying", *DONE]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert [each.text for each in home.of(ev.TextFinal)] == ["Hello"]
