"""When a gate opens, one agent tries first and the others follow."""

from datetime import timedelta
from pathlib import Path

from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.gate import Closed, Dispatched, Opened, compute_gate_state
from steadyrun.model.ids import RunId
from tests.support.daemon_harness import running_daemon, say, script

LIMITED = script({"rate_limit": {"resets_in": 3600}})


def _soon(seconds: float = 0.2) -> Closed:
    return Closed(SystemClock().now() + timedelta(seconds=seconds), "limit")


async def test_answered_probe_opens_the_gate_before_its_run_ends(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        await harness.store.update_gate("scripted", Closed(None, "by hand"))
        long = await harness.send(ada, script({"text": "I work"}, harness.gates.wait_step("go")))
        await harness.store.update_gate("scripted", _soon())
        await harness.wait_for_text(ada, "I work")

        done = await harness.send_and_wait(bob, say("me too"))

        assert done.reply == "me too"
        assert (await harness.store.item(long)).status == "running"
        [gate] = await harness.store.gates()
        assert not gate.is_closed
        harness.gates.open("go")
        await harness.wait_until_settled(long)


async def test_only_the_probe_runs_until_it_is_answered(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        agents = [await harness.add_agent(name) for name in ("ada", "bob", "cy")]
        await harness.store.update_gate("scripted", Closed(None, "by hand"))
        silent = script(harness.gates.wait_step("go"), {"text": "done"})
        items = [await harness.send(each, silent) for each in agents]
        await harness.store.update_gate("scripted", _soon())
        await harness.wait_until(None, lambda: _is_probing(harness))

        status = [(await harness.store.item(item)).status for item in items]
        assert sorted(status) == ["queued", "queued", "running"]
        harness.gates.open("go")
        for item in items:
            assert (await harness.wait_until_settled(item)).reply == "done"
        assert len(await harness.store.runs()) == 3


async def _is_probing(harness: object) -> bool:
    [gate] = await harness.store.gates()  # type: ignore[attr-defined]
    return compute_gate_state(gate, SystemClock().now()) == "probing"


async def test_rate_limit_pauses_an_agent_with_on_limited_pause(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada", on_limited="pause")
        item = await harness.send(ada, LIMITED)
        await harness.wait_for_event(ada, ev.RunRateLimited)
        await harness.wait_for_lane(ada, "warm")

        assert (await harness.store.lane(ada)).is_paused
        await harness.store.update_gate("scripted", Opened())
        assert (await harness.store.item(item)).status == "queued"
        await harness.store.cancel(item)


async def test_announced_retry_delays_the_runs_of_other_agents(tmp_path: Path) -> None:
    retrying = {"retrying": {"reason": "rate_limited", "attempt": 1, "delay_ms": 700}}
    async with running_daemon(tmp_path) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        asked = await harness.send(
            ada, script(retrying, harness.gates.wait_step("go"), {"text": "a"})
        )
        await harness.wait_for_event(ada, ev.ProviderRetrying)
        await harness.wait_until(None, lambda: _was_suspected(harness))
        [gate] = await harness.store.gates()

        waited = await harness.send_and_wait(bob, say("b"))

        [run] = await harness.runs(bob)
        assert gate.suspect_until
        assert run.created_at >= gate.suspect_until
        assert waited.reply == "b"
        harness.gates.open("go")
        await harness.wait_until_settled(asked)


async def _was_suspected(harness: object) -> bool:
    return bool(await harness.store.gates())  # type: ignore[attr-defined]


async def test_new_daemon_clears_a_probe_whose_run_is_gone(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        await harness.add_agent("ada")
        await harness.store.update_gate("scripted", _soon(0.0))
        await harness.store.update_gate("scripted", Dispatched(RunId("run_gone")))
        assert await _is_probing(harness)
    async with running_daemon(tmp_path) as harness:
        ada = (await harness.store.agent("ada")).id

        assert (await harness.send_and_wait(ada, say("I try"))).reply == "I try"
