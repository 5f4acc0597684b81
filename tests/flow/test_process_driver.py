"""One process serves several turns, also after its driver was replaced."""

import os
import select
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from steadyrun.dialect import LaunchRequest, Turn, TurnEnded
from steadyrun.driver import JournalBatch
from steadyrun.drivers.launcher import KeeperLauncher, ProviderSetup
from steadyrun.drivers.process_driver import ProcessDriver
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches, OnFileChange
from steadyrun.lib.unix_socket import shorten_path
from steadyrun.model.event import Emitted, OutputRaw, TextFinal
from steadyrun.model.ids import AgentId, HolderId, ProcessId
from steadyrun.model.process import Process, SavedState
from steadyrun.providers.scripted.dialect import Scripted
from tests.chaos.scenario import find_pids
from tests.children.keeper_driver import eventually, is_locked

PATIENCE_SECONDS = 20.0
PROCESS = Process(
    ProcessId("proc_warm"),
    AgentId("agent_warm"),
    "scripted",
    "here",
    "processes/proc_warm",
    datetime(2026, 1, 1, tzinfo=UTC),
)


class OutputCollector:
    """Receives what a driver passes on."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.stderr: list[str] = []
        self.ends: list[JournalBatch] = []
        self._changed = anyio.Event()

    async def collect(self, batch: JournalBatch) -> None:
        for output in batch.output:
            if isinstance(output, Emitted) and isinstance(output.event, TextFinal):
                self.texts.append(output.event.text)
            if isinstance(output, Emitted) and isinstance(output.event, OutputRaw):
                self.stderr.append(output.event.text)
            if isinstance(output, TurnEnded):
                self.ends.append(batch)
        self._changed.set()
        self._changed = anyio.Event()

    async def until_ended(self, count: int) -> None:
        while len(self.ends) < count:
            await self._changed.wait()


class NoStderrWatches(FileWatches):
    """Never reports changes of stderr, as if its notifications came after those of the journal."""

    def add(self, path: Path, wake: OnFileChange) -> int:
        return super().add(path, wake if path.name != "stderr" else _ignore)

    def remove(self, watch: int, wake: OnFileChange) -> None:
        super().remove(watch, wake if wake in self._callbacks[watch] else _ignore)


def _ignore(is_sure: bool) -> None:
    del is_sure


def says(text: str) -> Turn:
    return Turn(f"run_{text}", f'script:[{{"text":"{text}"}}]')


@asynccontextmanager
async def following(
    home: Path,
    process: Process,
    sink: OutputCollector,
    *,
    fence: int,
    launch: Turn | None = None,
    kind: type[FileWatches] = FileWatches,
) -> AsyncIterator[ProcessDriver]:
    """A driver that has claimed the process and reads on, until the block is left."""
    with kind() as watches:
        drivers = KeeperLauncher(
            home,
            {"scripted": ProviderSetup(Scripted, dict)},
            clock=SystemClock(),
            watches=watches,
        )
        if launch:
            await drivers.launch(process, LaunchRequest(launch, str(home)))
        holder = HolderId(f"holder_{fence}")
        async with (
            drivers.drive(process, holder=holder, fence=fence, sink=sink.collect) as driver,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(driver.follow)
            yield driver
            tasks.cancel_scope.cancel()


def restore_process(process: Process, end: JournalBatch) -> Process:
    """The process as the record has it after a turn's end."""
    assert end.memory is not None
    saved = SavedState(end.memory, end.sent, end.offset)
    return Process(
        process.id,
        process.agent,
        process.provider,
        process.machine,
        process.keeper,
        process.opened_at,
        offset=end.offset,
        saved=saved,
    )


