"""Measures the memory of a keeper: what each pair of outer process and keeper does not share.

Ten runs at a time, started through the library. Dirty pages by their proportional set size: a page
that two processes share counts half for each, and pages of files do not count.
"""

import os
import signal
from pathlib import Path

import anyio

import steadyrun
from bench import agent_lines
from bench.contender_ours import write_config
from bench.measure import Row, expect, make_scratch
from steadyrun.drivers import keeper
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.library import RunHandle, Steadyrun

PAIRS = 10
LIMIT_MB = 10.0
_LIMIT_SECONDS = 60.0
# A line a second, for longer than the measurement takes.
_LINES, _PACE_SECONDS = 300, 1.0


def rows() -> list[Row]:
    weights = anyio.run(_weigh)
    print(f"keeper: pairs weigh {', '.join(f'{each:.2f}' for each in sorted(weights))} MB")
    most = max(weights)
    name = f"keeper: Pss_Dirty of the largest of {PAIRS} pairs, MB / limit"
    return [Row(name, f"{most:.2f} MB", f"{LIMIT_MB:g} MB", most / LIMIT_MB, floor=1)]


async def _weigh() -> list[float]:
    with make_scratch() as folder, anyio.fail_after(_LIMIT_SECONDS):
        saved, home = agent_lines.build_stamped(_LINES).save(folder), folder / "home"
        command = agent_lines.build_command("scripted", saved.scripted, _PACE_SECONDS)
        async with steadyrun.open(write_config(home, command)) as sr:
            runs = [await sr.start("Go.", provider="scripted", cwd=folder) for _ in range(PAIRS)]
            for run in runs:
                await _wait_for_first_line(run)
            agents = _find_agents(home)
            weights = [_read_pair_mb(agent) for agent in agents]
            await _end(sr, runs, agents)
    return weights


async def _wait_for_first_line(run: RunHandle) -> None:
    async for _ in run.events():
        return


def _find_agents(home: Path) -> list[int]:
    """The process that the keeper of each run has started."""
    found = [keeper.find_marked(each.name) for each in (home / PROCESSES).iterdir()]
    expect(len(found) == PAIRS, f"{len(found)} of {PAIRS} processes are there")
    expect(all(len(pids) == 1 for pids in found), "a run has not one process")
    return [pid for pids in found for pid in pids]


def _read_pair_mb(agent: int) -> float:
    its_keeper = _read_parent(agent)
    return (_read_dirty_kb(its_keeper) + _read_dirty_kb(_read_parent(its_keeper))) / 1024


def _read_parent(pid: int) -> int:
    return int(_read_value(Path(f"/proc/{pid}/status"), "PPid"))


def _read_dirty_kb(pid: int) -> int:
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    expect(keeper.__file__.encode() in command, f"{pid} is no keeper: {command!r}")
    return int(_read_value(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Dirty").split()[0])


def _read_value(path: Path, name: str) -> str:
    lines = path.read_text().splitlines()
    return next(line.partition(":")[2] for line in lines if line.startswith(f"{name}:"))


async def _end(sr: Steadyrun, runs: list[RunHandle], agents: list[int]) -> None:
    for agent in agents:
        os.kill(agent, signal.SIGKILL)
    for run in runs:
        await (await sr.run(run.id)).result()
