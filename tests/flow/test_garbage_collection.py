"""A daemon looks for garbage seldom, and leaves the collector of other programs alone."""

import gc
from pathlib import Path

import anyio
import pytest

from steadyrun.app.runtime import open_runtime
from steadyrun.config import load


@pytest.mark.parametrize(("kind", "is_changed"), [("daemon", True), ("library", False)])
def test_only_a_daemon_collects_garbage_seldom(tmp_path: Path, kind: str, is_changed: bool) -> None:
    before = gc.get_threshold()

    async def main() -> None:
        async with open_runtime(load(tmp_path, cwd=tmp_path), kind=kind, machine="here"):
            assert (gc.get_threshold() > before) is is_changed

    anyio.run(main)
    assert gc.get_threshold() == before
