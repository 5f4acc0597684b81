"""Tests the errors that a user gets when the file, folder or disk of the store is faulty.

The user always gets a named error of steadyrun, never one of SQLite, and the file is never worse
than before.
"""

import contextlib
import random
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from steadyrun.errors import (
    StoreCorrupt,
    StoreForeign,
    StoreFromFuture,
    StoreUnusable,
)
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, Note
from steadyrun.model.ids import AgentId, HolderId, ProcessId, RunId
from steadyrun.model.item import Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.store_conformance.fixtures import claim_lanes
from tests.children.disk_filler import DiskReport
from tests.support.require import require

CHILDREN = Path(__file__).parents[1] / "children"
AGENT = AgentId("agt_1")
PATIENCE_SECONDS = 60.0
ALL = 1_000_000

# Everything a damaged or missing page could meet, by name.
Verb = Callable[[SqliteStore], Awaitable[object]]
READS: dict[str, Verb] = {
    "agents": lambda s: s.agents(),
    "lane": lambda s: s.lane(AGENT),
    "items": lambda s: s.items(include_settled=True, limit=ALL),
    "open items": lambda s: s.items(limit=ALL),
    "runs": lambda s: s.runs(limit=ALL),
    "usage": lambda s: s.usage("agent"),
    "open processes": lambda s: s.processes(),
    "events": lambda s: s.events(limit=ALL),
    "last events": lambda s: s.events(agent=AGENT, limit=ALL, newest=True),
    "known": lambda s: s.lane_snapshots({AGENT: RunId("run_1")}),
    "holders": lambda s: s.holders(),
    "gates": lambda s: s.gates(),
}
WRITES: dict[str, Verb] = {
    "accept": lambda s: s.accept(Message(AGENT, "more")),
    "accept a key": lambda s: s.accept(Message(AGENT, "more", key="again")),
    "pause": lambda s: s.set_paused(AGENT, is_paused=True),
    "start": lambda s: _joined(s, lambda holder: claim_lanes(s, holder)),
    "reap": lambda s: _joined(s, s.reap),
    "add an agent": lambda s: s.add_agent(Agent(AgentId("agt_2"), "two", ("claude",), "/")),
}


async def _joined(store: SqliteStore, verb: Callable[[HolderId], Awaitable[object]]) -> object:
    return await verb((await store.join("test")).id)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def filled(home: Path, template: Path) -> Path:
    """A home with some hundred items and events in it; no process has it open."""
    shutil.copytree(template, home)
    return home


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template") / "home"

    async def fill() -> None:
        store = await SqliteStore.open(home)
        await store.add_agent(Agent(AGENT, "one", ("claude",), str(home)))
        for n in range(200):
            await store.accept(Message(AGENT, f"item {n} " * 20, key=f"key {n}"))
        holder = await store.join("test")
        now = SystemClock().now()
        run, process = RunId("run_1"), ProcessId("prc_1")
        [started] = await store.start(
            holder.id, lambda _, item: Created(run, AGENT, item.id, "claude", now)
        )
        claim = started.claim
        await store.open_process(claim, Process(process, AGENT, "claude", "here", "k", now))
        for n in range(100):
            events = [Emitted(n + 1, i, now, Note(f"event {n} {i}")) for i in range(20)]
            await store.append(claim, Batch(process, run, n, n + 1, tuple(events)))
        await store.close()

    anyio.run(fill)
    assert not _database(home).with_name("steadyrun.db-wal").exists()
    return home


# -- the file is not what it should be


def test_file_that_is_not_a_database_is_refused_and_unchanged(home: Path) -> None:
    garbage = random.Random(1).randbytes(12_000)
    _put(home, garbage)

    with pytest.raises(StoreForeign) as refused:
        _open(home)

    assert refused.value.path == _database(home)
    assert refused.value.hint
    assert _database(home).read_bytes() == garbage


@pytest.mark.parametrize("size", [2, 50, 99, 100, 511, 512, 1000])
def test_file_truncated_in_its_first_page_is_refused_and_unchanged(filled: Path, size: int) -> None:
    stump = _database(filled).read_bytes()[:size]
    _put(filled, stump)

    with pytest.raises((StoreCorrupt, StoreForeign)):
        _open(filled)

    assert _database(filled).read_bytes() == stump


def test_empty_file_becomes_a_store(home: Path) -> None:
    _put(home, b"")

    _open(home)

    assert _outcomes(home, WRITES | READS) == dict.fromkeys(WRITES | READS) | {
        "accept": "NotFound",
        "accept a key": "NotFound",
        "pause": "NotFound",
        "lane": "NotFound",
        "known": "NotFound",
    }


def test_every_verb_reports_a_file_whose_pages_are_all_damaged(filled: Path) -> None:
    whole = _database(filled).read_bytes()
    page = _page_bytes(whole)
    noise = random.Random(1).randbytes(len(whole) - page)
    _put(filled, whole[:page] + noise)

    outcomes = _outcomes(filled, READS | WRITES)

    assert outcomes == dict.fromkeys(READS | WRITES, "StoreCorrupt")


