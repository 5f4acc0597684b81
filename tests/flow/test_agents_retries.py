"""An item whose run failed is retried where that repeats nothing."""

import itertools
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Attachment, Item, Payload
from steadyrun.model.policy import Policy
from tests.children.keeper_driver import parent
from tests.support.daemon_harness import (
    DaemonHarness,
    count_sent,
    find_cli,
    read_turns,
    running_daemon,
    say,
    script,
    wait_for,
)
from tests.support.fast_clock import AdjustableClock


async def _crash(harness: DaemonHarness, agent: AgentId, **fields: Any) -> Item:
    return await harness.send_and_wait(agent, script({"text": "one"}, {"crash": 3}), **fields)


async def test_item_of_a_crashing_cli_is_retried_three_times(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        item = await _crash(harness, ada)
        after = await harness.send_and_wait(ada, say("next"))

        assert (item.status, item.attempt, item.tries) == ("failed", 4, 3)
        assert item.error
        assert item.error.code == "exited"
        *tries, last = await harness.runs(ada)
        assert [run.status for run in tries] == ["failed"] * 4
        assert len({run.process for run in tries}) == 4
        gaps = [
            after.created_at - before.ended_at
            for before, after in itertools.pairwise(tries)
            if before.ended_at
        ]
        waits = [timedelta(seconds=0.5 * n) for n in (1, 2, 3)]
        assert all(gap >= wait for gap, wait in zip(gaps, waits, strict=True))
        assert (after.status, last.status) == ("completed", "completed")
        assert [run.metadata.get("again", {}).get("attempt") for run in tries] == [
            None,
            2,
            3,
            4,
        ]


@pytest.mark.parametrize(("on_lost", "is_noticed"), [("resume", True), ("retry", False)])
async def test_only_a_resumed_item_mentions_the_earlier_attempt(
    tmp_path: Path, on_lost: str, is_noticed: bool
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        await _crash(harness, ada, on_lost=on_lost)

        texts = [text for _, text in read_turns(tmp_path)]
        assert len(texts) == 4
        assert [("cut off" in text) for text in texts] == [False, *[is_noticed] * 3]
        assert all('"crash"' in text for text in texts)


async def _start_retry(harness: DaemonHarness, agent: AgentId) -> None:
    await harness.send(agent, script({"text": "one"}, "hang"))
    await harness.wait_for_text(agent, "one")
    os.kill(find_cli(await harness.find_process(agent)), signal.SIGKILL)
    await harness.wait_for_event(agent, ev.TextFinal, 2)


async def _start_own_turn(harness: DaemonHarness, agent: AgentId) -> None:
    await harness.send_waiting(agent)
    await harness.send(agent, script({"text": "own"}, "hang"))
    await harness.wait_for_event(agent, ev.FollowupOffered)
    harness.gates.open("go")
    await harness.wait_for_text(agent, "own")


async def _start_unprompted(harness: DaemonHarness, agent: AgentId) -> None:
    own = {"self_turn": {"after": 0.0, "steps": [{"text": "own"}, "hang"]}}
    await harness.send(agent, script(own, {"text": "one"}))
    await harness.wait_for_text(agent, "own")


SECOND_RUNS = {
    "retry": _start_retry,
    "own turn of a follow-up": _start_own_turn,
    "unprompted turn": _start_unprompted,
}


@pytest.mark.parametrize("start", SECOND_RUNS.values(), ids=SECOND_RUNS)
async def test_wall_timeout_and_allowed_tools_apply_to_every_kind_of_run(
    tmp_path: Path, start: Callable[[DaemonHarness, AgentId], Awaitable[None]]
) -> None:
    clock = AdjustableClock()
    async with running_daemon(tmp_path, interrupt=1.0, clock=clock) as harness:
        policy = Policy(allowed_tools=("Read",))
        ada = await harness.add_agent("ada", wall_seconds=600.0, policy=policy)
        await start(harness, ada)
        clock.seconds = 601
        await harness.wait_for_event(ada, ev.RunTimedOut)

        first, second = await harness.runs(ada)
        assert first.stop_reason is None
        assert (second.status, second.stop_reason) == ("timed_out", "wall_timeout")
        assert second.error
        assert (second.error.code, second.error.message) == (
            "wall_timeout", "the run was not done after 600 s",
        )  # fmt: skip
        assert [run.allowed_tools for run in (first, second)] == [("Read",)] * 2


async def test_item_with_on_lost_fail_is_sent_once(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        item = await _crash(harness, ada, on_lost="fail")

        assert (item.status, item.attempt) == ("failed", 1)
        assert len(read_turns(tmp_path)) == 1


async def test_item_of_a_hanging_cli_is_retried_once(tmp_path: Path) -> None:
    program = tmp_path / "silent"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    config = f'[providers.scripted]\ncommand = ["{program}"]\n'
    async with running_daemon(tmp_path, config=config, hang=0.5, interrupt=0.5) as harness:
        ada = await harness.add_agent("ada")
        item = await harness.send_and_wait(ada, say("one"))

        assert (item.status, item.attempt, item.tries) == ("failed", 2, 0)
        first, second = await harness.runs(ada)
        assert (first.stop_reason, second.stop_reason) == ("hang", "hang")


async def test_process_that_exits_before_its_second_turn_is_replaced_in_the_same_run(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("one"))
        cli = find_cli(await harness.find_process(ada))
        # Stopped, it can neither be told nor say that it is gone before the item has begun.
        os.kill(cli, signal.SIGSTOP)
        worker = harness.find_worker(ada)
        assert worker.slot.process
        driver = worker.slot.process.connection.driver
        assert driver
        async with driver._lock:  # type: ignore[attr-defined]
            item = await harness.send(ada, say("two"))
            await harness.wait_for_lane(ada, "held")
            os.kill(cli, signal.SIGKILL)
            directory = tmp_path / "home" / worker.slot.process.row.keeper
            await wait_for((directory / "exit").exists, "the exit")
        settled = await harness.wait_until_settled(item)

        first, second = await harness.runs(ada)
        assert (settled.status, settled.attempt) == ("completed", 1)
        assert first.process != second.process
        assert count_sent(tmp_path, "two") == 1


async def test_lost_conversation_is_replaced_in_the_same_run(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_and_wait(ada, say("one"))
        os.kill(find_cli(await harness.find_process(ada)), signal.SIGKILL)
        await harness.wait_for_lane(ada, "idle")
        for memory in (tmp_path / "home" / "scripted").iterdir():
            memory.unlink()
        second = await harness.send_and_wait(ada, say("two"))

        assert (second.status, second.attempt) == ("completed", 1)
        session = (await harness.store.sessions(ada)).get("scripted")
        assert session
        assert len(session.history) == 1
        assert session.current
        runs = await harness.runs(ada)
        assert session.current.token != runs[0].resume_token
        sent = [text for run, text in read_turns(tmp_path) if run == runs[1].id]
        assert sorted(text.startswith("[From the record.") for text in sent) == [False, True]
        assert any("a new one begins" in note for note in await harness.notes(ada))
        assert first.status == "completed"


async def _kill_in_turn(harness: DaemonHarness, agent: AgentId, target: str) -> ItemId:
    """Kill the CLI, its keeper or its outer process while a turn waits for the gate "go"."""
    item = await harness.send(agent, script({"text": "one"}, harness.gates.wait_step("go")))
    await harness.wait_for_text(agent, "one")
    cli = find_cli(await harness.find_process(agent))
    keeper = parent(cli)
    os.kill({"cli": cli, "keeper": keeper, "outer": parent(keeper)}[target], signal.SIGKILL)
    return item


@pytest.mark.parametrize("target", ["cli", "keeper"])
async def test_item_is_retried_when_its_cli_or_keeper_is_killed(
    tmp_path: Path, target: str
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        item = await _kill_in_turn(harness, ada, target)
        await harness.wait_for_event(ada, ev.TextFinal, 2)
        harness.gates.open("go")
        settled = await harness.wait_until_settled(item)

        assert (settled.status, settled.attempt, settled.tries) == ("completed", 2, 1)
        first, second = await harness.runs(ada)
        assert first.status == "failed"
        assert first.process != second.process
        assert len(read_turns(tmp_path)) == 2


async def test_run_continues_when_its_outer_process_is_killed(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        item = await _kill_in_turn(harness, ada, "outer")
        harness.gates.open("go")

        settled = await harness.wait_until_settled(item)
        assert (settled.status, settled.attempt) == ("completed", 1)


async def test_rate_limited_item_continues_when_the_gate_opens(tmp_path: Path) -> None:
    turns = [[{"rate_limit": {"resets_in": 1.5}}], [{"text": "at last"}]]
    (tmp_path / "limited.json").write_text(msgspec.json.encode({"turns": turns}).decode())
    config = f'[providers.scripted.options]\nscript = "{tmp_path}/limited.json"\n'
    async with running_daemon(tmp_path, config=config) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        item = await harness.send(ada, "go")
        await harness.wait_for_event(ada, ev.RunRateLimited)
        await harness.wait_for_lane(ada, "warm")
        other = await harness.send_and_wait(bob, say("b"))
        settled = await harness.wait_until_settled(item)

        [gate] = await harness.store.gates()
        first, second = await harness.runs(ada)
        [waited] = await harness.runs(bob)
        assert (settled.status, settled.reply, settled.tries) == ("completed", "at last", 0)
        assert first.error
        stated = first.error.retry_at
        assert stated
        assert min(second.created_at, waited.created_at) >= stated
        assert (gate.is_closed, gate.run) == (False, first.id)
        sent = {"provider": "scripted", "until": stated.isoformat()}
        assert harness.log.facts_of("gate.closed") == [sent]
        assert other.reply == "b"


async def test_rate_limited_item_is_queued_after_the_gate_was_closed(tmp_path: Path) -> None:
    """Else the worker would start it at once."""
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        item = await harness.send(ada, script({"rate_limit": {"resets_in": 3600}}))
        await harness.wait_for_event(ada, ev.RunRateLimited)
        await harness.wait_for_lane(ada, "warm")

        [gate] = await harness.store.gates()
        assert gate.until
        assert (await harness.store.item(item)).status == "queued"
        assert len(await harness.runs(ada)) == 1
        seen = [type(each.event) for each in await harness.store.events(limit=1000)]
        assert seen.index(ev.RunRateLimited) < seen.index(ev.GateClosed)
        await harness.store.cancel(item)


async def _no_home(harness: DaemonHarness) -> AgentId:
    ada = await harness.add_agent("ada")
    (harness.place / "ada").rmdir()
    return ada


async def _no_role(harness: DaemonHarness) -> AgentId:
    return await harness.add_agent("ada", role="missing")


UNLAUNCHABLE = {
    "home": (_no_home, "agent_home_missing"),
    "role": (_no_role, "role_missing"),
}


@pytest.mark.parametrize(("add_agent", "code"), UNLAUNCHABLE.values(), ids=UNLAUNCHABLE)
async def test_item_that_cannot_be_launched_fails_and_the_next_one_completes(
    tmp_path: Path, add_agent: Any, code: str
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await add_agent(harness)
        bob = await harness.add_agent("bob")
        first = await harness.send_and_wait(ada, say("one"))
        (tmp_path / "ada").mkdir(exist_ok=True)
        await harness.set_agent(ada, role=None, providers=("scripted",))
        second = await harness.send_and_wait(ada, say("two"))

        assert first.error
        assert (first.status, first.error.code) == ("failed", code)
        assert second.reply == "two"
        assert (await harness.send_and_wait(bob, say("three"))).reply == "three"
        assert len(await harness.store.processes()) == 2


@pytest.mark.parametrize(("name", "kind"), [("a.png", "image/png"), ("a.txt", None)])
async def test_item_with_a_missing_file_fails_with_the_name_of_the_file(
    tmp_path: Path, name: str, kind: str | None
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        gone = Payload(files=(Attachment(name, "attachments/gone", 1, kind),))
        item = await harness.send_and_wait(ada, say("one"), payload=gone)

        assert item.error
        assert (item.status, item.error.code) == ("failed", "file_unusable")
        assert item.error.message.startswith(f"{name}: its copy cannot be read")
        assert count_sent(tmp_path, "one") == 0
        assert (await harness.send_and_wait(ada, say("two"))).reply == "two"


async def test_retry_count_survives_a_shutdown_in_the_second_attempt(tmp_path: Path) -> None:
    """A daemon that is stopped in the middle of a second try leaves it to the next one."""
    async with running_daemon(tmp_path, drain=0.1) as harness:
        ada = await harness.add_agent("ada")
        await harness.send(ada, script({"text": "one"}, {"wait": 600}))
        await harness.wait_for_text(ada, "one")
        os.kill(find_cli(await harness.find_process(ada)), signal.SIGKILL)
        await harness.wait_for_event(ada, ev.TextFinal, 2)
    async with running_daemon(tmp_path) as harness:
        await harness.wait_for_event(ada, ev.TextFinal, 3)
        runs = await harness.runs(ada)
        [item] = await harness.store.items(ada)

        assert [run.stop_reason for run in runs] == [None, "shutdown", None]
        assert runs[2].metadata["again"] == runs[1].metadata["again"]
        assert (item.attempt, item.tries) == (3, 1)
        await harness.store.cancel(item.id)
        assert (await harness.wait_until_settled(item.id)).status == "cancelled"


SINGLE_TURN_CLAUDE = """#!/bin/sh
init='{"type":"system","subtype":"init","session_id":"s1","model":"m","tools":[]}'
case "$*" in *--replay-user-messages*)
    read -r asked
    id=$(printf %s "$asked" | sed 's/.*"request_id":"\\([^"]*\\)".*/\\1/')
    response='"subtype":"success","request_id":"'$id'","response":{}'
    echo '{"type":"control_response","response":{'"$response"'}}'
    read -r prompt
    echo "$init"
    exit 3;;
esac
echo "$init"
echo '{"type":"result","subtype":"success","is_error":false,"num_turns":1,"session_id":"s1",'\\
'"total_cost_usd":0,"usage":{},"modelUsage":{},"result":"by a single turn","permission_denials":[]}'
"""


async def test_claude_that_crashes_twice_is_launched_for_a_single_turn(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(SINGLE_TURN_CLAUDE)
    program.chmod(0o755)
    config = f'[providers.claude]\ncommand = ["{program}"]\n'
    async with running_daemon(tmp_path, config=config) as harness:
        ada = await harness.add_agent("ada", "claude")
        item = await harness.send_and_wait(ada, "go")
        await harness.wait_for_lane(ada, "idle")

        assert (item.status, item.reply) == ("completed", "by a single turn")
        assert [run.status for run in await harness.runs(ada)] == [
            "failed",
            "failed",
            "completed",
        ]
        assert await harness.store.processes() == []
