"""Spooled calls are done once and in order, whichever process is killed."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from steadyrun.errors import InvalidUsage
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId, Ids
from steadyrun.operations.spool import DrainReport, drain_spool, spool_call
from steadyrun.stores.sqlite import SqliteStore
from tests.support.commands import ROOT
from tests.support.fake_daemon import make_context

ADA = Agent(AgentId("agt_1"), "ada", ("scripted",), home="/")


async def add_agent(home: Path) -> None:
    store = await SqliteStore.open(home)
    await store.add_agent(ADA)
    await store.close()


async def drained(home: Path) -> tuple[DrainReport, list[str]]:
    """What came of the letters, and all that was asked, oldest first."""
    store = await SqliteStore.open(home)
    found = await drain_spool(make_context(store, home))
    items = await store.items(include_settled=True)
    await store.close()
    return found, [item.text for item in reversed(items)]


async def write(home: Path, *texts: str, agent: str = "ada") -> list[Path]:
    ids = Ids(SystemClock().now)
    return [
        await spool_call(home, ids, "item.send", {"agent": agent, "text": text}, key=text)
        for text in texts
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    anyio.run(add_agent, home)
    return home


def test_empty_spool_is_drained_without_effect(home: Path) -> None:
    assert anyio.run(drained, home) == (DrainReport(), [])


def test_spooled_calls_are_delivered_in_order_and_deleted(home: Path) -> None:
    files = anyio.run(write, home, "one", "two", "three")
    modes = {stat.S_IMODE(file.stat().st_mode) for file in files}

    found = anyio.run(drained, home)
    again = anyio.run(drained, home)

    assert found == (DrainReport(done=3), ["one", "two", "three"])
    assert again == (DrainReport(), ["one", "two", "three"])
    assert modes == {0o600}
    assert list((home / "letters").iterdir()) == []


def test_spooled_call_is_delivered_once_after_a_kill_in_delivery(home: Path) -> None:
    [first, _] = anyio.run(write, home, "one", "two")

    killed = subprocess.run(
        [sys.executable, ROOT / "tests/children/spool_drainer.py", home],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    was_there = first.exists()
    found = anyio.run(drained, home)

    assert killed.returncode == -signal.SIGKILL
    assert was_there
    assert found == (DrainReport(done=2), ["one", "two"])


def test_spooled_call_that_fails_for_now_stays(home: Path) -> None:
    [file] = anyio.run(lambda: write(home, "hello", agent="bob"))

    found, texts = anyio.run(drained, home)

    assert (found.done, found.bad, texts) == (0, (), [])
    assert [(kept.file, kept.code) for kept in found.kept] == [(file.name, "not_found")]
    assert file.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"not json", b"\xff", b"[]", b"{}", b'{"op":"item.send","input":{},"key":"k"}',
        b'{"op":"agent.dance","input":{},"key":"k"}', b'{"op":"status","input":{},"key":"k"}',
        b'{"op":"item.send","input":{"agent":"ada","text":7},"key":"k"}',
        b'{"op":"item.send","input":{"agent":"ada","text":"x"}}',
    ],
)  # fmt: skip
def test_unreadable_spool_file_is_set_aside_and_the_others_are_delivered(
    home: Path, raw: bytes
) -> None:
    anyio.run(write, home, "good")
    (home / "letters" / "0.json").write_bytes(raw)

    found = anyio.run(drained, home)

    assert found == (DrainReport(done=1, bad=("0.json",)), ["good"])
    assert (home / "letters" / "bad" / "0.json").read_bytes() == raw


def test_partly_written_spool_file_is_ignored(home: Path) -> None:
    (home / "letters").mkdir()
    (home / "letters" / "0.json.part").write_bytes(b'{"op":')

    assert anyio.run(drained, home) == (DrainReport(), [])


def test_call_that_is_not_idempotent_is_not_spooled(home: Path) -> None:
    async def write_one() -> None:
        await spool_call(home, Ids(SystemClock().now), "agent.rm", {"name": "ada"}, key="k")

    with pytest.raises(InvalidUsage, match="accepts no key"):
        anyio.run(write_one)
    assert not (home / "letters").exists()
