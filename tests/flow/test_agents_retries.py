"""An item whose run failed is retried where that repeats nothing."""

import itertools
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId
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


async def _crash(harness: DaemonHarness, agent: AgentId, **fields: Any) -> Item:
    return await harness.send_and_wait(agent, script({"text": "one"}, {"crash": 3}), **fields)


def test_a_crash_is_tried_three_times_more(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)


@pytest.mark.parametrize(("on_lost", "is_noticed"), [("resume", True), ("retry", False)])
def test_only_a_resumed_item_mentions_the_earlier_attempt(
    tmp_path: Path, on_lost: str, is_noticed: bool
) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            await _crash(harness, ada, on_lost=on_lost)

            texts = [text for _, text in read_turns(tmp_path)]
            assert len(texts) == 4
            assert [("cut off" in text) for text in texts] == [False, *[is_noticed] * 3]
            assert all('"crash"' in text for text in texts)

    anyio.run(main)


@pytest.mark.parametrize("how", ["again", "own_turn", "self"])
def test_every_run_of_an_agent_has_its_time_and_its_tools(tmp_path: Path, how: str) -> None:
    """This includes runs without a claimed item."""

    async def main() -> None:
        async with running_daemon(tmp_path, interrupt=1.0) as harness:
            policy = Policy(allowed_tools=("Read",))
            ada = await harness.add_agent("ada", wall_seconds=1.5, policy=policy)
            if how == "again":
                await harness.send(ada, script({"text": "one"}, "hang"))
                await harness.wait_for_text(ada, "one")
                os.kill(find_cli(await harness.find_process(ada)), signal.SIGKILL)
            elif how == "self":
                own = {"self_turn": {"after": 0.0, "steps": [{"text": "own"}, "hang"]}}
                await harness.send(ada, script(own, {"text": "one"}))
            else:
                await harness.send(ada, script({"text": "one"}, harness.gates.wait_step("go")))
                await harness.wait_for_text(ada, "one")
                await harness.send(ada, script({"text": "own"}, "hang"))
                await harness.wait_for_event(ada, ev.FollowupOffered)
                harness.gates.open("go")
            await harness.wait_for_event(ada, ev.RunTimedOut)

            *_, last = await harness.runs(ada)
            assert (last.status, last.stop_reason) == ("timed_out", "wall_timeout")
            assert last.error
            assert (last.error.code, last.error.message) == (
                "wall_timeout", "the run was not done after 1.5 s",
            )  # fmt: skip
            assert [run.allowed_tools for run in await harness.runs(ada)] == [("Read",)] * 2

    anyio.run(main)


def test_item_that_must_not_repeat_is_sent_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            item = await _crash(harness, ada, on_lost="fail")

            assert (item.status, item.attempt) == ("failed", 1)
            assert len(read_turns(tmp_path)) == 1

    anyio.run(main)


def test_a_cli_that_hangs_is_tried_once_more_on_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        program = tmp_path / "deaf"
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        program.chmod(0o755)
        config = f'[providers.scripted]\ncommand = ["{program}"]\n'
        async with running_daemon(tmp_path, config=config, hang=0.5, interrupt=0.5) as harness:
            ada = await harness.add_agent("ada")
            item = await harness.send_and_wait(ada, say("one"))

            assert (item.status, item.attempt, item.tries) == ("failed", 2, 0)
            first, second = await harness.runs(ada)
            assert (first.stop_reason, second.stop_reason) == ("hang", "hang")

    anyio.run(main)


