"""A daemon with one agent, whose provider is a real CLI.

with staged(tmp_path, [answer("One.")], cli=CODEX) as stage:
    async with working(stage) as (team, ada):
        await team.done(ada, "the request")
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from steadyrun.app.runtime import open_runtime
from steadyrun.lib.task_group import task_group
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import Policy
from steadyrun.runtime.daemon import Daemon
from tests.support.daemon_harness import DEFAULT_CAPACITY, KEY, DaemonHarness, capture_log
from tests.support.real_cli_harness import CliHarness

TIMEOUT_SECONDS = 90.0


@asynccontextmanager
async def real_agent(
    harness: CliHarness, policy: Policy | None = None
) -> AsyncIterator[tuple[DaemonHarness, AgentId]]:
    """The agent may do everything unless a policy says otherwise."""
    with anyio.fail_after(TIMEOUT_SECONDS), capture_log() as told:
        async with (
            open_runtime(harness.config, kind="daemon", machine="here") as around,
            task_group() as tasks,
        ):
            daemon = Daemon(around, tasks, capacity=DEFAULT_CAPACITY, key=KEY)
            await daemon.recover()
            tasks.start_soon(daemon.serve)
            running = DaemonHarness(harness.cwd.parent, around.store, daemon, told)
            agent = Agent(
                around.ids.make_agent(),
                "ada",
                (harness.cli.name,),
                str(harness.cwd),
                policy=policy or Policy(harness.cli.mode),
            )
            await around.store.add_agent(agent)
            yield running, agent.id
            await daemon.shut_down(drain_seconds=10, keep=False)
            tasks.cancel_scope.cancel()
