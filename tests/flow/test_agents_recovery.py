"""The next daemon continues the work of a killed daemon, and repeats nothing."""

import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.run import Launched
from steadyrun.runtime.daemon import ALIVE_AT
from steadyrun.stores.sqlite import SqliteStore
from tests.support.daemon_harness import (
    HomeHarness,
    count_sent,
    find_cli,
    killable_daemon,
    read_turns,
    running_daemon,
    say,
    script,
)


async def check(home: HomeHarness, agent: AgentId) -> None:
    """The record has no gap, every run has one end, and no turn was sent twice."""
    events = await home.events(agent)
    assert [seen.seq for seen in events] == [*range(1, len(events) + 1)]
    whole = await home.store.events(limit=100_000)
    assert all(after.cursor == before.cursor + 1 for before, after in pairwise(whole))
    for run in await home.runs(agent):
        ends = [
            seen.event
            for seen in events
            if seen.run == run.id and isinstance(seen.event, ev.RunEnded)
        ]
        assert len(ends) == run.is_terminal
    sent = [run for run, _ in read_turns(home.place)]
    assert len(sent) == len(set(sent))


async def test_run_continues_in_its_process_under_the_next_daemon(tmp_path: Path) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada")
        await daemon.wait_until_up()
        one = await home.send_and_wait(ada, say("one"))
        text = script({"text": "two"}, home.gates.wait_step("go"), {"text": "three"})
        item = await home.send(ada, text)
        await home.wait_for_text(ada, "two")
    async with running_daemon(tmp_path) as harness:
        harness.gates.open("go")
        settled = await harness.wait_until_settled(item)
        after = await harness.send_and_wait(ada, say("four"))

        assert (settled.status, settled.attempt, settled.reply) == ("completed", 1, "three")
        runs = await harness.runs(ada)
        assert [run.item for run in runs] == [one.id, item, after.id]
        assert len({run.process for run in runs}) == 1
        assert len(read_turns(tmp_path)) == 3
        await check(harness, ada)


async def test_warm_process_is_adopted_and_its_unprompted_turn_is_recorded(tmp_path: Path) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada")
        await daemon.wait_until_up()
        later = {"self_turn": {"after": 1.0, "steps": [{"text": "by itself"}]}}
        await home.send_and_wait(ada, script(later, {"text": "one"}))
        await home.wait_for_lane(ada, "warm")
    async with running_daemon(tmp_path) as harness:
        # On a slow machine the unprompted turn may have begun before the daemon was started.
        assert (await harness.store.lane(ada)).status in {"warm", "held"}
        await harness.wait_for_text(ada, "by itself")
        await harness.wait_until_idle(ada)
        await harness.send_and_wait(ada, say("two"))

        runs = await harness.runs(ada)
        assert len({run.process for run in runs}) == 1
        assert await harness.texts(ada) == ["one", "by itself", "two"]
        await check(harness, ada)


async def test_warm_process_with_an_outdated_system_prompt_is_replaced_by_the_next_daemon(
    tmp_path: Path,
) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada")
        await daemon.wait_until_up()
        await home.send_and_wait(ada, say("one"))
        await home.wait_for_lane(ada, "warm")
    (tmp_path / "ada" / "SOUL.md").write_text("I am new.")
    async with running_daemon(tmp_path) as harness:
        await harness.send_and_wait(ada, say("two"))

        one, two = await harness.runs(ada)
        assert one.process != two.process
        assert one.resume_token == two.resume_token


async def test_warm_process_that_exited_without_a_daemon_is_closed_by_the_next(
    tmp_path: Path,
) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada")
        await daemon.wait_until_up()
        await home.send_and_wait(ada, say("one"))
        await home.wait_for_lane(ada, "warm")
        daemon.kill()
        os.kill(find_cli(await home.find_process(ada)), signal.SIGKILL)
    async with running_daemon(tmp_path) as harness:
        await harness.wait_for_lane(ada, "idle")
        assert (await harness.send_and_wait(ada, say("two"))).attempt == 1
        await check(harness, ada)


