"""Agents continue after their program was missing for a moment, as in an upgrade."""

import sys
from pathlib import Path

import pytest

from steadyrun.providers.scripted import child
from tests.chaos import prompts
from tests.chaos.checks import checked_scenario
from tests.chaos.scenario import CONFIG, SCRIPTED, Scenario, Sent

LIMIT_SECONDS = 60.0
_ENTRY = Path(child.__file__).parent / "__main__.py"


def _write_program(place: Path) -> Path:
    program = place / "program"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {_ENTRY} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("is_killed", [False, True], ids=["lives", "killed"])
async def test_agents_work_again_after_their_program_was_missing(
    tmp_path: Path, is_killed: bool
) -> None:
    program = _write_program(tmp_path)
    away = program.with_name("away")
    config = f'{CONFIG}\n[providers.scripted]\ncommand = ["{program}"]\n'
    async with checked_scenario(tmp_path, config) as scene:
        daemon = await scene.up()
        program.rename(away)
        early = [
            await scene.send(prompts.says, name, way="store", may_fail=True)
            for name in SCRIPTED
            for _ in range(3)
        ]
        await _until_tried(scene, early[0])
        if is_killed:
            await daemon.kill()
            await scene.up()
        away.rename(program)

        late = [await scene.send(prompts.works, name, way="store") for name in SCRIPTED]
        for sent in late:
            assert await scene.until_settled(sent, seconds=LIMIT_SECONDS)
            assert sent.item
            item = await scene.store.item(sent.item)
            assert item.status == "completed", item


async def _until_tried(scene: Scenario, sent: Sent) -> None:
    """The daemon has tried to launch the program."""

    async def is_tried() -> bool:
        return bool(await scene.store.runs(sent.agent))

    assert await scene.until(sent.agent, is_tried)
