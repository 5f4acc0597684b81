"""What does a daemon that is killed leave to the next one? Everything, and nothing twice."""

import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.run import Launched
from steadyrun.runtime.daemon import ALIVE_AT
from steadyrun.stores.sqlite import SqliteStore
from tests.support.daemon_harness import (
    Home,
    begun,
    cli_of,
    says,
    script,
    times_told,
    victim,
    working,
)


async def check(home: Home, agent: AgentId) -> None:
    """The record has no gap, every run one end, and no run was told twice."""
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
    told = [run for run, _ in begun(home.place)]
    assert len(told) == len(set(told))


def test_a_run_goes_on_with_the_next_daemon(tmp_path: Path) -> None:
    async def first() -> tuple[AgentId, ItemId, ItemId]:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada")
            await daemon.up()
            one = await home.done(ada, says("one"))
            text = script({"text": "two"}, home.gates.until("go"), {"text": "three"})
            item = await home.send(ada, text)
            await home.until_said(ada, "two")
            return ada, one.id, item

    async def second(ada: AgentId, one: ItemId, item: ItemId) -> None:
        async with working(tmp_path) as team:
            team.gates.open("go")
            settled = await team.settled(item)
            after = await team.done(ada, says("four"))

            assert (settled.status, settled.attempt, settled.reply) == ("completed", 1, "three")
            runs = await team.runs(ada)
            assert [run.item for run in runs] == [one, item, after.id]
            assert len({run.process for run in runs}) == 1
            assert len(begun(tmp_path)) == 3
            await check(team, ada)

    anyio.run(second, *anyio.run(first))


def test_a_process_that_waits_goes_on_waiting(tmp_path: Path) -> None:
    async def first() -> AgentId:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada")
            await daemon.up()
            later = {"self_turn": {"after": 1.0, "steps": [{"text": "by itself"}]}}
            await home.done(ada, script(later, {"text": "one"}))
            await home.until_lane(ada, "warm")
            return ada

    async def second(ada: AgentId) -> None:
        async with working(tmp_path) as team:
            assert (await team.store.lane(ada)).status == "warm"
            await team.until_said(ada, "by itself")
            await team.until_idle(ada)
            await team.done(ada, says("two"))

            runs = await team.runs(ada)
            assert len({run.process for run in runs}) == 1
            assert await team.texts(ada) == ["one", "by itself", "two"]
            await check(team, ada)

    anyio.run(second, anyio.run(first))


def test_a_process_that_waits_and_does_not_fit_any_more_is_replaced(tmp_path: Path) -> None:
    async def first() -> AgentId:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada")
            await daemon.up()
            await home.done(ada, says("one"))
            await home.until_lane(ada, "warm")
            return ada

    async def second(ada: AgentId) -> None:
        (tmp_path / "ada" / "SOUL.md").write_text("I am new.")
        async with working(tmp_path) as team:
            await team.done(ada, says("two"))

            one, two = await team.runs(ada)
            assert one.process != two.process
            assert one.resume_token == two.resume_token

    anyio.run(second, anyio.run(first))


def test_a_process_that_died_meanwhile_is_let_go(tmp_path: Path) -> None:
    async def first() -> AgentId:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada")
            await daemon.up()
            await home.done(ada, says("one"))
            await home.until_lane(ada, "warm")
            daemon.kill()
            os.kill(cli_of(await home.process_of(ada)), signal.SIGKILL)
            return ada

    async def second(ada: AgentId) -> None:
        async with working(tmp_path) as team:
            await team.until_lane(ada, "idle")
            assert (await team.done(ada, says("two"))).attempt == 1
            await check(team, ada)

    anyio.run(second, anyio.run(first))


