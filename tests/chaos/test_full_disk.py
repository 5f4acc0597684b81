"""Agents lose nothing when the disk has no space, or no inodes, for a while."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from steadyrun.errors import StoreFailed
from tests.chaos import checks, prompts
from tests.chaos.forked_daemons import fork_daemons
from tests.chaos.scenario import CONFIG, SCRIPTED, Scenario, Sent
from tests.children.keeper_driver import eventually
from tests.support.commands import ROOT
from tests.support.require import require

INODES = 600
# The options of the small disk, for each thing that it lacks.
OPTIONS = {"space": "size=160m", "inodes": f"nr_inodes={INODES}"}
MESSAGES = 12


@pytest.mark.parametrize("what", OPTIONS)
def test_daemon_survives_a_full_disk_and_loses_no_accepted_message(
    tmp_path: Path, what: str
) -> None:
    """Run this file again, in a mount namespace with a small disk."""
    require("unshare", _can_mount(tmp_path), "no tmpfs can be mounted in a namespace of one's own")
    mount = f'mount -t tmpfs -o {OPTIONS[what]} none "$0" && exec "$@"'
    command = [sys.executable, __file__, str(tmp_path / "scene"), what]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, str(tmp_path), *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # noqa: TID251 (that of this test)
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def _can_mount(place: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    attempt = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(place)]
    return subprocess.run(attempt, capture_output=True, check=False).returncode == 0


async def fill_and_go_on(place: Path, what: str) -> None:
    """Send messages to all agents, fill the disk while they work, and make room again."""
    async with fork_daemons() as by:
        scene = await Scenario.begin(place, 1, by, CONFIG)
        try:
            daemon = await scene.up()
            first = [await scene.send(prompts.lasts, name, way="store") for name in SCRIPTED]
            await scene.until_running(first[0])
            ballast = place / "ballast"
            await anyio.to_thread.run_sync(_fill if what == "space" else _use_inodes, ballast)
            is_noticed = await _send_until_noticed(scene, what)
            with anyio.move_on_after(2.0):
                await daemon.end()
            await anyio.to_thread.run_sync(_make_room, ballast)
            assert not daemon.is_over, "a full disk has ended the daemon"
            for _ in range(MESSAGES):
                await scene.send(prompts.works, on_lost="resume", way="store")
            assert is_noticed
            for sent in scene.sent:
                sent.may_fail = True
            await scene.settle_down()
            await checks.check(scene, of_log=False)
            await _check_goes_on(scene)
        finally:
            await scene.store.close()
            checks.clear(scene.home)


async def _send_until_noticed(scene: Scenario, what: str) -> bool:
    """Send messages until the fault has an effect."""
    return await (_send_until_refused if what == "space" else _send_until_not_launched)(scene)


async def _send_until_not_launched(scene: Scenario) -> bool:
    """The store needs no new file and accepts messages; no process can be launched for them."""
    for name in SCRIPTED:
        await scene.change_agent(name)
    sent = [await scene.send(prompts.works, name, way="store") for name in SCRIPTED]

    async def is_noticed() -> bool:
        return b"launch" in await anyio.Path(scene.place / "daemon.log").read_bytes() or any(
            item.status == "failed" for item in await scene.store.items(include_settled=True)
        )

    return await scene.until(sent[-1].agent, is_noticed)


async def _send_until_refused(scene: Scenario) -> bool:
    """Send messages until one is refused; a refused message is not stored."""
    for number in range(2000):
        mark = f"big-{number}"
        text = prompts.written([{"text": mark}, {"thinking": "x" * 4000}])
        sent = Sent(mark, scene.agents["ada"], text, "resume")
        try:
            await scene._accept(sent)
        except StoreFailed:
            return True
        scene.sent.append(sent)
    return False


async def _check_goes_on(scene: Scenario) -> None:
    """What came when there was room again was done."""
    for sent in scene.sent[-MESSAGES:]:
        assert sent.item
        item = await scene.store.item(sent.item)
        assert item.status == "completed", item


def _fill(file: Path) -> None:
    """Take all the room there is."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 1 << 12):
        with suppress(OSError):
            while os.write(descriptor, b"x" * size):
                continue
    os.close(descriptor)
    eventually(lambda: shutil.disk_usage(file.parent).free < 1 << 16, "a full disk")


def _use_inodes(folder: Path) -> None:
    """Make empty files until there can be no other one."""
    folder.mkdir()
    with suppress(OSError):
        for number in range(INODES):
            (folder / str(number)).touch()
    assert os.statvfs(folder).f_ffree == 0


def _make_room(ballast: Path) -> None:
    shutil.rmtree(ballast) if ballast.is_dir() else ballast.unlink()


if __name__ == "__main__":
    anyio.run(fill_and_go_on, Path(sys.argv[1]), sys.argv[2])
