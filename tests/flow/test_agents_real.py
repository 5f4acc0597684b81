"""Agents with real CLIs keep one conversation over many items, limits and a broken session."""

from datetime import UTC, datetime
from pathlib import Path

import anyio

from steadyrun.model import event as ev
from steadyrun.model.gate import Opened, can_dispatch
from steadyrun.model.ids import ItemId
from steadyrun.testing.model_servers.content import answer
from steadyrun.testing.model_servers.faults import Refusal, refuse_rate_limit
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.support.daemon_harness import DaemonHarness
from tests.support.real_agents import real_agent
from tests.support.real_cli_harness import Cli, CliHarness, cli_harness, each_cli

# How often each asks before it gives up.
TRIES = {"claude": 3, "codex": 3}
UNTIL_GO = "until test -e go; do sleep 0.01; done"


def read_last_request(harness: CliHarness) -> str:
    """The last request to the model, as text."""
    last = harness.server.main_requests[-1]
    return str(last.messages) + str(last.body)


@each_cli
def test_two_items_are_one_conversation_in_one_process(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, [answer("One."), answer("Two.")], cli=cli) as harness:
        (harness.cwd / "SOUL.md").write_text("Be brief, says the soul.")

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                first = await daemon.send_and_wait(ada, "the first request")
                second = await daemon.send_and_wait(ada, "the second request")

                assert [first.reply, second.reply] == ["One.", "Two."]
                runs = await daemon.runs(ada)
                assert len({run.process for run in runs}) == 1
                assert len({run.resume_token for run in runs}) == 1

        anyio.run(main)
        request = read_last_request(harness)
    assert "the first request" in request
    assert "Be brief, says the soul." in request


@each_cli
def test_message_is_absorbed_by_the_active_run(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(
        tmp_path, [answer(cli.run_command(UNTIL_GO)), answer("Done.")], cli=cli
    ) as harness:

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                item = await daemon.send(ada, "work")
                await daemon.wait_for_event(ada, ev.ToolStarted)
                more = await daemon.send(ada, "and this, too")
                await daemon.wait_for_event(ada, ev.FollowupOffered)
                (harness.cwd / "go").touch()

                assert (await daemon.wait_until_settled(item)).status == "completed"
                absorbed = await daemon.wait_until_settled(more)
                assert (absorbed.status, absorbed.delivery) == ("completed", "absorbed")
                assert len(await daemon.runs(ada)) == 1

        anyio.run(main)


@each_cli
def test_rate_limit_closes_the_gate_and_the_item_is_retried(tmp_path: Path, cli: Cli) -> None:
    with cli_harness(tmp_path, _limited(cli), cli=cli) as harness:

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                item = await daemon.send(ada, "work")
                await daemon.wait_for_event(ada, ev.RunRateLimited)
                await daemon.wait_until(ada, lambda: _is_queued(daemon, item))
                [gate] = await daemon.store.gates()
                assert not can_dispatch(gate, datetime.now(UTC))
                asks = len(harness.server.main_requests)
                await daemon.store.update_gate(gate.provider, Opened())
                done = await daemon.wait_until_settled(item)

                assert done.status == "completed"
                assert len(harness.server.main_requests) == asks + 1
                assert [run.status for run in await daemon.runs(ada)] == [
                    "rate_limited",
                    "completed",
                ]

        anyio.run(main)


def test_session_that_its_provider_refuses_is_replaced(tmp_path: Path) -> None:
    refused = Refusal("invalid")
    with cli_harness(tmp_path, [answer("One."), refused, refused, answer("Anew.")]) as harness:

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                await daemon.send_and_wait(ada, "the first request")
                second = await daemon.send_and_wait(ada, "the second request")
                third = await daemon.send_and_wait(ada, "the third request")

                assert second.status == "failed"
                assert second.error
                assert second.error.code == "invalid_request"
                assert (third.status, third.reply) == ("completed", "Anew.")
                session = (await daemon.store.sessions(ada)).get("claude")
                assert session
                assert session.current
                assert [each.ended for each in session.history] == ["the provider has lost it"]

        anyio.run(main)
        last = str(harness.server.main_requests[-1].messages)
    assert "From the record" in last
    assert "the second request" in last


def _limited(cli: Cli) -> ServerSteps:
    """As often as the CLI tries by itself, and then an answer."""
    return [*[refuse_rate_limit(retry_after=0)] * TRIES[cli.name], answer("Done.")]


async def _is_queued(daemon: DaemonHarness, item: ItemId) -> bool:
    return (await daemon.store.item(item)).status == "queued"
