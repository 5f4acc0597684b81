"""Tests reading a file that another process writes: no line and no notification is missed."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from steadyrun.lib.file_follower import (
    CHUNK_BYTES,
    MANY_FILES,
    FileWatches,
    JournalFollower,
    TailFollower,
)
from steadyrun.lib.inotify import open_inotify

PATIENCE_SECONDS = 60.0
# A reader that wakes earlier was notified by the kernel, or polls because inotify is missing.
NEVER_SECONDS = 3600.0

# Appends bursts of lines as fast as it can, of sizes around the chunk's.
BURSTS = """
import os, sys
journal = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for burst in range(40):
    for line in range(burst):
        os.write(journal, b"%d.%d\\n" % (burst, line))
    os.write(journal, b"x" * (burst * 9000) + b"\\n")
"""
# Appends a byte for each byte it is given.
ECHO = """
import os, sys
journal = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
while byte := os.read(0, 1):
    os.write(journal, byte)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


def run(
    use: Callable[[FileWatches], Awaitable[None]],
    *,
    use_inotify: bool = True,
    safety_seconds: float = NEVER_SECONDS,
) -> None:
    """Run `use` where only the kernel, or polling without inotify, can wake a reader."""

    async def main() -> None:
        with (
            anyio.fail_after(PATIENCE_SECONDS),
            FileWatches(use_inotify=use_inotify, safety_seconds=safety_seconds) as watches,
        ):
            await use(watches)

    anyio.run(main)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def content(path: Path) -> bytes:
    return path.read_bytes()


def replace(path: Path, data: bytes) -> None:
    """Cut back, then written anew: the same inode."""
    path.write_bytes(data)


async def read_all(follower: JournalFollower) -> bytes:
    chunks = []
    while chunk := await follower.read():
        chunks.append(chunk)
    return b"".join(chunks)


async def until_waiting() -> None:
    """Let the other tasks run until they wait for the kernel."""
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def reading(follower: JournalFollower) -> AsyncIterator[list[bytes]]:
    """What a pending read returns, once the block has done something about it."""
    found: list[bytes] = []

    async def read() -> None:
        found.append(await follower.read())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await until_waiting()
        assert not found
        yield found


@asynccontextmanager
async def child(script: str, path: Path) -> AsyncIterator[anyio.abc.Process]:
    command = [sys.executable, "-I", "-S", "-c", script, str(path)]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stderr=None) as process:
        yield process


@pytest.mark.parametrize("use_inotify", [True, False])
def test_all_bytes_that_a_process_appends_are_read(path: Path, use_inotify: bool) -> None:
    async def main(watches: FileWatches) -> None:
        async def finish_behind(process: anyio.abc.Process) -> None:
            assert await process.wait() == 0
            follower.finish()

        with JournalFollower(watches, path) as follower:
            async with child(BURSTS, path) as process, anyio.create_task_group() as tasks:
                tasks.start_soon(finish_behind, process)
                found = await read_all(follower)

        assert found == content(path)
        assert found.count(b"\n") == 40 + sum(range(40))

    run(main, use_inotify=use_inotify)


