"""Faults that chaos runs have found once, each with a test of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from steadyrun.model.item import Item
from tests.chaos import checks, prompts
from tests.chaos.forked_daemons import fork_daemons
from tests.chaos.scenario import SHELL, Scenario, Sent


@asynccontextmanager
async def scenario(place: Path) -> AsyncIterator[Scenario]:
    async with fork_daemons() as by:
        scene = await Scenario.begin(place / "scene", 1, by)
        try:
            yield scene
            await scene.settle_down()
            await checks.check(scene)
        finally:
            await scene.store.close()
            checks.clear(scene.home)


async def _item(scene: Scenario, sent: Sent) -> Item:
    assert sent.item
    return await scene.store.item(sent.item)


def test_a_process_that_was_never_started_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with scenario(tmp_path) as scene:
            for point in ("before launch", "before start keeper"):
                daemon = await scene.up(point=point)
                await scene.change_agent("ada")
                sent = await scene.send(prompts.says, "ada", on_lost="fail", way="store")
                await daemon.end()
                assert daemon.struck == point
                daemon = await scene.up()
                assert await scene.until_settled(sent)
                assert (await _item(scene, sent)).status == "completed"
                await daemon.kill()

    anyio.run(main)


def test_shell_command_is_sent_without_reminders(tmp_path: Path) -> None:
    """What a conversation is reminded of would be a part of the command."""

    async def main() -> None:
        async with scenario(tmp_path) as scene:
            await scene.up()
            for _ in range(2):
                sent = await scene.send(prompts.says, SHELL, way="store")
                assert await scene.until_settled(sent)
                assert (await _item(scene, sent)).reply == sent.mark
            await scene.down()

    anyio.run(main)


def test_unprompted_turn_ends_when_another_daemon_takes_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with scenario(tmp_path) as scene:
            daemon = await scene.up(point="before send interrupt")
            first = await scene.send(prompts.lingers, "ada", way="store")
            await scene.until_running(first)
            own = await scene.send(prompts.hangs, "ada", way="store", is_endless=True)
            assert await scene.until_delivered(own, "own_turn")
            await scene.cancel(own)
            await daemon.end()
            await scene.up()
            assert await scene.until_settled(own)
            assert (await _item(scene, own)).status == "cancelled"
            await scene.down()

    anyio.run(main)


def test_a_conversation_that_is_gone_takes_no_follow_up_with_it(tmp_path: Path) -> None:
    """The CLI would begin the follow-up's own turn, in which nothing can be done either."""

    async def main() -> None:
        async with scenario(tmp_path) as scene:
            await scene.up()
            await scene.until_settled(await scene.send(prompts.says, "ada", way="store"))
            await scene.forget("ada")
            await scene.change_agent("ada")
            sent = [await scene.send(prompts.says, "ada", way="store") for _ in range(4)]
            for each in sent:
                assert await scene.until_settled(each)
                assert (await _item(scene, each)).status == "completed"
            await scene.down()

    anyio.run(main)
