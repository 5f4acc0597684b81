"""Runs commands as a process of an agent might, and writes the result of each to a file.

usage: agent_caller.py WAY FILE

FILE has a JSON list of lists of words; the results are in FILE.out. WAY is how the caller disguises
itself:

plain     it does not
unmarked  without the mark of its run
empty     with an empty environment
daemon    with an empty environment, as a daemon: forked twice, in a session of its own, adopted by
          the keeper
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

KEPT = ("HOME", "STEADYRUN_HOME", "PATH", "LANG")


def main() -> None:
    way, file = sys.argv[1], Path(sys.argv[2])
    if way == "daemon":
        become_daemon(file)
    env = build_environment(way)
    found = [run(words, env) for words in json.loads(file.read_text())]
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(found))
    draft.rename(file.with_suffix(".out"))


def build_environment(way: str) -> dict[str, str]:
    given = dict(os.environ)  # noqa: TID251
    if way == "plain":
        return given
    if way == "unmarked":
        return {name: value for name, value in given.items() if name != "STEADYRUN_PROCESS"}
    return {name: given[name] for name in KEPT if name in given}


def become_daemon(file: Path) -> None:
    """Return in a grandchild that was started without a mark and whose parent has ended. The first
    process waits for the result."""
    started_by = os.environ.get("STARTED_BY")  # noqa: TID251
    if started_by is not None:
        wait_until(lambda: os.getppid() != int(started_by))
        return
    if os.fork():
        wait_until(file.with_suffix(".out").exists)
        sys.exit(0)
    os.setsid()
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    env = {**build_environment("daemon"), "STARTED_BY": str(parent)}
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


def wait_until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not is_so():
        pause.wait(0.005)


def run(words: list[str], env: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    return {"words": words, "exit": done.returncode, "stderr": done.stderr, "stdout": done.stdout}


if __name__ == "__main__":
    main()