def test_a_process_that_dies_before_its_second_turn_is_replaced_in_the_same_run(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            await harness.send_and_wait(ada, say("one"))
            cli = find_cli(await harness.find_process(ada))
            # Stopped, it can neither be told nor say that it is gone before the item has begun.
            os.kill(cli, signal.SIGSTOP)
            seat = harness.daemon.workers.find(ada)
            assert seat
            assert seat.slot.live
            driver = seat.slot.live.connection.driver
            assert driver
            async with driver._lock:  # type: ignore[attr-defined]
                item = await harness.send(ada, say("two"))
                await harness.wait_for_lane(ada, "held")
                os.kill(cli, signal.SIGKILL)
                directory = tmp_path / "home" / seat.slot.live.row.keeper
                await wait_for((directory / "exit").exists, "the exit")
            settled = await harness.wait_until_settled(item)

            first, second = await harness.runs(ada)
            assert (settled.status, settled.attempt) == ("completed", 1)
            assert first.process != second.process
            assert count_sent(tmp_path, "two") == 1

    anyio.run(main)


def test_a_conversation_that_is_gone_is_begun_anew_in_the_same_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await harness.send_and_wait(ada, say("one"))
            os.kill(find_cli(await harness.find_process(ada)), signal.SIGKILL)
            await harness.wait_for_lane(ada, "idle")
            for memory in (tmp_path / "home" / "scripted").iterdir():
                memory.unlink()
            second = await harness.send_and_wait(ada, say("two"))

            assert (second.status, second.attempt) == ("completed", 1)
            session = await harness.store.session(ada, "scripted")
            assert session
            assert len(session.history) == 1
            assert session.current
            runs = await harness.runs(ada)
            assert session.current.token != runs[0].resume_token
            told = [text for run, text in read_turns(tmp_path) if run == runs[1].id]
            assert sorted(text.startswith("[From the record.") for text in told) == [False, True]
            assert any("a new one begins" in note for note in await harness.notes(ada))
            assert first.status == "completed"

    anyio.run(main)


VICTIMS = ("cli", "keeper", "outer")


@pytest.mark.parametrize("victim", VICTIMS)
def test_item_of_a_cli_killed_in_mid_turn_is_retried(tmp_path: Path, victim: str) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            item = await harness.send(ada, script({"text": "one"}, harness.gates.wait_step("go")))
            await harness.wait_for_text(ada, "one")
            cli = find_cli(await harness.find_process(ada))
            keeper = parent(cli)
            os.kill({"cli": cli, "keeper": keeper, "outer": parent(keeper)}[victim], signal.SIGKILL)
            if victim == "outer":
                # The outer process is not needed as long as the keeper lives.
                harness.gates.open("go")
                assert (await harness.wait_until_settled(item)).attempt == 1
                return
            await harness.wait_for_event(ada, ev.TextFinal, 2)
            harness.gates.open("go")
            settled = await harness.wait_until_settled(item)

            assert (settled.status, settled.attempt, settled.tries) == ("completed", 2, 1)
            first, second = await harness.runs(ada)
            assert first.status == "failed"
            assert first.process != second.process
            assert len(read_turns(tmp_path)) == 2

    anyio.run(main)


def test_a_rate_limit_closes_the_gate_and_the_item_goes_on_when_it_opens(tmp_path: Path) -> None:
    async def main() -> None:
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
            told = {"provider": "scripted", "until": stated.isoformat()}
            assert harness.log.facts_of("gate.closed") == [told]
            assert other.reply == "b"

    anyio.run(main)


def test_the_gate_is_closed_before_the_item_is_queued_again(tmp_path: Path) -> None:
    """Else the worker would start it at once."""

    async def main() -> None:
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

    anyio.run(main)


async def _no_home(harness: DaemonHarness) -> AgentId:
    ada = await harness.add_agent("ada")
    (harness.place / "ada").rmdir()
    return ada


async def _no_role(harness: DaemonHarness) -> AgentId:
    return await harness.add_agent("ada", role="missing")


async def _no_program(harness: DaemonHarness) -> AgentId:
    return await harness.add_agent("ada", "claude")


BROKEN = {
    "home": (_no_home, "agent_home_missing"),
    "role": (_no_role, "role_missing"),
    "program": (_no_program, "launch_failed"),
}


@pytest.mark.parametrize(("hire", "code"), BROKEN.values(), ids=BROKEN)
def test_item_that_cannot_be_sent_fails_and_the_next_one_starts(
    tmp_path: Path, hire: Any, code: str
) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await hire(harness)
            bob = await harness.add_agent("bob")
            first = await harness.send_and_wait(ada, say("one"))
            (tmp_path / "ada").mkdir(exist_ok=True)
            await harness.set_agent(ada, role=None, providers=("scripted",))
            second = await harness.send_and_wait(ada, say("two"))

            assert first.error
            assert (first.status, first.error.code) == ("failed", code)
            assert second.reply == "two"
            assert (await harness.send_and_wait(bob, say("three"))).reply == "three"
            assert len(await harness.store.open_processes()) == 2

    anyio.run(main)


@pytest.mark.parametrize(("name", "kind"), [("a.png", "image/png"), ("a.txt", None)])
def test_item_whose_file_is_missing_fails_with_its_name(
    tmp_path: Path, name: str, kind: str | None
) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            gone = Payload(files=(Attachment(name, "attachments/gone", 1, kind),))
            item = await harness.send_and_wait(ada, say("one"), payload=gone)

            assert item.error
            assert (item.status, item.error.code) == ("failed", "file_unusable")
            assert item.error.message.startswith(f"{name}: its copy cannot be read")
            assert count_sent(tmp_path, "one") == 0
            assert (await harness.send_and_wait(ada, say("two"))).reply == "two"

    anyio.run(main)


def test_retry_count_survives_when_an_item_is_queued_again(tmp_path: Path) -> None:
    """A daemon that is stopped in the middle of a second try leaves it to the next one."""

    async def first() -> AgentId:
        async with running_daemon(tmp_path, drain=0.1) as harness:
            ada = await harness.add_agent("ada")
            await harness.send(ada, script({"text": "one"}, {"wait": 600}))
            await harness.wait_for_text(ada, "one")
            os.kill(find_cli(await harness.find_process(ada)), signal.SIGKILL)
            await harness.wait_for_event(ada, ev.TextFinal, 2)
            return ada

    async def second(ada: AgentId) -> None:
        async with running_daemon(tmp_path) as harness:
            await harness.wait_for_event(ada, ev.TextFinal, 3)
            runs = await harness.runs(ada)
            [item] = await harness.store.items(ada)

            assert [run.stop_reason for run in runs] == [None, "shutdown", None]
            assert runs[2].metadata["again"] == runs[1].metadata["again"]
            assert (item.attempt, item.tries) == (3, 1)
            await harness.store.cancel(item.id)
            assert (await harness.wait_until_settled(item.id)).status == "cancelled"

    ada = anyio.run(first)
    anyio.run(second, ada)


_ONLY_ONCE = """#!/bin/sh
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


def test_a_cli_that_crashes_again_is_started_for_this_turn_alone(tmp_path: Path) -> None:
    async def main() -> None:
        program = tmp_path / "claude"
        program.write_text(_ONLY_ONCE)
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
            assert await harness.store.open_processes() == []

    anyio.run(main)
