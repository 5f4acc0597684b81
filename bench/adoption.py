"""Measures how fast a new daemon takes over 200 open runs after `kill -9` of the last one.

The agents continue to print. The new daemon reports when everything is imported. From then on the
time counts until all lines printed so far are in the record, for every run, as seen in the store.
Then this daemon is killed as well, several times. At the end each printed line must be in the
record, once and in order.
"""

import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import anyio

from bench import agent_lines, processes, store_setup
from bench.contender_ours import check, write_config
from bench.gate import Gate
from bench.measure import Row, expect, format_seconds, make_scratch
from steadyrun.model.event import StoredEvent, TextFinal

RUNS = 200
LIMIT_SECONDS = 0.5
_ROUNDS = 5
# The agents print for as long as all rounds take.
_LINES, _PACE_SECONDS = 50, 1.0
# How long a daemon works before it is killed.
_LIFE_SECONDS = 2.0
_AHEAD_SECONDS = 1.0
_LOOK_SECONDS = 0.002
_WAIT_SECONDS = 60.0
_OFFSETS = 'SELECT keeper, "offset" FROM processes'


def rows() -> list[Row]:
    with make_scratch() as folder:
        home = folder / "home"
        took, used = zip(*_measure(folder, home), strict=True)
        anyio.run(_check, home)
    print(f"adoption: {RUNS} runs, {_ROUNDS} kills, 0 of {RUNS * _LINES} printed lines lost, "
          f"all in hand after {', '.join(map(format_seconds, took))}, "
          f"of which CPU {', '.join(map(format_seconds, used))}")  # fmt: skip
    usual = statistics.median(took)
    name = f"adoption: {RUNS} open runs, after imports, median / limit"
    shown = format_seconds(LIMIT_SECONDS)
    return [Row(name, format_seconds(usual), shown, usual / LIMIT_SECONDS, floor=1, goal=0.2)]


def _measure(folder: Path, home: Path) -> list[tuple[float, float]]:
    """Return the time of each round, and the CPU time of its daemon."""
    lines, gate = agent_lines.build_stamped(_LINES).save(folder), Gate(folder / "gate")
    command = agent_lines.build_command("scripted", lines.scripted, _PACE_SECONDS, gate.path)
    write_config(home, command)
    with processes.check_ended(home), _start_daemon("drive", home) as first:
        first.expect_line("ready")
        first.send_line()
        first.expect_line("running")
        with gate.open_at(time.monotonic() + _AHEAD_SECONDS):
            _sleep(_AHEAD_SECONDS + _LIFE_SECONDS)
            first.kill()
            took = [_adopt_runs(home) for _ in range(_ROUNDS - 1)]
            return [*took, _adopt_runs(home, is_last=True)]


def _adopt_runs(home: Path, *, is_last: bool = False) -> tuple[float, float]:
    with _start_daemon("adopt", home) as daemon, closing(_read_record(home)) as record:
        imported_at, cpu = int(daemon.expect_line()), processes.read_cpu_seconds(daemon.pid)
        printed = {each.name: _read_size(each) for each in (home / "processes").iterdir()}
        expect(len(printed) == RUNS, f"{len(printed)} processes are there")
        took = _wait_until_recorded(record, printed) - imported_at / 1e9
        used = processes.read_cpu_seconds(daemon.pid) - cpu
        if is_last:
            daemon.send_line()
            daemon.expect_line("ended")
            daemon.finish()
        else:
            _sleep(_LIFE_SECONDS)
            daemon.kill()
    return took, used


def _wait_until_recorded(record: sqlite3.Connection, printed: Mapping[str, int]) -> float:
    until = time.monotonic() + _WAIT_SECONDS
    while missing := _count_missing(record, printed):
        expect(time.monotonic() < until, f"{missing} of {RUNS} runs are not followed")
        _sleep(_LOOK_SECONDS)
    return time.monotonic()


def _count_missing(record: sqlite3.Connection, printed: Mapping[str, int]) -> int:
    recorded = {Path(keeper).name: offset for keeper, offset in record.execute(_OFFSETS)}
    return sum(recorded[name] < size for name, size in printed.items())


@contextmanager
def _start_daemon(role: str, home: Path) -> Iterator[processes.SecondProcess]:
    command = [sys.executable, "-m", "bench.daemon_process", role, str(home), str(RUNS)]
    with processes.start_process(f"the daemon ({role})", command) as daemon:
        yield daemon


def _read_record(home: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{home / 'steadyrun.db'}?mode=ro", uri=True)


def _read_size(process: Path) -> int:
    return (process / "journal").stat().st_size


def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 (other processes work)


async def _check(home: Path) -> None:
    """Compare the record with the journal, which has all that an agent printed."""
    async with store_setup.open_store(home) as store:
        runs = await store.runs(limit=RUNS + 1)
        expect(len(runs) == RUNS, f"there are {len(runs)} runs")
        for run in runs:
            events: list[StoredEvent] = await store.events(run=run.id, limit=10 * _LINES)
            check(events, home / "processes" / str(run.process) / "journal")
            texts = sum(isinstance(each.event, TextFinal) for each in events)
            expect(texts == _LINES, f"{texts} of {_LINES} lines are in the record")
