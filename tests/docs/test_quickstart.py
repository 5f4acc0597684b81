"""Does the quickstart work as it is written, and does every stop of the tour exist?"""

import ast
import re
import subprocess
from pathlib import Path

from steadyrun.drivers import keeper
from tests.support.commands import COMMAND, ROOT, environment

LIMIT_SECONDS = 120.0
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
STOP = re.compile(r"`(src/[\w/]+\.py)::(\w+)`")


def test_the_quickstart_is_what_a_newcomer_can_type(tmp_path: Path) -> None:
    home = tmp_path / "home"
    blocks = BLOCK.findall((ROOT / "docs/quickstart.md").read_text(encoding="utf-8"))
    env = environment(home)
    env["PATH"] = f"{Path(COMMAND).parent}:/usr/bin:/bin"
    try:
        done = subprocess.run(
            ["sh", "-eux", "-c", "\n".join(blocks)],
            env=env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    finally:
        left = subprocess.run(
            [COMMAND, "down", "--drain", "0s"], env=env, capture_output=True, check=False
        )
        processes = [each.name for each in (home / "processes").glob("*")]
        keeper.sweep(processes)

    assert done.returncode == 0, done.stderr
    assert len(blocks) >= 5
    assert done.stdout.count("A script answered; no model was asked.") >= 3
    assert left.returncode == 69, "the last command has ended the daemon"


def test_every_stop_of_the_tour_is_there() -> None:
    page = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    stops = re.findall(r"^(\d+)\. ", page, re.MULTILINE)
    named = STOP.findall(page)

    assert [int(stop) for stop in stops] == list(range(1, 11))
    assert len(named) == page.count("::")
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        found = {node.name for node in tree.body if isinstance(node, _NAMED)}
        assert name in found, f"{file}::{name}"


_NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
