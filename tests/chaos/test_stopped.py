"""Processes that are stopped for longer than the others wait cause no wrong result."""

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from steadyrun.model.event import StallWarned
from tests.chaos import checks, prompts
from tests.chaos.actions import ACTIONS, relaunch
from tests.chaos.forked_daemons import fork_daemons
from tests.chaos.scenario import CONFIG, Scenario, family
from tests.chaos.settings import DEFAULT_KILLS, KILLS, SEED
from tests.children.keeper_driver import eventually

STOPPED_SECONDS = 5.0
MOST_STALE = 6
# Each limit would be reached while a process is stopped, if that time counted.
STRICT = """
hang_seconds = 4.0
idle_seconds = 4.0
warning_seconds = 3.0
"""


@asynccontextmanager
async def scenario(place: Path, more: str = "") -> AsyncIterator[Scenario]:
    async with fork_daemons() as by:
        scene = await Scenario.begin(place / "scene", 1, by, CONFIG + more)
        try:
            yield scene
            await scene.settle_down()
            await checks.check(scene)
        finally:
            await scene.store.close()
            checks.clear(scene.home)


async def stop_for_a_while(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    # Nothing will happen: that is what it is for.
    with anyio.move_on_after(STOPPED_SECONDS):
        await anyio.Event().wait()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("target", ["daemon", "keeper", "daemon and keeper"])
def test_run_completes_without_a_stall_after_processes_were_stopped(
    tmp_path: Path, target: str
) -> None:
    async def main() -> None:
        async with scenario(tmp_path, STRICT) as scene:
            daemon = await scene.up()
            gate = scene.place / "gate"
            waiting = await scene.send(prompts.until(gate), "ada", on_lost="fail", way="store")
            assert await scene.until_running(waiting)
            [process] = await scene.store.open_processes()
            pids = {**family(process.id), "daemon": daemon.pid}
            steered = await scene.send(prompts.says, "ada", on_lost="fail", way="store")
            await scene.until_offered(steered)
            await stop_for_a_while(*(pids[each] for each in target.split(" and ")))
            gate.touch()
            for sent in (waiting, steered):
                assert await scene.until_settled(sent, seconds=30)
                assert sent.item
                item = await scene.store.item(sent.item)
                assert item.status == "completed", item
            record = await checks.read(scene)
            assert len(record.processes) == 1
            warned = [seen for seen in record.events if isinstance(seen.event, StallWarned)]
            assert warned == []
            await scene.down()

    anyio.run(main)


# What a daemon is about to write or to say when it is stopped.
STALE_POINTS = (
    "before start 2",
    "before open_process",
    "before start keeper",
    "before send begin",
    "after send begin",
    "before append started",
    "before append events",
    "before append ended",
    "before settle warm",
    "before offer_followups",
    "before send offer",
    "before absorb",
    "before retry",
    "before update_gate",
    "before release_lane",
    "before link eof",
    "before close_process",
)


def _chosen() -> list[str]:
    """All of them where there is time, else some of them, others with another seed."""
    if KILLS > DEFAULT_KILLS:
        return list(STALE_POINTS)
    return random.Random(SEED).sample(STALE_POINTS, MOST_STALE)


@pytest.mark.parametrize("point", _chosen())
def test_replaced_daemon_writes_nothing_and_ends(tmp_path: Path, point: str) -> None:
    """It is stopped, counts as gone, another one takes over and works; then it wakes up."""

    async def main() -> None:
        async with scenario(tmp_path) as scene:
            stale = await scene.up(point=point, then="stop")
            await _lead_to(scene, point)
            assert await stale.until("struck", seconds=20), f"it does not come to {point}"
            await anyio.to_thread.run_sync(
                eventually, lambda: _state(stale.pid) == "T", "the daemon that is stopped"
            )
            fresh = await scene.up()
            first = await scene.send(prompts.works, "ada", way="store")
            assert await scene.until_settled(first, seconds=30)
            stale.signal(signal.SIGCONT)
            more = [await scene.send(prompts.works, name, way="store") for name in ("ada", "bea")]
            word = await stale.until("ended", seconds=20)
            assert word, "the one that was taken over goes on"
            assert word.problem.rstrip().rpartition("errors.")[2].startswith("HolderGone"), word
            for sent in more:
                assert await scene.until_settled(sent, seconds=30)
            assert not fresh.is_over
            await scene.down()

    anyio.run(main)


async def _lead_to(scene: Scenario, point: str) -> None:
    await ACTIONS.get(point.partition(" ")[2], relaunch)(scene)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
