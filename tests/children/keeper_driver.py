"""A driver: starts a keeper and talks to it.

As a program, it talks to the keeper of DIRECTORY. It executes the commands on stdin and prints the
result of each:

claim FENCE         claim
frame KEY TEXT      send a frame
half KEY TEXT       send a frame without the second half of its bytes
rest TEXT           send that second half
"""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import steadyrun.drivers.keeper

# Each run has its own id: several may run at once, and a sweep ends every process of an id.
PROCESS = f"prc_{os.getpid()}"
KEEPER = Path(steadyrun.drivers.keeper.__file__)
CLI = Path(__file__).with_name("keeper_cli.py")
PATIENCE_SECONDS = 20.0
LIMITS = {
    "free_bytes": 0,
    "journal_bytes": 1 << 40,
    "silent_seconds": 600,
    "unclaimed_seconds": 600,
    "kill_seconds": 5,
}
Answer = TypeVar("Answer")


def eventually(ask: Callable[[], Answer], what: str) -> Answer:
    """The first answer that is not empty."""
    limit, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not (answer := ask()):
        assert time.monotonic() < limit, f"in vain: {what}"
        pause.wait(0.005)
    return answer


def spec(directory: Path, argv: Sequence[str], **changes: Any) -> dict[str, Any]:
    limits = LIMITS | changes.pop("limits", {})
    whole = {
        "v": 1,
        "process": PROCESS,
        "directory": str(directory),
        "argv": list(argv),
        "cwd": str(directory.parent),
        "env": {"PATH": "/usr/bin:/bin"},
        "stdin": "pipe",
        "rungs": [],
    }
    return whole | changes | {"limits": limits}


def start(
    what: Mapping[str, Any] | bytes, *, wrapper: Sequence[str] = (), keeper: Path = KEEPER
) -> dict[str, Any]:
    """Start a keeper as a driver does; return what it answers."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-I", "-S", str(keeper)],
        input=what if isinstance(what, bytes) else json.dumps(what).encode(),
        stdout=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer.pop("v") == 1
    return answer


class Kept:
    """A CLI with a keeper, seen from outside."""

    def __init__(self, directory: Path, argv: Sequence[str], **changes: Any) -> None:
        how = {name: changes.pop(name) for name in ("wrapper", "keeper") if name in changes}
        answer = start(spec(directory, argv, **changes), **how)
        self.directory = directory
        self.pid: int = answer["pid"]
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It may be over.
            self.keeper = parent(self.pid)
            self.outer = parent(self.keeper)

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def wait_for(self, data: bytes) -> None:
        """Wait until the CLI has printed this."""
        eventually(lambda: data in self.read("journal"), f"{data!r} in the journal")

    def wait_for_end(self) -> dict[str, Any]:
        """How it ended, once all is over."""
        eventually(lambda: not is_locked(self.directory), "the end of outer and keeper")
        ended: dict[str, Any] = json.loads(self.read("exit"))
        return ended

    def sent(self) -> list[tuple[int, str, int, bytes]]:
        return steadyrun.drivers.keeper.read_sent(self.read("sent"))


def hostile(directory: Path, verb: str, **changes: Any) -> Kept:
    """A CLI that behaves as this verb of `keeper_cli.py` says."""
    argv = [sys.executable, "-I", "-S", str(CLI), verb, str(directory.parent)]
    return Kept(directory, argv, **changes)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_locked(directory: Path) -> bool:
    with (directory / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Driver:
    """One connection to the keeper of a directory."""

    def __init__(self, directory: Path) -> None:
        # Through the directory, because the path of a socket is limited to 107 bytes.
        place = os.open(directory, os.O_PATH)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.connect(f"/proc/self/fd/{place}/socket")
        except OSError:
            self.socket.close()
            raise
        finally:
            os.close(place)
        self.socket.settimeout(PATIENCE_SECONDS)
        self._rest = b""

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def claim(self, fence: int = 1) -> dict[str, Any]:
        return self.ask({"type": "claim", "v": 1, "holder": "hld_test", "fence": fence})

    def frame(self, key: str, body: bytes, at: int = 0) -> dict[str, Any]:
        return self.ask({"type": "frame", "key": key, "at": at, "size": len(body)}, body)

    def will(self, body: bytes) -> dict[str, Any]:
        return self.ask({"type": "will", "size": len(body)}, body)

    def stop(self, reason: str = "user_stop") -> dict[str, Any]:
        """Stop it and wait for its end."""
        assert self.ask({"type": "stop", "reason": reason}) == {"type": "ok"}
        return self.read_answer()

    def ask(self, message: Mapping[str, Any], body: bytes = b"") -> dict[str, Any]:
        self.say(message, body)
        return self.read_answer()

    def say(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n" + body)

    def read_answer(self) -> dict[str, Any]:
        """Read the next answer; empty if the keeper has closed the connection."""
        while b"\n" not in self._rest:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return {}
            if not data:
                return {}
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main(directory: Path) -> None:
    driver = Driver(directory)
    verbs: dict[str, Callable[..., object]] = {
        "claim": lambda fence: driver.claim(int(fence)),
        "frame": lambda key, text: driver.frame(key, text.encode() + b"\n"),
        "half": lambda key, text: driver.say(*_half(key, text)),
        "rest": lambda text: driver.socket.sendall(text[len(text) // 2 :].encode() + b"\n"),
    }
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            outcome = verbs[verb](*words)
        except OSError as error:
            outcome = type(error).__name__
        os.write(1, json.dumps(outcome).encode() + b"\n")


def _half(key: str, text: str) -> tuple[dict[str, Any], bytes]:
    message = {"type": "frame", "key": key, "at": 0, "size": len(text) + 1}
    return message, text[: len(text) // 2].encode()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
