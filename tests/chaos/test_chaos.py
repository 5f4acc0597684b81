"""Agents recover from kills of their daemons, keepers and CLIs.

Real daemons, real keepers, scripted CLIs. A seeded program sends messages, steers, cancels and
pauses. At the same time it kills daemons at every named point and at any moment, and keepers, outer
processes and CLIs at any moment. After every scenario an undisturbed daemon completes the remaining
work, and the checks read the store, the files and /proc.

STEADYRUN_CHAOS_KILLS and STEADYRUN_CHAOS_SEED set the number of kills and repeat a run.
"""

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from tests.chaos import checks, prompts
from tests.chaos.actions import ACTIONS, ANY, cancel_queued, say, steer, work
from tests.chaos.forked_daemons import DaemonForker, ForkedDaemon, fork_daemons
from tests.chaos.scenario import Scenario
from tests.chaos.settings import KILLS, SEED
from tests.children.chaos_steps import POINTS

WORKERS = 3
PHASES = 8
MOST_ROUNDS = 5
# How long a daemon is given to come to a point.
STRIKE_SECONDS = 8.0
# A keeper that is stopped, and continued only after the death of the daemon.
STOPPED_KEEPER = "stopped keeper"
# The processes that the test kills at random moments.
OTHERS = (
    "daemon", "step", "keeper", "outer", "keeper and outer", "cli", "step", "owner", "cli",
    STOPPED_KEEPER,
)  # fmt: skip


class Fault(NamedTuple):
    """A point where the daemon is killed, or the process that is killed at a random moment."""

    point: str | None = None
    target: str = "daemon"


def plan(dice: random.Random, kills: int) -> list[Fault]:
    """Every point once, and random kills of other processes."""
    points = [Fault(point) for point in sorted(POINTS)]
    return shuffled(dice, points, kills - len(points))


def shuffled(dice: random.Random, faults: list[Fault], kills: int) -> list[Fault]:
    """These, and so many kills more: with most of the others a daemon is killed in the end, too."""
    more = [Fault(target=OTHERS[number % len(OTHERS)]) for number in range(round(kills / 1.6))]
    return dice.sample([*faults, *more], len(faults) + len(more))


class Tally:
    """What was done so far."""

    def __init__(self) -> None:
        self.points: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.stops = 0
        self.missed: list[Fault] = []


async def cause_fault(scene: Scenario, fault: Fault, tally: Tally) -> None:
    """Cause one fault while agents work; the daemon has ended afterwards."""
    dice = scene.dice
    if fault.point and fault.point.endswith("letter"):
        await scene.spool_message()
    if fault.target == STOPPED_KEEPER:
        await _stop_keeper(scene, tally)
        return
    if fault.target == "owner" or (fault.point or "").endswith("start_direct"):
        await _inflict_on_owner(scene, fault, tally)
        return
    step = dice.randint(1, 120) if fault.target == "step" else None
    daemon = await scene.up(point=fault.point, step=step)
    name = fault.point.partition(" ")[2] if fault.point else None
    for _ in range(dice.randint(0, 1) if name else dice.randint(1, 3)):
        await dice.choice(ANY)(scene)
    if name:
        await ACTIONS.get(name, say)(scene)
    elif fault.target not in {"daemon", "step"}:
        await _kill_others(scene, fault.target, tally)
    seconds = STRIKE_SECONDS if name else 2.0 if step else dice.uniform(0.0, 0.4)
    await daemon.until("ended", seconds=seconds)
    if name and not daemon.struck:
        tally.missed.append(fault)
    await _end_daemon(daemon, tally)


async def _end_daemon(daemon: ForkedDaemon, tally: Tally) -> None:
    if daemon.struck:
        tally.points[daemon.struck] += 1
    if not daemon.is_over or daemon.struck:
        tally.kills["daemon"] += 1
    await daemon.kill()


async def _inflict_on_owner(scene: Scenario, fault: Fault, tally: Tally) -> None:
    """Kill the owner of a run without an agent; a daemon takes over the run."""
    daemon = await scene.up()
    step = None if fault.point else scene.dice.randint(1, 40)
    owner = await scene.run_directly(point=fault.point, step=step)
    if owner.struck:
        tally.points[owner.struck] += 1
        tally.kills["owner"] += 1
    await daemon.kill()
    tally.kills["daemon"] += 1


async def _stop_keeper(scene: Scenario, tally: Tally) -> None:
    """The daemon works with a keeper that does not answer, and is killed over that."""
    dice, daemon = scene.dice, await scene.up()
    await scene.until_running(await scene.send(prompts.lasts))
    stopped = await scene.stop_keeper()
    tally.stops += stopped is not None
    await dice.choice((say, steer, cancel_queued, work))(scene)
    await daemon.until("ended", seconds=dice.uniform(0.0, 0.4))
    await _end_daemon(daemon, tally)
    if stopped:
        # A daemon may have continued the keeper, which may have ended since.
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)


async def _kill_others(scene: Scenario, target: str, tally: Tally) -> None:
    for _ in range(3):
        sent = await scene.send(prompts.lasts)
        await scene.until_running(sent)
        if await scene.kill_one(target):
            tally.kills[target] += 1
            return


async def play(
    place: Path, seed: int, faults: Sequence[Fault], tally: Tally, by: DaemonForker
) -> None:
    """A whole scenario."""
    scene = await Scenario.begin(place, seed, by)
    try:
        for fault in faults:
            await cause_fault(scene, fault, tally)
        await scene.settle_down()
        await checks.check(scene)
    except BaseException as error:
        error.add_note(f"in {place}, seed {seed}, {faults}")
        if scene.daemon:
            scene.daemon.signal(signal.SIGKILL)
        checks.clear(scene.home)
        raise
    finally:
        await scene.store.close()


async def play_all(place: Path, faults: list[Fault], seed: int, tally: Tally) -> None:
    """Scenario after scenario, three at a time."""
    left = [faults[n : n + PHASES] for n in range(0, len(faults), PHASES)]
    numbered = iter(list(enumerate(left)))

    async def work() -> None:
        async with fork_daemons() as by:
            for number, some in numbered:
                await play(place / str(number), seed + number, some, tally, by)

    async with anyio.create_task_group() as tasks:
        for _ in range(WORKERS):
            tasks.start_soon(work)


def test_agents_recover_from_kills_at_every_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally, dice = Tally(), random.Random(SEED)
    faults = plan(dice, KILLS)
    for number in range(MOST_ROUNDS):
        tally.missed = []
        anyio.run(play_all, tmp_path / str(number), faults, SEED + 1000 * number, tally)
        # A point that was not reached in time is tried once more.
        missed = [fault for fault in tally.missed if not tally.points[fault.point or ""]]
        faults = shuffled(dice, missed, max(0, KILLS - tally.kills.total()))
        if not faults:
            break
    with capsys.disabled():
        sys.stdout.write(
            f"\nchaos: seed {SEED}, {tally.kills.total()} kills {dict(tally.kills)}, "
            f"{tally.stops} stopped keepers, "
            f"{len(POINTS & set(tally.points))} of {len(POINTS)} points\n"
        )
    assert set(tally.points) >= POINTS, sorted(POINTS - set(tally.points))
    assert tally.kills.total() >= KILLS
