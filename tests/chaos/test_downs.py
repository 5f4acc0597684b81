"""`down` ends the daemon in every state of its agents, and the next daemon continues."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from steadyrun.operations.daemon import StopDaemonRequest
from tests.chaos import checks, prompts
from tests.chaos.checks import checked_scenario
from tests.chaos.scenario import CONFIG, SHELL, Scenario

# Longer than every wait of an orderly end.
LIMIT_SECONDS = 40.0
PATIENT = CONFIG.replace("approval_seconds = 0.3", "approval_seconds = 600.0")
State = Callable[[Scenario], Awaitable[None]]


async def be_idle(scene: Scenario) -> None:
    """No agent has work."""


async def be_warm(scene: Scenario) -> None:
    assert await scene.until_settled(await scene.send(prompts.says, "ada", way="store"))


async def be_queued(scene: Scenario) -> None:
    await scene.store.set_paused(scene.agents["ada"], is_paused=True)
    await scene.send(prompts.says, "ada", way="store")


async def be_starting(scene: Scenario) -> None:
    await scene.send(prompts.works, "ada", on_lost="resume", way="socket")


async def be_running(scene: Scenario) -> None:
    wait = prompts.waits_for(scene.place / "gate")
    sent = await scene.send(wait, "ada", on_lost="resume", way="store")
    assert await scene.until_running(sent)


async def be_running_a_command(scene: Scenario) -> None:
    await scene.send(prompts.says, SHELL, on_lost="resume", way="store")


async def be_steered(scene: Scenario) -> None:
    await be_running(scene)
    steered = await scene.send(prompts.says, "ada", on_lost="resume", way="store")
    assert await scene.until_offered(steered)


async def be_asked(scene: Scenario) -> None:
    sent = await scene.send(
        prompts.asks, "ada", on_lost="resume", way="store", is_endless=True, may_fail=True
    )

    async def is_asked() -> bool:
        return bool(await scene.store.approvals())

    assert await scene.until(sent.agent, is_asked)


async def be_cancelled(scene: Scenario) -> None:
    deaf = await scene.send(
        prompts.ignore_interrupts, "ada", on_lost="resume", way="store", is_endless=True
    )
    assert await scene.until_running(deaf)
    await scene.cancel(deaf)


async def be_limited(scene: Scenario) -> None:
    limited = await scene.send(
        prompts.is_limited, "ada", on_lost="resume", way="store", is_endless=True
    )
    await scene.until_tried(limited)


async def be_taken_over(scene: Scenario) -> None:
    await be_running(scene)
    assert scene.daemon
    await scene.daemon.kill()
    await scene.up()


async def be_stopped(scene: Scenario) -> None:
    """A keeper is stopped and does not answer."""
    await be_running(scene)
    assert await scene.stop_keeper()


async def be_draining(scene: Scenario) -> None:
    """Another caller has asked before, and was ready to wait; it does not get an answer."""
    await be_running(scene)
    with anyio.move_on_after(0.5):
        await scene.call("daemon.stop", StopDaemonRequest(drain=600.0))


STATES: dict[str, State] = {
    "idle": be_idle,
    "warm": be_warm,
    "queued": be_queued,
    "starting": be_starting,
    "running": be_running,
    "command": be_running_a_command,
    "steered": be_steered,
    "asked": be_asked,
    "cancelled": be_cancelled,
    "limited": be_limited,
    "taken over": be_taken_over,
    "stopped keeper": be_stopped,
    "draining": be_draining,
}


@pytest.mark.parametrize("keep", [False, True], ids=["stop", "keep"])
@pytest.mark.parametrize("state", STATES)
async def test_down_ends_the_daemon_in_every_state(tmp_path: Path, state: str, keep: bool) -> None:
    async with checked_scenario(tmp_path, PATIENT) as scene:
        await scene.up()
        await STATES[state](scene)
        assert scene.daemon
        with anyio.fail_after(LIMIT_SECONDS):
            await scene.call("daemon.stop", StopDaemonRequest(drain=0.0, keep=keep))
            await scene.daemon.end()
        if not keep:
            assert checks.left_of(scene.home) == {}
        (scene.place / "gate").touch()
