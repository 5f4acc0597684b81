"""Who goes on when a provider takes more again? One at first, then all, unless told not to."""

from datetime import timedelta
from pathlib import Path

import anyio

from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.gate import Closed, Dispatched, Opened, gate_state
from steadyrun.model.ids import RunId
from tests.support.daemon_harness import says, script, working

LIMITED = script({"rate_limit": {"resets_in": 3600}})


def _soon(seconds: float = 0.2) -> Closed:
    return Closed(SystemClock().now() + timedelta(seconds=seconds), "limit")


def test_a_probe_that_is_answered_lets_the_others_through_before_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            await team.store.update_gate("scripted", Closed(None, "by hand"))
            long = await team.send(ada, script({"text": "I work"}, team.gates.until("go")))
            await team.store.update_gate("scripted", _soon())
            await team.until_said(ada, "I work")

            done = await team.done(bob, says("me too"))

            assert done.reply == "me too"
            assert (await team.store.item(long)).status == "running"
            [gate] = await team.store.gates()
            assert not gate.is_closed
            team.gates.open("go")
            await team.settled(long)

    anyio.run(main)


def test_only_the_probe_is_let_through_until_it_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            crew = [await team.hire(name) for name in ("ada", "bob", "cy")]
            await team.store.update_gate("scripted", Closed(None, "by hand"))
            silent = script(team.gates.until("go"), {"text": "done"})
            items = [await team.send(each, silent) for each in crew]
            await team.store.update_gate("scripted", _soon())
            await team.until(None, lambda: _is_probing(team))

            status = [(await team.store.item(item)).status for item in items]
            assert sorted(status) == ["queued", "queued", "running"]
            team.gates.open("go")
            for item in items:
                assert (await team.settled(item)).reply == "done"
            assert len(await team.store.runs()) == 3

    anyio.run(main)


async def _is_probing(team: object) -> bool:
    [gate] = await team.store.gates()  # type: ignore[attr-defined]
    return gate_state(gate, SystemClock().now()) == "probing"


def test_an_agent_may_be_paused_by_a_limit_instead(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada", on_limited="pause")
            item = await team.send(ada, LIMITED)
            await team.until_told(ada, ev.RunRateLimited)
            await team.until_lane(ada, "warm")

            assert (await team.store.lane(ada)).is_paused
            await team.store.update_gate("scripted", Opened())
            assert (await team.store.item(item)).status == "queued"
            await team.store.cancel(item)

    anyio.run(main)


def test_an_announced_retry_holds_others_back_for_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        retrying = {"retrying": {"reason": "rate_limited", "attempt": 1, "delay_ms": 700}}
        async with working(tmp_path) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            asked = await team.send(ada, script(retrying, team.gates.until("go"), {"text": "a"}))
            await team.until_told(ada, ev.ProviderRetrying)
            await team.until(None, lambda: _was_suspected(team))
            [gate] = await team.store.gates()

            waited = await team.done(bob, says("b"))

            [run] = await team.runs(bob)
            assert gate.suspect_until
            assert run.created_at >= gate.suspect_until
            assert waited.reply == "b"
            team.gates.open("go")
            await team.settled(asked)

    anyio.run(main)


async def _was_suspected(team: object) -> bool:
    return bool(await team.store.gates())  # type: ignore[attr-defined]


def test_a_new_daemon_forgets_a_probe_that_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            await team.hire("ada")
            await team.store.update_gate("scripted", _soon(0.0))
            await team.store.update_gate("scripted", Dispatched(RunId("run_gone")))
            assert await _is_probing(team)
        async with working(tmp_path) as team:
            ada = (await team.store.agent("ada")).id

            assert (await team.done(ada, says("I try"))).reply == "I try"

    anyio.run(main)
