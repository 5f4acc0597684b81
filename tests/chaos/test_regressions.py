"""Defects that the chaos test has found, each with its own test."""

from pathlib import Path

from steadyrun.model.item import Item
from tests.chaos import prompts
from tests.chaos.checks import checked_scenario
from tests.chaos.scenario import SHELL, Scenario, Sent


async def _item(scene: Scenario, sent: Sent) -> Item:
    assert sent.item
    return await scene.store.item(sent.item)


async def test_item_completes_after_the_daemon_was_killed_before_the_cli_started(
    tmp_path: Path,
) -> None:
    async with checked_scenario(tmp_path) as scene:
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


async def test_shell_agent_receives_only_the_command(tmp_path: Path) -> None:
    """A briefing would become a part of the command."""
    async with checked_scenario(tmp_path) as scene:
        await scene.up()
        for _ in range(2):
            sent = await scene.send(prompts.says, SHELL, way="store")
            assert await scene.until_settled(sent)
            assert (await _item(scene, sent)).reply == sent.mark
        await scene.down()


async def test_cancelled_own_turn_of_a_followup_is_stopped_by_the_next_daemon(
    tmp_path: Path,
) -> None:
    async with checked_scenario(tmp_path) as scene:
        daemon = await scene.up(point="before send interrupt")
        first = await scene.send(prompts.wait_after_last_step, "ada", way="store")
        await scene.until_running(first)
        own = await scene.send(prompts.hangs, "ada", way="store", is_endless=True)
        assert await scene.until_delivered(own, "own_turn")
        await scene.cancel(own)
        await daemon.end()
        await scene.up()
        assert await scene.until_settled(own)
        assert (await _item(scene, own)).status == "cancelled"
        await scene.down()


async def test_followups_complete_when_the_conversation_is_lost(tmp_path: Path) -> None:
    """The own turn of a follow-up would fail in the lost conversation as well."""
    async with checked_scenario(tmp_path) as scene:
        await scene.up()
        await scene.until_settled(await scene.send(prompts.says, "ada", way="store"))
        await scene.forget("ada")
        await scene.change_agent("ada")
        sent = [await scene.send(prompts.says, "ada", way="store") for _ in range(4)]
        for each in sent:
            assert await scene.until_settled(each)
            assert (await _item(scene, each)).status == "completed"
        await scene.down()
