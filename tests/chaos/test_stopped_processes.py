"""Processes that are stopped for longer than the others wait cause no wrong result."""

import os
import random
import signal
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from steadyrun.model.event import StallWarned
from tests.chaos import checks, prompts
from tests.chaos.actions import ACTIONS, relaunch
from tests.chaos.checks import checked_scenario
from tests.chaos.scenario import CONFIG, Scenario, find_pids
from tests.chaos.settings import DEFAULT_KILLS, KILLS, SEED
from tests.children.keeper_driver import eventually

STOPPED_SECONDS = 5.0
LIMIT_SECONDS = 60.0
MOST_STALE = 6
# Each limit would be reached while a process is stopped, if that time counted.
STRICT = """
hang_seconds = 4.0
idle_seconds = 4.0
warning_seconds = 3.0
"""


async def stop_for_a_while(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    # No condition can be awaited: the time itself is the fault.
    with anyio.move_on_after(STOPPED_SECONDS):
        await anyio.Event().wait()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("target", ["daemon", "keeper", "daemon and keeper"])
async def test_run_completes_without_a_stall_warning_after_processes_were_stopped(
    tmp_path: Path, target: str
) -> None:
    async with checked_scenario(tmp_path, CONFIG + STRICT) as scene:
        daemon = await scene.up()
        gate = scene.place / "gate"
        waiting = await scene.send(prompts.waits_for(gate), "ada", on_lost="fail", way="store")
        assert await scene.until_running(waiting)
        [process] = await scene.store.processes()
        pids = {**find_pids(process.id), "daemon": daemon.pid}
        steered = await scene.send(prompts.says, "ada", on_lost="fail", way="store")
        await scene.until_offered(steered)
        await stop_for_a_while(*(pids[each] for each in target.split(" and ")))
        gate.touch()
        for sent in (waiting, steered):
            assert await scene.until_settled(sent, seconds=LIMIT_SECONDS)
            assert sent.item
            item = await scene.store.item(sent.item)
            assert item.status == "completed", item
        record = await checks.read(scene)
        assert len(record.processes) == 1
        warned = [seen for seen in record.events if isinstance(seen.event, StallWarned)]
        assert warned == []
        await scene.down()


# What a daemon is about to write or to send when it is stopped.
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
async def test_replaced_daemon_writes_nothing_and_ends(tmp_path: Path, point: str) -> None:
    """A daemon is stopped and loses its locks. Another one takes over; then the first continues."""
    async with checked_scenario(tmp_path) as scene:
        stale = await scene.up(point=point, then="stop")
        await _lead_to(scene, point)
        assert await stale.until("struck"), f"the daemon does not reach {point}"
        await anyio.to_thread.run_sync(
            eventually, lambda: _state(stale.pid) == "T", "the daemon that is stopped"
        )
        fresh = await scene.up()
        first = await scene.send(prompts.works, "ada", way="store")
        assert await scene.until_settled(first, seconds=LIMIT_SECONDS)
        stale.signal(signal.SIGCONT)
        more = [await scene.send(prompts.works, name, way="store") for name in ("ada", "bea")]
        word = await stale.until("ended")
        assert word, "the replaced daemon does not end"
        assert word.problem.rstrip().rpartition("errors.")[2].startswith("HolderGone"), word
        for sent in more:
            assert await scene.until_settled(sent, seconds=LIMIT_SECONDS)
        assert not fresh.is_over
        await scene.down()


async def _lead_to(scene: Scenario, point: str) -> None:
    await ACTIONS.get(point.partition(" ")[2], relaunch)(scene)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
