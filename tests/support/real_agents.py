"""A daemon with one agent, whose provider is a real CLI.

with cli_harness(tmp_path, [answer("One.")], cli=CODEX) as harness:
    async with real_agent(harness) as (daemon, ada):
        await daemon.send_and_wait(ada, "the request")
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from steadyrun.app.runtime import open_runtime
from steadyrun.config import Config
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
    harness: CliHarness,
    policy: Policy | None = None,
    *,
    config: Config | None = None,
    others: tuple[str, ...] = (),
) -> AsyncIterator[tuple[DaemonHarness, AgentId]]:
    """A daemon with one agent, which may do everything unless a policy says otherwise.

    `others` are more providers of the agent, which `config` must have.
    """
    with anyio.fail_after(TIMEOUT_SECONDS), capture_log() as log:
        async with (
            open_runtime(config or harness.config, kind="daemon", machine="here") as around,
            task_group() as tasks,
        ):
            daemon = Daemon(around, tasks, capacity=DEFAULT_CAPACITY, key=KEY)
            await daemon.recover()
            tasks.start_soon(daemon.serve)
            running = DaemonHarness(harness.cwd.parent, around.store, daemon, log)
            agent = Agent(
                around.ids.make_agent(),
                "ada",
                (harness.cli.name, *others),
                str(harness.cwd),
                policy=policy or Policy(harness.cli.mode),
            )
            await around.store.add_agent(agent)
            yield running, agent.id
            await daemon.shut_down(drain_seconds=10, keep=False)
            tasks.cancel_scope.cancel()
