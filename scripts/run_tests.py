"""Runs all tests in two halves side by side: most of their time is waiting for processes.

Each half has every other file, so that long tests of one subject are in both. The output of the
first half is shown as it comes, the output of the second half after that.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run both halves; the exit code is the worse one."""
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py"))
    with tempfile.TemporaryFile() as said:
        first, second = _begin("first", files[::2]), _begin("second", files[1::2], said)
        codes = [first.wait(), second.wait()]
        said.seek(0)
        shutil.copyfileobj(said, sys.stdout.buffer)
    return max(map(abs, codes))


def _begin(name: str, files: list[str], said: IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
    cache = f"cache_dir=.pytest_cache/{name}"
    command = [sys.executable, "-m", "pytest", "-o", cache, *sys.argv[1:], *files]
    return subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)


if __name__ == "__main__":
    sys.exit(main())