# Each with how often it may be told, all tries together.
STEPS = [
    "before start", "after start", "before open_process", "after open_process", "before launch",
    "before start keeper", "after start keeper", "after launch", "before link claim",
    "after link claim", "before send open", "after send open", "before send begin",
    "after send begin", "before append started", "after append started", "before append ended",
    "after append ended", "before rest", "after rest",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_an_item_is_done_once(tmp_path: Path, step: str) -> None:
    async def first() -> tuple[AgentId, ItemId]:
        async with victim(tmp_path, step) as (home, daemon):
            ada = await home.hire("ada")
            item = await home.send(ada, says("one"), on_lost="fail")
            await daemon.until_dead()
            return ada, item

    async def second(ada: AgentId, item: ItemId) -> None:
        async with working(tmp_path) as team:
            settled = await team.settled(item)
            await team.done(ada, says("two"))

            assert (settled.status, settled.attempt, settled.reply) == ("completed", 1, "one")
            assert times_told(tmp_path, "one") == 1
            assert len(await team.runs(ada)) == 2
            await check(team, ada)

    anyio.run(second, *anyio.run(first))


RETRY_STEPS = [
    "before close_process", "after close_process", "before retry", "after retry",
    "before change created", "after change created", "before open_process 2", "after launch 2",
    "before send begin 2", "after send begin 2",
]  # fmt: skip


@pytest.mark.parametrize("step", RETRY_STEPS)
def test_killed_between_two_tries_none_is_lost_and_none_comes_twice(
    tmp_path: Path, step: str
) -> None:
    async def first() -> tuple[AgentId, ItemId]:
        async with victim(tmp_path, step) as (home, daemon):
            ada = await home.hire("ada")
            item = await home.send(ada, script({"text": "one"}, {"crash": 3}), on_lost="retry")
            await daemon.until_dead()
            return ada, item

    async def second(ada: AgentId, item: ItemId) -> None:
        async with working(tmp_path) as team:
            settled = await team.settled(item)

            assert (settled.status, settled.attempt, settled.tries) == ("failed", 4, 3)
            assert len(await team.runs(ada)) == 4
            assert times_told(tmp_path, "one") == 4
            await check(team, ada)

    anyio.run(second, *anyio.run(first))


FOLLOWUP_STEPS = [
    "before offer_followups", "after offer_followups", "before send offer", "after send offer",
    "before continue_with", "after continue_with", "before change created", "after change created",
    "before append started 2", "after append started 2", "before append ended 2",
    "after append ended 2",
]  # fmt: skip


@pytest.mark.parametrize("step", FOLLOWUP_STEPS)
def test_killed_amid_a_follow_up_it_is_done_once(tmp_path: Path, step: str) -> None:
    """What the turn has left over has a run of its own, and is told by nobody a second time."""

    async def first() -> tuple[AgentId, ItemId, ItemId]:
        async with victim(tmp_path, step) as (home, daemon):
            ada = await home.hire("ada")
            item = await home.send(ada, script({"text": "one"}, home.gates.until("go")))
            if not step.endswith("offer_followups"):
                await home.until_said(ada, "one")
            own = await home.send(ada, says("two"))
            if not step.endswith(("offer_followups", "send offer")):
                await home.until_told(ada, ev.FollowupOffered)
                home.gates.open("go")
            await daemon.until_dead()
            home.gates.open("go")
            return ada, item, own

    async def second(ada: AgentId, item: ItemId, own: ItemId) -> None:
        async with working(tmp_path) as team:
            done, also = await team.settled(item), await team.settled(own)

            assert (done.status, also.status, also.reply) == ("completed", "completed", "two")
            assert await team.texts(ada) == ["one", "two"]
            assert len(await team.runs(ada)) == 2
            await check(team, ada)

    anyio.run(second, *anyio.run(first))


WAKE_STEPS = [
    "before start_unprompted", "after start_unprompted", "before change created",
    "after change created", "before append started 2", "after append started 2",
    "before append ended 2", "after append ended 2", "before rest 2", "after rest 2",
]  # fmt: skip


@pytest.mark.parametrize("step", WAKE_STEPS)
def test_killed_amid_a_turn_of_its_own_it_is_one_run(tmp_path: Path, step: str) -> None:
    async def first() -> AgentId:
        async with victim(tmp_path, step) as (home, daemon):
            ada = await home.hire("ada")
            later = {"self_turn": {"after": 1.0, "steps": [{"text": "by itself"}]}}
            await home.send(ada, script(later, {"text": "one"}))
            await daemon.until_dead()
            return ada

    async def second(ada: AgentId) -> None:
        async with working(tmp_path) as team:
            await team.until_said(ada, "by itself")
            await team.until_idle(ada)

            assert await team.texts(ada) == ["one", "by itself"]
            assert [run.status for run in await team.runs(ada)] == ["completed", "completed"]
            assert len(begun(tmp_path)) == 1
            await check(team, ada)

    anyio.run(second, anyio.run(first))


def test_what_was_cancelled_while_nobody_was_there_is_stopped(tmp_path: Path) -> None:
    async def first() -> tuple[AgentId, ItemId]:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada")
            await daemon.up()
            item = await home.send(ada, script({"text": "one"}, "hang"))
            await home.until_said(ada, "one")
            daemon.kill()
            await home.store.cancel(item, "enough")
            return ada, item

    async def second(ada: AgentId, item: ItemId) -> None:
        async with working(tmp_path) as team:
            assert (await team.settled(item)).status == "cancelled"
            [run] = await team.runs(ada)
            assert (run.stop_reason, run.error) == (
                "user_stop",
                ev.ErrorFact("cancelled", "enough"),
            )
            await check(team, ada)

    anyio.run(second, *anyio.run(first))


def test_what_a_clock_has_begun_to_end_ends_for_that_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with victim(tmp_path, "after send interrupt") as (home, daemon):
            ada = await home.hire("ada", wall_seconds=0.5)
            item = await home.send(ada, script({"text": "one"}, "hang"))
            await daemon.until_dead()
        async with working(tmp_path) as team:
            found = await team.settled(item)

            [run] = await team.runs(ada)
            assert (run.status, run.stop_reason) == ("timed_out", "wall_timeout")
            assert found.error
            assert (found.status, found.error.code) == ("failed", "wall_timeout")

    anyio.run(main)


def test_what_was_sent_while_nobody_was_there_is_told_to_the_turn_that_runs(tmp_path: Path) -> None:
    async def first() -> tuple[AgentId, ItemId]:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada")
            await daemon.up()
            text = script({"text": "one"}, home.gates.until("go"), {"text": "two"})
            await home.send(ada, text)
            await home.until_said(ada, "one")
            daemon.kill()
            return ada, await home.send(ada, "and this")

    async def second(ada: AgentId, sent: ItemId) -> None:
        async with working(tmp_path) as team:
            await team.until_told(ada, ev.FollowupOffered)
            team.gates.open("go")

            assert (await team.settled(sent)).delivery == "absorbed"
            assert len(await team.runs(ada)) == 1
            await check(team, ada)

    anyio.run(second, *anyio.run(first))


def test_however_many_were_left_the_store_is_asked_once_and_told_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first() -> list[tuple[AgentId, ItemId]]:
        async with victim(tmp_path) as (home, daemon):
            await daemon.up()
            agents = [await home.hire(name) for name in ("ada", "bo", "cy")]
            text = script({"text": "one"}, home.gates.until("go"), {"text": "two"})
            items = [(agent, await home.send(agent, text)) for agent in agents]
            for agent in agents:
                await home.until_said(agent, "one")
            return items

    async def second(items: list[tuple[AgentId, ItemId]]) -> None:
        async with working(tmp_path) as team:
            team.gates.open("go")
            for agent, item in items:
                assert (await team.settled(item)).reply == "two"
                await check(team, agent)

    left = anyio.run(first)
    said = _listen(monkeypatch, "lane_snapshots", "offer_followups", "append")
    anyio.run(second, left)
    assert [set(lanes) for (lanes,) in said["lane_snapshots"]] == [{agent for agent, _ in left}]
    assert said["offer_followups"] == []
    assert not [batch for _, batch in said["append"] if isinstance(batch.change, Launched)]


def _listen(monkeypatch: pytest.MonkeyPatch, *verbs: str) -> dict[str, list[tuple[Any, ...]]]:
    """What the store is told by these verbs from now on."""
    said: dict[str, list[tuple[Any, ...]]] = {verb: [] for verb in verbs}

    def listened(verb: str) -> Callable[..., Any]:
        do = getattr(SqliteStore, verb)

        def heard(store: SqliteStore, *args: Any, **kwargs: Any) -> Any:
            said[verb].append(args)
            return do(store, *args, **kwargs)

        return heard

    for verb in verbs:
        monkeypatch.setattr(SqliteStore, verb, listened(verb))
    return said


class HourLater(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


@pytest.mark.parametrize("is_known", [True, False], ids=["was away", "was not"])
def test_the_time_in_which_nobody_was_there_does_not_count(tmp_path: Path, is_known: bool) -> None:
    async def first() -> tuple[AgentId, ItemId]:
        async with victim(tmp_path) as (home, daemon):
            ada = await home.hire("ada", wall_seconds=600.0)
            await daemon.up()
            text = script({"text": "one"}, home.gates.until("go"), {"text": "two"})
            item = await home.send(ada, text)
            await home.until_said(ada, "one")
            daemon.kill()
            alive_at = SystemClock().now() + timedelta(hours=0 if is_known else 1)
            await home.store.put(ALIVE_AT, alive_at.isoformat().encode())
            return ada, item

    async def second(ada: AgentId, item: ItemId) -> None:
        async with working(tmp_path, clock=HourLater()) as team:
            if is_known:
                # Two looks at the clock later.
                bob = await team.hire("bob")
                await team.done(bob, script({"wait": 1.2}))
                team.gates.open("go")
            settled = await team.settled(item)
            [run] = await team.runs(ada)

            expected = ("completed", None) if is_known else ("failed", "wall_timeout")
            assert (settled.status, run.stop_reason) == expected

    anyio.run(second, *anyio.run(first))
