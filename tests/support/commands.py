"""The real `steadyrun` command in a clean environment, for tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "steadyrun"
LIMIT_SECONDS = 60


def environment(home: Path) -> dict[str, str]:
    """An environment with PATH and its own home, and no other variable of the machine."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "STEADYRUN_HOME": str(home),
    }


def steadyrun(
    home: Path, *words: str, cwd: Path | None = None, wrapper: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end. A traceback fails the test."""
    done = subprocess.run(
        [*wrapper, COMMAND, *words],
        env=environment(home),
        cwd=cwd or home.parent,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def first_run(home: Path) -> str:
    """Write one made-up run; return its id."""
    subprocess.run(
        [sys.executable, ROOT / "tests/children/sample_run.py"],
        env=environment(home),
        check=True,
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )
    listed = steadyrun(home, "runs", "-n", "1")
    return listed.stdout.splitlines()[1].split()[0]


def python(home: Path, program: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program that uses the library, to its end."""
    return subprocess.run(
        [sys.executable, program],
        env=environment(home),
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