def test_verbs_that_read_missing_pages_report_a_truncated_file(filled: Path) -> None:
    whole = _database(filled).read_bytes()
    page = _page_bytes(whole)
    _put(filled, whole[: len(whole) // 2 // page * page])

    outcomes = _outcomes(filled, READS | WRITES)

    assert set(outcomes.values()) <= {None, "StoreCorrupt"}
    assert outcomes["events"] == outcomes["items"] == "StoreCorrupt"


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_is_either_not_read_or_reported(filled: Path, seed: int) -> None:
    dice = random.Random(seed)
    content = bytearray(_database(filled).read_bytes())
    start = dice.randrange(_page_bytes(content), len(content) - 200)
    content[start : start + 200] = dice.randbytes(200)
    _put(filled, bytes(content))

    outcomes = _outcomes(filled, READS | WRITES)

    assert set(outcomes.values()) <= {None, "StoreCorrupt"}, outcomes


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_database_of_another_program_is_refused_and_unchanged(home: Path, mode: str) -> None:
    home.mkdir()
    with contextlib.closing(sqlite3.connect(_database(home))) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE bookmarks (url)")
        connection.execute("PRAGMA user_version = 7")
        connection.commit()
    before = _content(home)

    with pytest.raises(StoreForeign):
        _open(home)

    assert _content(home) == before


def test_store_of_a_later_version_is_refused_and_unchanged(filled: Path) -> None:
    with contextlib.closing(sqlite3.connect(_database(filled))) as connection:
        [known] = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {known + 1}")
    before = _content(filled)

    with pytest.raises(StoreFromFuture) as refused:
        _open(filled)

    assert (refused.value.found, refused.value.known) == (known + 1, known)
    assert _content(filled) == before


# -- the place is not what it should be


def test_directory_in_place_of_the_file_is_unusable(home: Path) -> None:
    _database(home).mkdir(parents=True)

    with pytest.raises(StoreUnusable) as refused:
        _open(home)

    assert str(_database(home)) in str(refused.value)


def test_file_in_place_of_the_home_is_unusable(home: Path) -> None:
    home.write_text("not a directory")

    with pytest.raises(StoreUnusable):
        _open(home)

    assert home.read_text() == "not a directory"


def test_unwritable_empty_home_is_unusable(home: Path) -> None:
    home.mkdir()
    home.chmod(0o500)

    outcome = _open_without_privileges(home)

    assert outcome["error"] == "StoreUnusable"
    assert not outcome["retryable"]
    assert list(home.iterdir()) == []


def test_store_in_an_unwritable_directory_is_unusable(filled: Path) -> None:
    before = _content(filled)
    filled.chmod(0o500)

    outcome = _open_without_privileges(filled)

    assert outcome["error"] == "StoreUnusable"
    filled.chmod(0o700)
    assert _content(filled) == before


def test_store_with_an_unwritable_file_is_unusable(filled: Path) -> None:
    before = _content(filled)
    _database(filled).chmod(0o400)

    outcome = _open_without_privileges(filled)

    assert outcome["error"] == "StoreUnusable"
    assert _content(filled) == before


def test_full_disk_is_reported_and_writes_continue_when_there_is_space(tmp_path: Path) -> None:
    require("unshare", _can_mount(tmp_path), "no tmpfs can be mounted in a namespace of one's own")
    script = 'mount -t tmpfs -o size=40m none "$0" && exec "$1" "$2" "$0/home"'
    filler = str(CHILDREN / "disk_filler.py")

    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, str(tmp_path), sys.executable, filler],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    story = msgspec.json.decode(done.stdout, type=DiskReport)

    assert {(code, retryable) for code, retryable, _ in story.errors} == {("store_full", True)}
    assert len(story.errors) == 7, "each of the writers has met it"
    assert len(story.acked_before) > 50
    # One more than was sent: the item that is being worked on.
    assert sorted(story.found_when_full)[1:] == sorted(story.acked_before)
    acked = story.acked_before + story.acked_after
    assert sorted(story.found_at_the_end)[1:] == sorted(acked)
    assert story.offset_at_the_end == story.events_at_the_end == story.offset_before + 1
    assert story.problems == []


# -- opening is disturbed


def test_first_opening_that_was_killed_is_completed_by_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice, found = random.Random(5), Counter[str]()
    usual_seconds = _seconds_to_open(tmp_path / "usual")
    for group in range(20):
        homes = [tmp_path / f"{group}-{n}" for n in range(6)]
        for home in _killed_in_opening(homes, dice, usual_seconds):
            found[_state(_database(home))] += 1
            verb = {"add an agent": WRITES["add an agent"]}
            assert _outcomes(home, verb) == {"add an agent": None}
            assert _problems(home) == []
        if found.total() >= 30:
            break
    with capsys.disabled():
        sys.stdout.write(f"\nkilled in a first opening: {found.total()}, left {dict(found)}\n")

    assert found.total() >= 30
    assert found["begun"] > 0


def test_ten_processes_open_a_new_home_at_once(home: Path) -> None:
    with contextlib.ExitStack() as stack:
        openers = [stack.enter_context(_started(home)) for _ in range(10)]
        assert [_hear(opener) for opener in openers] == ["ready"] * 10
        for opener in openers:
            _tell(opener)
        outcomes = [_last_word(opener) for opener in openers]

    assert sorted(outcome.get("seq", outcome) for outcome in outcomes) == list(range(1, 11))
    assert _problems(home) == []


# -- helpers


def _database(home: Path) -> Path:
    return home / "steadyrun.db"


def _put(home: Path, content: bytes) -> None:
    home.mkdir(exist_ok=True)
    _database(home).write_bytes(content)


def _page_bytes(database: bytes | bytearray) -> int:
    size = int.from_bytes(database[16:18], "big")
    return 65536 if size == 1 else size


def _content(home: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in home.iterdir() if p.name.startswith("steadyrun.db")}


def _open(home: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(home)
        await store.close()

    anyio.run(main)


def _outcomes(home: Path, verbs: dict[str, Verb]) -> dict[str, str | None]:
    """What each verb came to: None if it worked, else the name of its error, of whatever kind."""
    outcomes: dict[str, str | None] = {}

    async def main() -> None:
        store = await SqliteStore.open(home)
        for name, verb in verbs.items():
            with anyio.fail_after(PATIENCE_SECONDS):
                try:
                    await verb(store)
                except Exception as error:  # noqa: BLE001 (which one is what the tests ask)
                    outcomes[name] = type(error).__name__
                else:
                    outcomes[name] = None
        with anyio.fail_after(PATIENCE_SECONDS):
            await store.close()

    try:
        anyio.run(main)
    except StoreCorrupt:
        return dict.fromkeys(verbs, "StoreCorrupt")
    return outcomes


def _problems(home: Path) -> Sequence[str]:
    async def main() -> list[str]:
        store = await SqliteStore.open(home)
        try:
            return await store.check()
        finally:
            await store.close()

    return anyio.run(main)


@contextlib.contextmanager
def _opener(home: Path, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready to open the store."""
    with _started(home, *before) as opener:
        assert _hear(opener) == "ready"
        yield opener


@contextlib.contextmanager
def _started(home: Path, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*before, sys.executable, str(CHILDREN / "store_opener.py"), str(home)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as opener:
        try:
            yield opener
        finally:
            opener.kill()


def _tell(opener: subprocess.Popen[bytes]) -> None:
    assert opener.stdin is not None
    opener.stdin.write(b"go\n")


def _hear(opener: subprocess.Popen[bytes], seconds: float = PATIENCE_SECONDS) -> Any:
    """Its next word, None if it said none in that time."""
    assert opener.stdout is not None
    if not select.select([opener.stdout], [], [], seconds)[0]:
        return None
    line = opener.stdout.readline()
    assert line, "it ended without a word"
    return msgspec.json.decode(line)


def _last_word(opener: subprocess.Popen[bytes]) -> dict[str, Any]:
    word = _hear(opener)
    while not isinstance(word, dict):
        assert word is not None, "it says nothing more"
        word = _hear(opener)
    return word


def _seconds_to_open(home: Path) -> float:
    with _opener(home) as opener:
        begin = time.monotonic()
        _tell(opener)
        assert _hear(opener) == "opened"
        return time.monotonic() - begin


def _killed_in_opening(
    homes: Sequence[Path], dice: random.Random, usual_seconds: float
) -> Iterator[Path]:
    """Kill a process in each home while it opens it; leave out those that were done by then."""
    with contextlib.ExitStack() as stack:
        # All at once, since starting takes longer than what is tested.
        openers = [stack.enter_context(_started(home)) for home in homes]
        for opener in openers:
            assert _hear(opener) == "ready"
        for home, opener in zip(homes, openers, strict=True):
            _tell(opener)
            is_early = _hear(opener, dice.random() * usual_seconds) is None
            opener.kill()
            opener.wait(PATIENCE_SECONDS)
            assert opener.stdout is not None
            if is_early and opener.stdout.read() == b"":
                yield home


def _state(file: Path) -> str:
    size = file.stat().st_size if file.exists() else None
    return "nothing" if size is None else "begun" if size else "empty"


def _open_without_privileges(home: Path) -> dict[str, Any]:
    """Open it in a process for which the modes of files count, also when we are root."""
    require("setpriv", shutil.which("setpriv") is not None, "it is not installed")
    powers = "-dac_override,-dac_read_search,-fowner"
    with _opener(home, "setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}") as opener:
        _tell(opener)
        return _last_word(opener)


def _can_mount(place: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    attempt = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(place)]
    return subprocess.run(attempt, capture_output=True, check=False).returncode == 0