def test_interrupted_read_returns_without_data(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        with JournalFollower(watches, path) as follower:
            async with reading(follower) as found:
                follower.interrupt()
            assert found == [b""]
            append(path, b"on")
            follower.interrupt()
            assert await follower.read() == b"on"
            assert await follower.read() == b""

    run(main)


def test_follower_calls_on_change_when_the_file_grows(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        told = anyio.Event()
        with JournalFollower(watches, path, on_change=told.set) as follower:
            append(path, b"news")
            await told.wait()
            assert follower.read_now() == b"news"

    run(main)


def test_follower_wakes_for_every_append(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        with JournalFollower(watches, path) as follower:
            async with child(ECHO, path) as process:
                assert process.stdin
                for number in range(1000):
                    sent = bytes([number % 256])
                    await process.stdin.send(sent)
                    assert await follower.read() == sent
                await process.stdin.aclose()

    run(main)


def test_many_appends_without_a_reader_are_read_completely(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        sent = os.urandom(3000)
        with JournalFollower(watches, path) as follower:
            async with child(ECHO, path) as process:
                assert process.stdin
                await process.stdin.send(sent)
                found = b""
                while len(found) < len(sent):
                    found += await follower.read()
                await process.stdin.aclose()

        assert found == sent

    run(main)


def test_reading_begins_at_the_offset(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        append(path, b"0123456789")
        with JournalFollower(watches, path, offset=4) as follower:
            assert await follower.read() == b"456789"
            assert follower.offset == 10

    run(main)


def test_chunk_size_is_limited(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        append(path, b"x" * (2 * CHUNK_BYTES + 1))
        with JournalFollower(watches, path) as follower:
            assert [len(await follower.read()) for _ in range(3)] == [CHUNK_BYTES, CHUNK_BYTES, 1]

    run(main)


def test_lagging_reader_lets_other_tasks_run(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        append(path, b"x" * (10 * CHUNK_BYTES))
        with JournalFollower(watches, path) as follower:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take_turns)
                for _ in range(10):
                    await follower.read()
                tasks.cancel_scope.cancel()

        assert turns >= 9

    run(main)


def test_finished_follower_reads_the_rest_of_the_file(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        append(path, b"the rest")
        with JournalFollower(watches, path) as follower:
            follower.finish()

            assert await follower.read() == b"the rest"
            assert await follower.read() == b""
            assert await follower.read() == b""

    run(main)


def test_finish_wakes_a_waiting_reader(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        with JournalFollower(watches, path) as follower:
            async with reading(follower) as found:
                follower.finish()

        assert found == [b""]

    run(main)


def test_cancelled_read_loses_no_bytes(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        with JournalFollower(watches, path) as follower:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follower.read)
                await until_waiting()
                append(path, b"all of it")
                tasks.cancel_scope.cancel()

            assert await follower.read() == b"all of it"

    run(main)


def test_two_followers_may_read_one_file(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        with JournalFollower(watches, path) as other:
            with JournalFollower(watches, path) as follower:
                async with reading(follower) as found, reading(other) as same:
                    append(path, b"for both")
            async with reading(other) as later:
                append(path, b"for one")

        assert (found, same, later) == ([b"for both"], [b"for both"], [b"for one"])

    run(main)


def test_each_follower_is_woken_by_its_own_file(tmp_path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        paths = [tmp_path / str(number) for number in range(200)]
        for each in paths:
            each.touch()
        followers = [JournalFollower(watches, each) for each in paths]
        for each, follower in zip(paths, followers, strict=True):
            async with reading(follower) as found:
                append(each, each.name.encode())
            assert found == [each.name.encode()]
            follower.close()

    run(main)


def test_close_wakes_a_waiting_reader(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        follower = JournalFollower(watches, path)

        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="closed")):
            async with reading(follower):
                follower.close()

    run(main)


def test_missed_notification_is_found_by_the_safety_poll(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        with JournalFollower(watches, path) as follower:
            if watches._inotify:
                watches._inotify.remove(follower._watch)
            async with reading(follower) as found:
                append(path, b"unheard")

        assert found == [b"unheard"]

    run(main, safety_seconds=0.01)


def test_changes_of_many_files_are_all_read(path: Path) -> None:
    """With more of them than are heard of one by one, again and again."""

    async def main(watches: FileWatches) -> None:
        paths = [path.with_name(f"{n}") for n in range(3 * MANY_FILES)]
        for each in paths:
            each.touch()
        followers = [JournalFollower(watches, each) for each in paths]
        for number in range(20):
            word = b"%d\n" % number
            for each in paths:
                append(each, word)
            assert [await follower.read() for follower in followers] == [word] * len(paths)
        for follower in followers:
            follower.close()

    run(main)


def test_file_that_cannot_be_watched_is_polled(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        is_woken = anyio.Event()

        def wake(is_sure: bool) -> None:
            assert not is_sure
            is_woken.set()

        with JournalFollower(watches, path):
            watch = watches.add(path / "not a directory", wake)

            await is_woken.wait()

            watches.remove(watch, wake)

    run(main)


def test_new_followers_do_not_delay_the_poll(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        is_woken = anyio.Event()
        watches.add(path, lambda _: is_woken.set())
        while not is_woken.is_set():
            with JournalFollower(watches, path):
                await anyio.lowlevel.checkpoint()

    run(main, use_inotify=False)


def test_overflow_of_the_kernel_queue_wakes_all_readers(path: Path) -> None:
    inotify = open_inotify()
    if inotify is None:
        pytest.skip("there is no inotify here")
    inotify.close()

    async def main(watches: FileWatches) -> None:
        others = [path.with_name(name) for name in ("a", "b")]
        for other in others:
            other.touch()
        with JournalFollower(watches, path) as follower:
            for other in others:
                watches.add(other, lambda _: None)
            # Turn about, so that the kernel cannot fold them into one.
            files = [other.open("ab", buffering=0) for other in others]
            async with reading(follower) as found:
                for _ in range(_queue_length() // 2 + 1):
                    for file in files:
                        file.write(b"x")
                append(path, b"unheard")
            for file in files:
                file.close()

        assert found == [b"unheard"]

    run(main)


def test_truncated_tail_is_read_from_its_start(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        append(path, b"x" * 1000)
        with TailFollower(watches, path) as follower:
            await follower.read()
            async with reading(follower) as found:
                replace(path, b"left")
            assert found == [b"left"]
            async with reading(follower) as found:
                append(path, b"more")
            assert found == [b"more"]

    run(main)


def test_tail_truncated_after_the_writer_finished_is_read(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        append(path, b"x" * 1000)
        with TailFollower(watches, path) as follower:
            await follower.read()
            replace(path, b"left")
            follower.finish()

            assert await read_all(follower) == b"left"

    run(main)


def test_truncated_journal_is_not_read_again(path: Path) -> None:
    async def main(watches: FileWatches) -> None:
        append(path, b"x" * 1000)
        with JournalFollower(watches, path) as follower:
            await follower.read()
            replace(path, b"who did this?")
            follower.finish()

            assert await read_all(follower) == b""

    run(main)


def _queue_length() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
