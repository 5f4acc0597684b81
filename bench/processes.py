"""Finds the processes of a benchmark, measures them, and checks that all of them end."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.measure import Failed, expect

_PAUSE_SECONDS = 0.1
_WAIT_SECONDS = 120.0
# The clock of a process that counts the CPU time of its threads.
_RUN_TIME = 2


class SecondProcess:
    """A second process: it takes a step for each line it reads, and prints when it is done."""

    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self.pid = process.pid
        self._process, self._name = process, name

    def expect_line(self, word: str = "") -> str:
        """Wait for the next line of the process, which must be `word` if one is given."""
        assert self._process.stdout
        line = self._process.stdout.readline().strip()
        expect(
            bool(line) and line == (word or line), f"{self._name} printed {line!r}, not {word!r}"
        )
        return line

    def send_line(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(_WAIT_SECONDS)

    def finish(self) -> None:
        expect(self._process.wait(_WAIT_SECONDS) == 0, f"{self._name} has failed")


@contextmanager
def start_process(name: str, command: Sequence[str]) -> Iterator[SecondProcess]:
    """A process and everything it has started; none of them is left at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as process:
        try:
            yield SecondProcess(process, name)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def read_cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far: all its threads, none of its children."""
    return time.clock_gettime((~pid << 3) | _RUN_TIME)


def read_private_kb(pid: int) -> int:
    """The memory that a process does not share and has written to."""
    return _read_kb(pid, "Private_Dirty")


def read_proportional_kb(pids: Iterable[int]) -> int:
    """The memory that the processes have written to; a page shared by two counts half for each."""
    return sum(_read_kb(pid, "Pss_Dirty") for pid in pids)


def find_agents(home: Path) -> list[int]:
    """The agents that keepers have started for this home."""
    mark = f"STEADYRUN_HOME={home}".encode()
    return [pid for pid in _list_processes() if mark in _read(pid, "environ").split(b"\0")]


def find_keepers(agents: Iterable[int]) -> list[int]:
    """The keepers of these agents, and the outer processes of the keepers."""
    keepers = [_read_parent(pid) for pid in agents]
    return keepers + [_read_parent(pid) for pid in keepers]


@contextmanager
def check_ended(home: Path) -> Iterator[None]:
    """Check that no agent of the home is left; kill those that are, which ends their keepers."""
    try:
        yield
    finally:
        until = time.monotonic() + _WAIT_SECONDS
        agents = find_agents(home)
        others = find_keepers(agents)
        for agent in agents:
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
        while any(Path(f"/proc/{pid}").exists() for pid in agents + others):
            if time.monotonic() > until:
                raise Failed(f"processes of {home} do not end")
            time.sleep(_PAUSE_SECONDS)  # noqa: TID251 (they are not children of this process)


def _list_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (quicker)


def _read_parent(pid: int) -> int:
    return int(_read_value(pid, "status", "PPid"))


def _read_kb(pid: int, name: str) -> int:
    return int(_read_value(pid, "smaps_rollup", name).split()[0])


def _read_value(pid: int, file: str, name: str) -> str:
    lines = _read(pid, file).decode(errors="replace").splitlines()
    found = [line.partition(":")[2] for line in lines if line.startswith(f"{name}:")]
    if not found:
        raise Failed(f"process {pid} has ended")
    return found[0].strip()


def _read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        # The process has ended, or belongs to another user.
        return b""
