"""Frames that a killed driver sent to the real Codex count once after the adoption."""

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
from tests.support.codex_harness import (
    ASKING,
    COMPLETED,
    STARTED,
    codex_harness,
    continue_cli,
    request_command,
    run_command,
)
from tests.support.killed_driver import (
    WHEN_RELEASED,
    Before,
    BlockingCommand,
    Driver,
    adopt_after_kill,
    after_event,
    check_adopted,
    find_cli,
    wait_for_bytes,
)
from tests.support.real_cli_harness import TIMEOUT_SECONDS, CliHarness, count_sent, wait_for_gate


def unrecorded(
    harness: CliHarness, first: Before, key: bytes, is_noted: Callable[[Item], bool], **wish: str
) -> Before:
    """Codex is stopped after `first` and told what is wished; its driver is killed before it can
    write down that it was told."""

    async def before(driver: Driver) -> None:
        await first(driver)
        cli = find_cli(harness)
        os.kill(cli, signal.SIGSTOP)
        # A stopped keeper sends the CLI nothing, and a locked store accepts no write.
        os.kill(parent(cli), signal.SIGSTOP)
        await driver.send(**wish)
        await wait_for_item(harness, is_noted)
        with locked(harness):
            os.kill(parent(cli), signal.SIGCONT)
            await wait_for_bytes(harness, key, "sent")
            await driver.kill()

    return before


@contextmanager
def locked(harness: CliHarness) -> Iterator[None]:
    """Lock the store, so that no other process can write to it."""
    with closing(sqlite3.connect(harness.home / "steadyrun.db", isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        yield
        store.execute("ROLLBACK")


async def wait_for_item(harness: CliHarness, is_it: Callable[[Item], bool]) -> None:
    """Wait until the record has such an item."""
    store = await SqliteStore.open(harness.home)
    try:
        with anyio.fail_after(TIMEOUT_SECONDS):
            while not any(map(is_it, await store.items())):
                await anyio.lowlevel.checkpoint()
    finally:
        await store.close()


async def wait_for_answer(harness: CliHarness) -> None:
    """Wait until the record has the answer to the only question."""
    store = await SqliteStore.open(harness.home)
    try:
        with anyio.fail_after(TIMEOUT_SECONDS):
            while [each.status for each in await store.approvals()] != ["answered"]:
                await anyio.lowlevel.checkpoint()
    finally:
        await store.close()


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_an_answer_that_is_read_after_the_kill_counts_once(tmp_path: Path, ends: str) -> None:
    done = tmp_path / "done"
    with codex_harness(
        tmp_path, [request_command(f"echo once >> {done}"), answer("Done.")]
    ) as harness:

        async def before(driver: Driver) -> None:
            asked = await driver.wait_for_event("approval.requested")
            cli = find_cli(harness)
            os.kill(cli, signal.SIGSTOP)
            os.kill(parent(cli), signal.SIGSTOP)
            await driver.send(allow=asked["approval"])
            await wait_for_answer(harness)
            with locked(harness):
                os.kill(parent(cli), signal.SIGCONT)
                await wait_for_bytes(harness, b"decide:", "sent")
                await driver.kill()

        home = adopt_after_kill(harness, before, lambda: continue_cli(harness), ends=ends, **ASKING)

        check_adopted(home, harness)
        assert home.event_types == [
            *STARTED, "tool.started", "approval.requested", "approval.resolved",
            "tool.completed", *COMPLETED,
        ]  # fmt: skip
        assert [(each.verdict, each.by) for each in home.events_of(ev.ApprovalResolved)] == [
            ("allow", "library")
        ]
        assert done.read_text() == "once\n"


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_follow_up_that_is_read_after_the_kill_is_taken_once(tmp_path: Path, ends: str) -> None:
    gate = StreamGate()
    with codex_harness(
        tmp_path, [answer(text("Hel", gate, "lo")), answer("That, too.")]
    ) as harness:
        before = unrecorded(
            harness,
            after_event("text.delta"),
            b"offer:",
            lambda item: item.delivery == "offered",
            steer="and THAT",
        )

        home = adopt_after_kill(harness, before, lambda: continue_cli(harness), ends=ends)

        check_adopted(home, harness)
        assert home.event_types == [*STARTED, "followup.offered", "followup.absorbed", *COMPLETED]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "That, too.")]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "absorbed")]
        assert count_sent(harness.server, "THAT") == 1


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_an_interruption_that_is_read_after_the_kill_ends_the_turn(
    tmp_path: Path, ends: str
) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [run_command(tool.command)]) as harness:
        before = unrecorded(
            harness,
            after_event("tool.started", tool.wait_until_running),
            b"interrupt:",
            lambda item: item.cancel_requested,
            cancel="enough",
        )

        home = adopt_after_kill(harness, before, lambda: continue_cli(harness), ends=ends)

        check_adopted(home, harness)
        assert [(run.status, run.stop_reason) for run in home.runs] == [("cancelled", "user_stop")]
        assert home.event_types[-1] == "run.cancelled"
        assert len(home.events_of(ev.ToolFailed)) == 1
        assert tool.alive == []


def test_two_questions_may_be_answered_by_two_programs(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    parts = [part for file in files for part in request_command(f"echo once >> {file}").parts]
    with codex_harness(tmp_path, [answer(*parts), answer("Done.")]) as harness:

        async def before(driver: Driver) -> None:
            one = await driver.wait_for_event("approval.requested")
            await driver.wait_for_event("approval.requested")
            await driver.send(allow=one["approval"])
            await driver.wait_for_event("approval.resolved")

        async def then(run: RunHandle) -> None:
            asked = [event async for event in _asked(run)]
            await run.decide(asked[1].approval, Verdict(True))

        home = adopt_after_kill(harness, before, lambda: None, then=then, **ASKING)

        check_adopted(home, harness)
        assert [run.status for run in home.runs] == ["completed"]
        assert [each.verdict for each in home.events_of(ev.ApprovalResolved)] == ["allow", "allow"]
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


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_driver_may_be_killed_while_the_model_is_asked_again(tmp_path: Path, ends: str) -> None:
    gate = StreamGate()
    script = [answer(text("Hel", Cut())), answer(text("Hel", "lo"), held=gate)]
    with codex_harness(tmp_path, script) as harness:
        before = after_event("provider.retrying", lambda: wait_for_gate(gate))

        home = adopt_after_kill(harness, before, gate.open, ends=ends)

        check_adopted(home, harness)
        assert home.event_types == [*STARTED, "provider.retrying", *COMPLETED]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert [each.text for each in home.events_of(ev.TextFinal)] == ["Hello"]
