"""The limit of a real CLI holds an item back until the stated time."""

from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.gate import compute_gate_state
from steadyrun.testing.model_servers.anthropic import build_limit_headers
from steadyrun.testing.model_servers.content import answer
from steadyrun.testing.model_servers.faults import Refusal, refuse_rate_limit, refuse_usage_limit
from steadyrun.testing.model_servers.openai_common import build_codex_limit_headers
from tests.support.real_agents import real_agent
from tests.support.real_cli_harness import CLAUDE, CODEX, Cli, cli_harness

# Longer than it takes to start the CLI and to be refused.
AHEAD_SECONDS = 12
# What makes a subscription's limits count for Claude Code.
SUBSCRIPTION = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-dummy"}


def _refused(cli: Cli, resets_at: int) -> Refusal:
    if cli is CLAUDE:
        return refuse_rate_limit(headers=build_limit_headers("rejected", resets_at))
    return refuse_usage_limit(build_codex_limit_headers(100, resets_at))


@pytest.mark.parametrize("cli", [CLAUDE, CODEX], ids=lambda cli: cli.name)
def test_rate_limited_item_is_retried_at_the_stated_reset_time(tmp_path: Path, cli: Cli) -> None:
    resets_at = int(SystemClock().now().timestamp()) + AHEAD_SECONDS
    stated = datetime.fromtimestamp(resets_at, UTC)
    env = SUBSCRIPTION if cli is CLAUDE else {}
    with cli_harness(
        tmp_path, [_refused(cli, resets_at), answer("Done.")], cli=cli, env=env
    ) as harness:

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                item = await daemon.send(ada, "work")
                await daemon.wait_for_event(ada, ev.RunRateLimited)
                [gate] = await daemon.store.gates()
                assert (gate.until, gate.is_stated) == (stated, True)
                assert compute_gate_state(gate, datetime.now(UTC)) == "closed"
                asks = len(harness.server.main_requests)
                done = await daemon.wait_until_settled(item)

                assert (done.status, done.reply, done.tries) == ("completed", "Done.", 0)
                first, second = await daemon.runs(ada)
                assert [first.status, second.status] == ["rate_limited", "completed"]
                assert second.created_at >= stated, "nothing was started before"
                assert len(harness.server.main_requests) == asks + 1
                [gate] = await daemon.store.gates()
                assert (gate.is_closed, gate.run) == (False, first.id)

        anyio.run(main)
