"""Frames that a killed driver sent to the real Codex count once after the adoption."""

import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from steadyrun.dialect import Verdict
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.model_servers.content import answer, make_text
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


def kill_unrecorded(
    harness: CliHarness,
    choose_request: Callable[[Driver], Awaitable[dict[str, str]]],
    key: bytes,
    is_accepted: Callable[[SqliteStore], Awaitable[bool]],
) -> Before:
    """Send a request to a stopped Codex, and kill the driver before it can record the frame."""

    async def before(driver: Driver) -> None:
        request = await choose_request(driver)
        cli = find_cli(harness)
        os.kill(cli, signal.SIGSTOP)
        # A stopped keeper sends the CLI nothing, and a locked store accepts no write.
        os.kill(parent(cli), signal.SIGSTOP)
        await driver.send(**request)
        await wait_for_record(harness, is_accepted)
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


async def wait_for_record(
    harness: CliHarness, is_accepted: Callable[[SqliteStore], Awaitable[bool]]
) -> None:
    """Wait until the store has accepted a request."""
    store = await SqliteStore.open(harness.home)
    try:
        with anyio.fail_after(TIMEOUT_SECONDS):
            while not await is_accepted(store):
                await anyio.lowlevel.checkpoint()
    finally:
        await store.close()


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_verdict_that_codex_reads_after_the_kill_counts_once(tmp_path: Path, ends: str) -> None:
    done = tmp_path / "done"
    with codex_harness(
        tmp_path, [request_command(f"echo once >> {done}"), answer("Done.")]
    ) as harness:

        async def allow(driver: Driver) -> dict[str, str]:
            request = await driver.wait_for_event("approval.requested")
            return {"allow": request["approval"]}

        async def is_answered(store: SqliteStore) -> bool:
            return [each.status for each in await store.approvals()] == ["answered"]

        before = kill_unrecorded(harness, allow, b"decide:", is_answered)
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
def test_message_that_codex_reads_after_the_kill_is_absorbed_once(
    tmp_path: Path, ends: str
) -> None:
    gate = StreamGate()
    with codex_harness(
        tmp_path, [answer(make_text("Hel", gate, "lo")), answer("That, too.")]
    ) as harness:

        async def steer(driver: Driver) -> dict[str, str]:
            await driver.wait_for_event("text.delta")
            return {"steer": "and THAT"}

        async def is_offered(store: SqliteStore) -> bool:
            return any(item.delivery == "offered" for item in await store.items())

        before = kill_unrecorded(harness, steer, b"offer:", is_offered)
        home = adopt_after_kill(harness, before, lambda: continue_cli(harness), ends=ends)

        check_adopted(home, harness)
        assert home.event_types == [*STARTED, "followup.offered", "followup.absorbed", *COMPLETED]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "That, too.")]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "absorbed")]
        assert count_sent(harness.server, "THAT") == 1


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_interrupt_that_codex_reads_after_the_kill_ends_the_turn(tmp_path: Path, ends: str) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [run_command(tool.command)]) as harness:

        async def cancel(driver: Driver) -> dict[str, str]:
            await driver.wait_for_event("tool.started")
            await tool.wait_until_running()
            return {"cancel": "enough"}

        async def is_requested(store: SqliteStore) -> bool:
            return any(item.cancel_requested for item in await store.items())

        before = kill_unrecorded(harness, cancel, b"interrupt:", is_requested)
        home = adopt_after_kill(harness, before, lambda: continue_cli(harness), ends=ends)

        check_adopted(home, harness)
        assert [(run.status, run.stop_reason) for run in home.runs] == [("cancelled", "user_stop")]
        assert home.event_types[-1] == "run.cancelled"
        assert len(home.events_of(ev.ToolFailed)) == 1
        assert tool.alive == []


def test_two_approvals_are_answered_by_two_programs(tmp_path: Path) -> None:
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
def test_run_completes_when_its_driver_is_killed_in_a_retry_of_codex(
    tmp_path: Path, ends: str
) -> None:
    gate = StreamGate()
    script = [answer(make_text("Hel", Cut())), answer(make_text("Hel", "lo"), held=gate)]
    with codex_harness(tmp_path, script) as harness:
        before = after_event("provider.retrying", lambda: wait_for_gate(gate))

        home = adopt_after_kill(harness, before, gate.open, ends=ends)

        check_adopted(home, harness)
        assert home.event_types == [*STARTED, "provider.retrying", *COMPLETED]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert [each.text for each in home.events_of(ev.TextFinal)] == ["Hello"]
