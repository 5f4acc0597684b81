"""Measures what 1,000 sessions cost a daemon while each of them prints 5 lines a second.

Its CPU time is compared with that of epoll and os.read on the same number of pipes of the same
agents, its memory per session with that of claude-agent-sdk's clients. The daemon and the bare
reader run at the same time, and their agents print in alternating rounds. Everything is recorded,
and each line must be in the record once. Keepers are processes of their own and are shown
separately. STEADYRUN_BENCH_SESSIONS sets a smaller number.
"""

import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from bench import agent_lines, bare_reader, processes, store_setup
from bench.contender_ours import write_config
from bench.gate import Gate
from bench.measure import (
    Rounds,
    Row,
    compute_percentile,
    expect,
    format_seconds,
    make_scratch,
    measure_steadily,
)
from bench.processes import SecondProcess
from steadyrun.lib.inotify import open_inotify
from steadyrun.model.event import TextFinal

SESSIONS = int(os.environ.get("STEADYRUN_BENCH_SESSIONS", "1000"))  # noqa: TID251
# The memory of the SDK per session does not depend on the number of sessions.
SDK_SESSIONS = min(SESSIONS, 200)
PER_SECOND = 5
LINES = 30
ROUNDS = 5
# The rest of a round after its lines: all processes become idle.
_ROUND_SECONDS = LINES / PER_SECOND + 1.0
_AHEAD_SECONDS = 2.0
# What a session needs: memory of keeper, outer process and agent; descriptors.
_SESSION_MB, _SESSION_FILES, _FILES = 16, 6, 500


@dataclass(frozen=True)
class Weight:
    """Memory, in KB."""

    ours: float
    sdk: float
    keepers: float


def rows() -> list[Row]:
    _check_room()
    weights: list[Weight] = []
    return measure_steadily(
        lambda: _measure(weights), lambda found: _build_rows(found, weights[-1]), controls=["epoll"]
    )


def _check_room() -> None:
    """Refuse to run on a machine that is too small."""
    hint = "STEADYRUN_BENCH_SESSIONS makes it smaller"
    told = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]
    memory, needed = int(told) >> 10, SESSIONS * _SESSION_MB
    expect(memory > needed, f"{SESSIONS} sessions need {needed} MB, there are {memory}: {hint}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = SESSIONS * _SESSION_FILES + _FILES
    expect(most >= files, f"{SESSIONS} sessions need {files} files, {most} may be open: {hint}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    inotify = open_inotify()
    expect(inotify is not None, "no inotify descriptor is left: who follows files would poll")
    if inotify:
        inotify.close()


# -- measuring


def _measure(weights: list[Weight]) -> Rounds:
    with make_scratch() as folder:
        sdk = _measure_sdk_kb(folder)
        home, lines = folder / "home", agent_lines.build_stamped(LINES * ROUNDS).save(folder)
        ours, theirs = Gate(folder / "ours"), Gate(folder / "theirs")
        pace, count = 1 / PER_SECOND, str(SESSIONS)
        write_config(home, agent_lines.build_command("scripted", lines.scripted, pace, ours.path))
        daemon = [sys.executable, "-m", "bench.daemon_process", "drive", str(home), count]
        played = agent_lines.build_command("raw", lines.scripted, pace, theirs.path)[-2:]
        reader = [sys.executable, "-I", "-S", bare_reader.__file__, count, *played]
        with (
            processes.check_ended(home),
            processes.start_process("the daemon", daemon) as team,
            processes.start_process("the reader", reader) as bare,
        ):
            empty, keepers = _begin(team, bare, home)
            found = _run_rounds(team, bare, ours, theirs, keepers)
            kept = processes.read_proportional_kb(keepers)
            full = processes.read_private_kb(team.pid)
            weights.append(Weight((full - empty) / SESSIONS, sdk, kept / SESSIONS))
            team.send_line()
            bare.expect_line(str(SESSIONS * LINES * ROUNDS))
            team.expect_line("ended")
            team.finish()
        anyio.run(_check, home)
    return found


def _begin(team: SecondProcess, bare: SecondProcess, home: Path) -> tuple[int, list[int]]:
    """Start all sessions; return the memory of the daemon without them, and the keepers."""
    bare.expect_line("running")
    team.expect_line("ready")
    empty = processes.read_private_kb(team.pid)
    begin = time.monotonic()
    team.send_line()
    team.expect_line("running")
    print(f"sessions: {SESSIONS} began within {time.monotonic() - begin:.0f} s")
    keepers = processes.find_keepers(processes.find_agents(home))
    expect(len(set(keepers)) == 2 * SESSIONS, f"{len(keepers)} keepers are there")
    return empty, keepers


def _run_rounds(
    team: SecondProcess, bare: SecondProcess, ours: Gate, theirs: Gate, keepers: Sequence[int]
) -> Rounds:
    """Let the agents print in turns: one round for the daemon, one for the bare reader."""
    found: Rounds = {"ours": [], "epoll": [], "keepers": []}
    begin, every = time.monotonic() + _AHEAD_SECONDS, 2 * _ROUND_SECONDS
    with (
        ours.open_at(begin, every=every, rounds=ROUNDS),
        theirs.open_at(begin + _ROUND_SECONDS, every=every, rounds=ROUNDS),
    ):
        for number in range(ROUNDS):
            at = begin + number * every
            _sleep_until(at)
            kept, cpu = (
                sum(map(processes.read_cpu_seconds, keepers)),
                processes.read_cpu_seconds(team.pid),
            )
            _sleep_until(at + _ROUND_SECONDS)
            found["ours"].append(processes.read_cpu_seconds(team.pid) - cpu)
            found["keepers"].append(sum(map(processes.read_cpu_seconds, keepers)) - kept)
            cpu = processes.read_cpu_seconds(bare.pid)
            _sleep_until(at + every)
            found["epoll"].append(processes.read_cpu_seconds(bare.pid) - cpu)
    return found


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))  # noqa: TID251 (other processes work)