STEPS = [
    "before start", "after start", "before open_process", "after open_process", "before launch",
    "before start keeper", "after start keeper", "after launch", "before link claim",
    "after link claim", "before send open", "after send open", "before send begin",
    "after send begin", "before append started", "after append started", "before append ended",
    "after append ended", "before settle warm", "after settle warm",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
async def test_item_is_done_once_when_the_daemon_is_killed_at_any_step(
    tmp_path: Path, step: str
) -> None:
    async with killable_daemon(tmp_path, step) as (home, daemon):
        ada = await home.add_agent("ada")
        item = await home.send(ada, say("one"), on_lost="fail")
        await daemon.wait_until_killed()
    async with running_daemon(tmp_path) as harness:
        settled = await harness.wait_until_settled(item)
        await harness.send_and_wait(ada, say("two"))

        assert (settled.status, settled.attempt, settled.reply) == ("completed", 1, "one")
        assert count_sent(tmp_path, "one") == 1
        assert len(await harness.runs(ada)) == 2
        await check(harness, ada)


RETRY_STEPS = [
    "before close_process", "after close_process", "before retry", "after retry",
    "before change created", "after change created", "before open_process 2", "after launch 2",
    "before send begin 2", "after send begin 2",
]  # fmt: skip


@pytest.mark.parametrize("step", RETRY_STEPS)
async def test_no_attempt_is_lost_or_repeated_when_the_daemon_is_killed_between_two_attempts(
    tmp_path: Path, step: str
) -> None:
    async with killable_daemon(tmp_path, step) as (home, daemon):
        ada = await home.add_agent("ada")
        item = await home.send(ada, script({"text": "one"}, {"crash": 3}), on_lost="retry")
        await daemon.wait_until_killed()
    async with running_daemon(tmp_path) as harness:
        settled = await harness.wait_until_settled(item)

        assert (settled.status, settled.attempt, settled.tries) == ("failed", 4, 3)
        assert len(await harness.runs(ada)) == 4
        assert count_sent(tmp_path, "one") == 4
        await check(harness, ada)


FOLLOWUP_STEPS = [
    "before offer_followups", "after offer_followups", "before send offer", "after send offer",
    "before continue_with", "after continue_with", "before change created", "after change created",
    "before append started 2", "after append started 2", "before append ended 2",
    "after append ended 2",
]  # fmt: skip


@pytest.mark.parametrize("step", FOLLOWUP_STEPS)
async def test_followup_is_done_once_when_the_daemon_is_killed_during_it(
    tmp_path: Path, step: str
) -> None:
    """The rest of the turn has a run of its own and is not recorded a second time."""
    async with killable_daemon(tmp_path, step) as (home, daemon):
        ada = await home.add_agent("ada")
        item = await home.send(ada, script({"text": "one"}, home.gates.wait_step("go")))
        if not step.endswith("offer_followups"):
            await home.wait_for_text(ada, "one")
        own = await home.send(ada, say("two"))
        if not step.endswith(("offer_followups", "send offer")):
            await home.wait_for_event(ada, ev.FollowupOffered)
            home.gates.open("go")
        await daemon.wait_until_killed()
        home.gates.open("go")
    async with running_daemon(tmp_path) as harness:
        done, also = (
            await harness.wait_until_settled(item),
            await harness.wait_until_settled(own),
        )

        assert (done.status, also.status, also.reply) == ("completed", "completed", "two")
        assert await harness.texts(ada) == ["one", "two"]
        assert len(await harness.runs(ada)) == 2
        await check(harness, ada)


UNPROMPTED_STEPS = [
    "before continue_with warm", "after continue_with warm", "before change created",
    "after change created", "before append started 2", "after append started 2",
    "before append ended 2", "after append ended 2", "before settle warm 2", "after settle warm 2",
]  # fmt: skip


@pytest.mark.parametrize("step", UNPROMPTED_STEPS)
async def test_unprompted_turn_is_one_run_when_the_daemon_is_killed_during_it(
    tmp_path: Path, step: str
) -> None:
    async with killable_daemon(tmp_path, step) as (home, daemon):
        ada = await home.add_agent("ada")
        later = {"self_turn": {"after": 1.0, "steps": [{"text": "by itself"}]}}
        await home.send(ada, script(later, {"text": "one"}))
        await daemon.wait_until_killed()
    async with running_daemon(tmp_path) as harness:
        await harness.wait_for_text(ada, "by itself")
        await harness.wait_until_idle(ada)

        assert await harness.texts(ada) == ["one", "by itself"]
        assert [run.status for run in await harness.runs(ada)] == ["completed", "completed"]
        assert len(read_turns(tmp_path)) == 1
        await check(harness, ada)


async def test_run_cancelled_without_a_daemon_is_stopped_by_the_next(tmp_path: Path) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada")
        await daemon.wait_until_up()
        item = await home.send(ada, script({"text": "one"}, "hang"))
        await home.wait_for_text(ada, "one")
        daemon.kill()
        await home.store.cancel(item, "enough")
    async with running_daemon(tmp_path) as harness:
        assert (await harness.wait_until_settled(item)).status == "cancelled"
        [run] = await harness.runs(ada)
        assert (run.stop_reason, run.error) == (
            "user_stop",
            ev.ErrorFact("cancelled", "enough"),
        )
        await check(harness, ada)


async def test_run_that_a_timeout_had_begun_to_end_keeps_that_stop_reason(tmp_path: Path) -> None:
    async with killable_daemon(tmp_path, "after send interrupt") as (home, daemon):
        ada = await home.add_agent("ada", wall_seconds=2.0)
        item = await home.send(ada, script({"text": "one"}, "hang"))
        await daemon.wait_until_killed()
    async with running_daemon(tmp_path) as harness:
        found = await harness.wait_until_settled(item)

        [run] = await harness.runs(ada)
        assert (run.status, run.stop_reason) == ("timed_out", "wall_timeout")
        assert found.error
        assert (found.status, found.error.code) == ("failed", "wall_timeout")


async def test_message_sent_without_a_daemon_is_offered_to_the_running_turn(tmp_path: Path) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada")
        await daemon.wait_until_up()
        text = script({"text": "one"}, home.gates.wait_step("go"), {"text": "two"})
        await home.send(ada, text)
        await home.wait_for_text(ada, "one")
        daemon.kill()
        sent = await home.send(ada, "and this")
    async with running_daemon(tmp_path) as harness:
        await harness.wait_for_event(ada, ev.FollowupOffered)
        harness.gates.open("go")

        assert (await harness.wait_until_settled(sent)).delivery == "absorbed"
        assert len(await harness.runs(ada)) == 1
        await check(harness, ada)


async def test_adopting_daemon_reads_all_lanes_at_once_and_repeats_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first() -> list[tuple[AgentId, ItemId]]:
        async with killable_daemon(tmp_path) as (home, daemon):
            await daemon.wait_until_up()
            agents = [await home.add_agent(name) for name in ("ada", "bo", "cy")]
            text = script({"text": "one"}, home.gates.wait_step("go"), {"text": "two"})
            items = [(agent, await home.send(agent, text)) for agent in agents]
            for agent in agents:
                await home.wait_for_text(agent, "one")
            return items

    async def second(items: list[tuple[AgentId, ItemId]]) -> None:
        async with running_daemon(tmp_path) as harness:
            harness.gates.open("go")
            for agent, item in items:
                assert (await harness.wait_until_settled(item)).reply == "two"
                await check(harness, agent)

    items = await first()
    calls = _record_calls(monkeypatch, "lane_snapshots", "offer_followups", "append")
    await second(items)
    assert [set(lanes) for (lanes,) in calls["lane_snapshots"]] == [{agent for agent, _ in items}]
    assert calls["offer_followups"] == []
    assert not [batch for _, batch in calls["append"] if isinstance(batch.change, Launched)]


def _record_calls(monkeypatch: pytest.MonkeyPatch, *verbs: str) -> dict[str, list[tuple[Any, ...]]]:
    """The arguments of every later call of these verbs of the store."""
    calls: dict[str, list[tuple[Any, ...]]] = {verb: [] for verb in verbs}

    def record(verb: str) -> Callable[..., Any]:
        call = getattr(SqliteStore, verb)

        def recorded(store: SqliteStore, *args: Any, **kwargs: Any) -> Any:
            calls[verb].append(args)
            return call(store, *args, **kwargs)

        return recorded

    for verb in verbs:
        monkeypatch.setattr(SqliteStore, verb, record(verb))
    return calls


class HourLater(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


@pytest.mark.parametrize("was_away", [True, False], ids=["was away", "was running"])
async def test_only_time_with_a_daemon_counts_for_the_wall_timeout(
    tmp_path: Path, was_away: bool
) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada", wall_seconds=600.0)
        await daemon.wait_until_up()
        text = script({"text": "one"}, home.gates.wait_step("go"), {"text": "two"})
        item = await home.send(ada, text)
        await home.wait_for_text(ada, "one")
        daemon.kill()
        alive_at = SystemClock().now() + timedelta(hours=0 if was_away else 1)
        await home.store.put(ALIVE_AT, alive_at.isoformat().encode())
    async with running_daemon(tmp_path, clock=HourLater()) as harness:
        if was_away:
            # The timeouts are checked at least twice in this time.
            bob = await harness.add_agent("bob")
            await harness.send_and_wait(bob, script({"wait": 1.2}))
            harness.gates.open("go")
        settled = await harness.wait_until_settled(item)
        [run] = await harness.runs(ada)

        expected = ("completed", None) if was_away else ("failed", "wall_timeout")
        assert (settled.status, run.stop_reason) == expected
