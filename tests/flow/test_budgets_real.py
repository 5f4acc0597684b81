"""A budget ends a real CLI that loops, within one tool call of the limit."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from steadyrun.model import event as ev
from steadyrun.model.budget import Budget
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import Policy
from steadyrun.model.usage import count_tokens
from steadyrun.testing.model_servers.content import AnswerTokens, ModelAnswer, answer
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.support.daemon_harness import DaemonHarness
from tests.support.real_agents import real_agent
from tests.support.real_cli_harness import Cli, cli_harness, each_cli

# So much is used by each answer of a model that never stops.
EACH = 1000
LIMIT = 3500


def looping(cli: Cli) -> Callable[[ModelRequest], ModelAnswer]:
    """A model that wants the same command again and again."""

    def answered(_: ModelRequest) -> ModelAnswer:
        return answer(
            cli.run_command("echo x >> calls"), tokens=AnswerTokens(input=EACH - 10, output=10)
        )

    return answered


def is_spent(event: object) -> bool:
    return isinstance(event, ev.BudgetReached) and event.percent == 100


async def until_stopped(daemon: DaemonHarness, agent: AgentId) -> None:
    async def is_it() -> bool:
        lane = await daemon.store.lane(agent)
        return lane.is_paused and lane.queued == 1 and lane.status != "held"

    await daemon.wait_until(agent, is_it)


@pytest.mark.parametrize(
    "budget", [Budget(day_tokens=LIMIT), Budget(month=0.01)], ids=["tokens", "usd"]
)
@each_cli
def test_looping_agent_is_stopped_within_one_tool_call_of_its_budget(
    tmp_path: Path, cli: Cli, budget: Budget
) -> None:
    with cli_harness(tmp_path, looping(cli), cli=cli) as harness:

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                was = await daemon.store.agent(ada)
                policy = Policy(cli.mode, budget=budget)
                await daemon.store.set_agent(replace(was, policy=policy), was=was)
                item = await daemon.send(ada, "work for ever")
                await until_stopped(daemon, ada)

                [run] = await daemon.runs(ada)
                seen = [each.event for each in await daemon.events(ada)]
                spent = next(n for n, event in enumerate(seen) if is_spent(event))
                assert (run.status, run.stop_reason) == ("failed", "budget")
                assert sum(isinstance(event, ev.ToolStarted) for event in seen[spent:]) <= 1
                assert (await daemon.store.item(item)).status == "queued"
                [asked] = await daemon.store.approvals(ada)
                assert (asked.about, asked.run, asked.status) == ("budget", run.id, "open")
                if budget.day_tokens:
                    # Three are within the limit; the fourth answer is beyond it, and a model that
                    # takes no time may have asked for one more before the daemon could stop it.
                    assert 3 <= _calls(harness.cwd) <= 5
                    assert run.usage.input_tokens is not None
                    assert count_tokens(run.usage) >= LIMIT

        anyio.run(main)
        # A stopped run makes no more requests.
        if budget.day_tokens:
            assert 4 <= len(harness.server.main_requests) <= 6


def _calls(place: Path) -> int:
    return len((place / "calls").read_text().splitlines())


@each_cli
def test_direct_run_ends_at_its_cost_limit_with_every_cli(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, looping(cli), cli=cli) as harness:
        record = harness.run("work for ever", max_cost_usd=0.01)

    run = record.run
    assert (run.status, run.stop_reason) == ("failed", "budget")
    assert run.error
    assert run.error.code == "max_cost"