def _measure_sdk_kb(folder: Path) -> float:
    """The memory of a client of the SDK while its agent prints."""
    lines, gate = agent_lines.build_stamped(LINES).save(folder), Gate(folder / "sdk")
    program = folder / "agent"
    command = agent_lines.build_command("claude", lines.claude, 1 / PER_SECOND, gate.path)
    program.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
    program.chmod(0o700)
    told = [sys.executable, "-m", "bench.sdk_sessions", str(SDK_SESSIONS), str(program)]
    with processes.start_process("the SDK", told) as sdk:
        sdk.expect_line("ready")
        empty = processes.read_private_kb(sdk.pid)
        sdk.send_line()
        sdk.expect_line("running")
        begin = time.monotonic() + _AHEAD_SECONDS
        with gate.open_at(begin):
            _sleep_until(begin + LINES / PER_SECOND / 2)
            full = processes.read_private_kb(sdk.pid)
            sdk.expect_line(str(SDK_SESSIONS * LINES))
    return (full - empty) / SDK_SESSIONS


# -- checking the result


async def _check(home: Path) -> None:
    """Check that each line is in the record once; return how late it was read."""
    ahead = time.time() - time.monotonic()  # noqa: TID251 (two clocks of the machine)
    seen: dict[str | None, list[str]] = {}
    delays, after = list[float](), 0
    async with store_setup.open_store(home) as store:
        while page := await store.events(after, limit=10_000):
            after = page[-1].cursor
            for stored in page:
                if isinstance(stored.event, TextFinal):
                    stamp = stored.event.text[:20]
                    seen.setdefault(stored.run, []).append(stamp)
                    delays.append(stored.at.timestamp() - ahead - int(stamp) / 1e9)
    expect(len(seen) == SESSIONS, f"{len(seen)} of {SESSIONS} runs have lines")
    for stamps in seen.values():
        expect(len(stamps) == LINES * ROUNDS, f"a run has {len(stamps)} lines")
        expect(stamps == sorted(set(stamps)), "lines are not once and in order")
    late = [format_seconds(max(0.0, compute_percentile(delays, part))) for part in (0.5, 0.99)]
    print(f"sessions: {len(delays)} lines, read after {late[0]} (p50), {late[1]} (p99)")


def _build_rows(found: Rounds, weight: Weight) -> list[Row]:
    lines = SESSIONS * LINES
    ours, epoll, keepers = (min(found[name]) / lines for name in ("ours", "epoll", "keepers"))
    print(
        f"sessions: keepers and outer processes take {format_seconds(keepers)} of CPU a line, "
        f"{weight.keepers / 1024:.1f} MB a session"
    )
    name = f"sessions: {SESSIONS} at {PER_SECOND} lines a second"
    return [
        Row(f"{name}, CPU a line / epoll", format_seconds(ours), format_seconds(epoll),
            ours / epoll, floor=5, goal=3),
        Row(f"{name}, memory a session / SDK", f"{weight.ours:.1f} KB", f"{weight.sdk:.1f} KB",
            weight.ours / weight.sdk, floor=1 / 3, goal=1 / 6),
    ]  # fmt: skip
