"""The real CLIs that `make ci-deps` installs: found, started in a clean environment, and ended with
all child processes.

with MessagesServer(script) as server:
    claude = StartedClaude(tmp_path, server.url)
    with claude:
        claude.send(user("hi"))
        frames = claude.read_until(is_result)
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.require import require

ROOT = Path(__file__).parents[2]
CLIS = ROOT / ".cache" / "clis" / "bin"
TIMEOUT_SECONDS = 60.0

Frame = dict[str, Any]

STREAM_JSON = (
    "--output-format",
    "stream-json",
    "--verbose",
    "--input-format",
    "stream-json",
    "--replay-user-messages",
    "--include-partial-messages",
)
BYPASS = ("--permission-mode", "bypassPermissions")
ASKING = ("--permission-mode", "default", "--permission-prompt-tool", "stdio")


def real_claude() -> Path:
    """Claude Code's program."""
    return real_program("claude")


def real_program(name: str) -> Path:
    """A CLI's program. Skips the test where there is none; fails it where it is required."""
    program = CLIS / name
    require(name, program.exists(), f"{program} is not there; try: make ci-deps")
    return program


def claude_environment(home: Path, base_url: str) -> dict[str, str]:
    """The whole environment of the CLI: a dummy key, and the simulated server as its only peer."""
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "ANTHROPIC_API_KEY": "sk-ant-dummy",
        "ANTHROPIC_BASE_URL": base_url,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
        "CLAUDE_CODE_TMPDIR": str(home),
    }
    if os.geteuid() == 0:
        environment["IS_SANDBOX"] = "1"
    return environment


class StartedCli:
    """A CLI over pipes; `frames` is all it has printed that was looked at.

    It works in `work` and writes its errors to `stderr`, both in the folder. Leaving it kills it
    with all its descendants, if it has not ended by itself.
    """

    def __init__(self, folder: Path, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.cwd = folder / "work"
        self.cwd.mkdir(exist_ok=True)
        self._stderr = (folder / "stderr").open("ab")
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=self.cwd,
            env=env,
        )
        self.frames: list[Frame] = []
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            kill_tree(self.process.pid)
        self.process.wait(TIMEOUT_SECONDS)
        self._reader.join(TIMEOUT_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def send(self, *frames: Frame) -> None:
        """Write frames, one a line, in one go."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def read_until(
        self, is_last: Callable[[Frame], bool], seconds: float = TIMEOUT_SECONDS
    ) -> list[Frame]:
        """The frames from here to the first that is the last one, with it."""
        deadline, start = time.monotonic() + seconds, len(self.frames)
        while True:
            frame = self._next(deadline)
            if frame is None:
                raise EOFError(f"it ended; heard: {self.outline(start)}")
            if is_last(frame):
                return self.frames[start:]

    def read_all(self, seconds: float = TIMEOUT_SECONDS) -> list[Frame]:
        """The frames up to the end of its output."""
        deadline, start = time.monotonic() + seconds, len(self.frames)
        while self._next(deadline) is not None:
            pass
        return self.frames[start:]

    def wait_for_exit(self) -> int:
        """Wait for its end."""
        return self.process.wait(TIMEOUT_SECONDS)

    def outline(self, start: int = 0) -> list[str]:
        """What it printed, in a word each."""
        return [kind_of(frame) for frame in self.frames[start:]]

    def _next(self, deadline: float) -> Frame | None:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"not in time; heard: {self.outline()}") from None
        if line is None:
            return None
        frame: Frame = json.loads(line)
        self.frames.append(frame)
        return frame

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)


class StartedClaude(StartedCli):
    """A persistent Claude Code."""

    def __init__(
        self,
        folder: Path,
        base_url: str,
        *flags: str,
        mode: tuple[str, ...] = BYPASS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        home = folder / "home"
        home.mkdir(exist_ok=True)
        argv = (str(real_claude()), *STREAM_JSON, *mode, *flags)
        super().__init__(folder, argv, {**claude_environment(home, base_url), **(env or {})})


def user(text: str, uuid: str | None = None, **more: Any) -> Frame:
    """A user's line."""
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    ident = {} if uuid is None else {"uuid": uuid}
    return {"type": "user", "message": message, **ident, **more}


def control(request_id: str, subtype: str, **more: Any) -> Frame:
    """A control request."""
    request = {"subtype": subtype, **more}
    return {"type": "control_request", "request_id": request_id, "request": request}


def kind_of(frame: Frame) -> str:
    """`type`, `type/subtype`, a method or, for a state, `state:idle`."""
    if frame.get("subtype") == "session_state_changed":
        return f"state:{frame['state']}"
    return "/".join(str(frame[key]) for key in ("method", "type", "subtype") if key in frame)


def is_kind(kind: str) -> Callable[[Frame], bool]:
    return lambda frame: kind_of(frame) == kind


def is_result(frame: Frame) -> bool:
    return bool(frame["type"] == "result")


is_idle = is_kind("state:idle")


def kill_tree(pid: int) -> None:
    """Kill a child of ours and all its descendants, whatever group or session they are in."""
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes below this one, nearest first."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True, timeout=30
    )
    children: dict[int, list[int]] = {}
    for line in listed.stdout.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]
