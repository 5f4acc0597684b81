"""Do all tests pass? Two halves side by side: most of what they take is waiting for processes.

The halves are every other file, so that what belongs together, and takes long, is in both. What the
first one says is shown as it comes, what the second says after that.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run both, and end as the worse one."""
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