@pytest.mark.parametrize("is_replaced", [False, True], ids=["same driver", "another driver"])
def test_one_process_serves_two_turns_also_with_another_driver(
    tmp_path: Path, is_replaced: bool
) -> None:
    directory = tmp_path / PROCESS.keeper

    def is_gone() -> bool:
        return not is_locked(directory)

    async def main() -> list[str]:
        sink, process, fence = OutputCollector(), PROCESS, 1
        with anyio.fail_after(PATIENCE_SECONDS):
            async with following(
                tmp_path, process, sink, fence=fence, launch=says("one")
            ) as driver:
                await driver.begin(says("one"))
                await sink.until_ended(1)
                if not is_replaced:
                    await driver.begin(says("two"))
                    await sink.until_ended(2)
                    await driver.close()
                    await anyio.to_thread.run_sync(eventually, is_gone, "the end")
            if is_replaced:
                process = restore_process(process, sink.ends[0])
                async with following(tmp_path, process, sink, fence=2) as driver:
                    await driver.begin(says("two"))
                    await sink.until_ended(2)
                    await driver.close()
                    await anyio.to_thread.run_sync(eventually, is_gone, "the end")
        return sink.texts

    assert anyio.run(main) == ["one", "two"]
    # One process: its record of what was sent has both turns, and one handshake.
    sent = (directory / "sent").read_bytes()
    assert (sent.count(b"begin:run_one"), sent.count(b"begin:run_two")) == (1, 1)
    assert sent.count(b"hello") == 1


def test_stderr_of_a_turn_is_received_before_its_end(tmp_path: Path) -> None:
    turn = Turn("run_loud", 'script:[{"stderr":"low on disk"},{"text":"one"}]')

    async def main() -> str:
        sink = OutputCollector()
        with anyio.fail_after(PATIENCE_SECONDS):
            async with following(
                tmp_path, PROCESS, sink, fence=1, launch=turn, kind=NoStderrWatches
            ) as driver:
                await driver.begin(turn)
                await sink.until_ended(1)
                output = "".join(sink.stderr)
                await driver.close()
        return output

    assert anyio.run(main) == "low on disk\n"


def lose_answer(directory: Path, key: bytes) -> threading.Thread:
    """Stand between the driver and the keeper: kill the keeper when it acknowledges a frame with
    this key, and drop the acknowledgement. The thread ends then."""
    listener, keeper = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with shorten_path(directory) as path:
        keeper.connect(path)
        Path(path).unlink()
        listener.bind(path)
    listener.listen()
    pid = find_pids(PROCESS.id)["keeper"]

    def pass_on() -> None:
        with listener, keeper, listener.accept()[0] as driver:
            others = {driver: keeper, keeper: driver}
            while True:
                for ready in select.select([*others], [], [])[0]:
                    data = ready.recv(65536)
                    if ready is keeper and key in data:
                        os.kill(pid, signal.SIGKILL)
                        return
                    others[ready].sendall(data)

    thread = threading.Thread(target=pass_on)
    thread.start()
    return thread


def test_turn_was_sent_if_its_keeper_was_killed_before_it_acknowledged_it(tmp_path: Path) -> None:
    async def main() -> tuple[bool, bool, TurnEnded]:
        sink, one, two = OutputCollector(), says("one"), Turn("run_two", 'script:["hang"]')
        with anyio.fail_after(PATIENCE_SECONDS):
            async with following(tmp_path, PROCESS, sink, fence=1, launch=one) as driver:
                await driver.begin(one)
                await sink.until_ended(1)
            process = restore_process(PROCESS, sink.ends[0])
            between = lose_answer(tmp_path / PROCESS.keeper, b"begin:run_two")
            async with following(tmp_path, process, sink, fence=2) as driver:
                is_sent = await driver.begin(two)
                await sink.until_ended(2)
                await anyio.to_thread.run_sync(between.join)
                [end] = [each for each in sink.ends[1].output if isinstance(each, TurnEnded)]
                return is_sent, driver.has_sent(two), end

    is_sent, has_sent, end = anyio.run(main)
    assert (is_sent, has_sent) == (True, True)
    assert (end.status, end.stop_reason) == ("failed", "keeper_lost")
