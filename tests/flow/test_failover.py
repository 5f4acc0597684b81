"""The next provider of the chain continues with a briefing when the first is limited."""

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec

from steadyrun.drivers.keeper_client import read_sent
from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.agent import Agent
from steadyrun.model.approval import ApprovalAnswer
from steadyrun.model.gate import Closed, Opened, compute_gate_state
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Created
from tests.children import fake_claude
from tests.support.daemon_harness import (
    DaemonHarness,
    HomeHarness,
    count_most_processes,
    killable_daemon,
    running_daemon,
    say,
    script,
)

COMMAND = msgspec.json.encode([sys.executable, "-I", "-S", fake_claude.__file__]).decode()
CONFIG = f"[providers.claude]\ncommand = {COMMAND}\n"
CHAIN = ("scripted", "claude")
LIMIT = {"rate_limit": {"resets_in": 3600}}
TOOL = {"name": "Bash", "input": {"command": "make test"}, "output": "3 passed"}


async def test_rate_limited_item_moves_to_the_fallback_and_the_next_returns(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path, config=CONFIG) as harness,
        count_most_processes(harness) as most,
    ):
        ada = await harness.add_agent("ada", providers=CHAIN)
        await harness.send_and_wait(ada, say("the first"))
        tools = {"text": "I will test it."}, {"tool": TOOL}
        item = await harness.send_and_wait(ada, script(*tools, LIMIT))

        assert (item.status, item.attempt) == ("completed", 2)
        turns = read_turns_of(tmp_path, "claude")
        assert len(turns) == 1
        assert "scripted is not available until 20" in turns[0]
        assert "\n> Running make test (ok): 3 passed\n" in turns[0]
        assert "\n> I will test it.\n" in turns[0]
        assert "The last attempt was cut off (rate_limited)" in turns[0]

        await harness.store.update_gate("scripted", Opened())
        back = await harness.send_and_wait(ada, say("here again"))

        assert back.reply == "here again"
        turns = read_turns_of(tmp_path, "scripted")
        assert "claude worked in this time; you continue." in turns[-1]
        assert "\n> claude ended this: completed\n" in turns[-1]
        assert "\n> scripted ended this" not in turns[-1], "it knows what it did itself"
        runs = await harness.runs(ada)
        providers = [run.provider for run in runs]
        assert providers == ["scripted", "scripted", "claude", "scripted"]
        assert runs[0].resume_token == runs[3].resume_token != runs[2].resume_token
        assert [note.split(" until ")[0] for note in await harness.notes(ada)] == [
            "claude is used: scripted is not available",
            "back with scripted",
        ]
        await harness.send_and_wait(ada, say("and again"))
        assert "From the record" not in read_turns_of(tmp_path, "scripted")[-1]
        assert most == [1], "never two providers at once"


async def test_briefing_has_later_messages_and_denied_tools(tmp_path: Path) -> None:
    """However much the run did afterwards."""
    question = {"approval": {"name": "Bash", "input": {"command": "rm -r data"}, "output": "ok"}}
    much = [{"text": f"step {number} of many, many more"} for number in range(210)]

    async with running_daemon(tmp_path, config=CONFIG) as harness:
        ada = await harness.add_agent("ada", providers=CHAIN)
        first = await harness.send(ada, script(question, harness.gates.wait_step("go"), *much))
        await harness.wait_for_event(ada, ev.ApprovalRequested)
        [asked] = await harness.store.approvals(ada)
        denied = ApprovalAnswer(False, "cli:eve", asked.asked_at, "it is all we have")
        await harness.store.answer(asked.id, denied)
        await harness.wait_for_event(ada, ev.ApprovalResolved)
        second = await harness.send(ada, "NEVER touch schema.sql")
        await harness.wait_for_event(ada, ev.FollowupOffered)
        harness.gates.open("go")
        assert (await harness.wait_until_settled(first)).status == "completed"
        assert (await harness.wait_until_settled(second)).delivery == "absorbed"
        await harness.store.update_gate("scripted", Closed(None, "by hand"))
        await harness.send_and_wait(ada, 'play:[{"text":"elsewhere"}]')

        [turns] = read_turns_of(tmp_path, "claude")
        assert "\n> NEVER touch schema.sql\n" in turns
        assert turns.index("Asked:") < turns.index("NEVER") < turns.index("Done, with results:")
        assert "Denied by cli:eve: Running rm -r data: it is all we have" in turns


async def test_agent_continues_while_any_provider_is_open(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, config=CONFIG) as harness:
        ada = await harness.add_agent("ada", providers=CHAIN, on_limited="pause")
        bob = await harness.add_agent("bob", on_limited="pause")

        assert (await harness.send_and_wait(ada, script(LIMIT))).status == "completed"
        assert not (await harness.store.lane(ada)).is_paused
        await harness.store.update_gate("scripted", Opened())
        await harness.send(bob, script(LIMIT))
        await harness.wait_until(bob, lambda: _is_paused(harness, bob))


async def test_other_agents_use_the_fallback_until_the_probe_is_answered(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path, config=CONFIG) as harness:
        ada, bob = [await harness.add_agent(name, providers=CHAIN) for name in ("ada", "bob")]
        soon = SystemClock().now() + timedelta(seconds=0.2)
        await harness.store.update_gate("scripted", Closed(soon, "limit"))
        await harness.wait_until(None, lambda: _is(harness, "ready"))
        silent = script(harness.gates.wait_step("go"), {"text": "I have tried"})
        probe = await harness.send(ada, silent)
        await harness.wait_until(None, lambda: _is(harness, "probing"))

        assert (
            await harness.send_and_wait(bob, 'play:[{"text":"elsewhere"}]')
        ).reply == "elsewhere"
        assert await _is(harness, "probing")
        harness.gates.open("go")
        assert (await harness.wait_until_settled(probe)).reply == "I have tried"
        assert (await harness.send_and_wait(bob, say("here again"))).reply == "here again"
        assert [run.provider for run in await harness.runs(ada)] == ["scripted"]
        assert [run.provider for run in await harness.runs(bob)] == ["claude", "scripted"]


async def test_item_started_on_another_provider_continues_there(tmp_path: Path) -> None:
    """Another daemon takes up the process of the fallback, and what waits in it."""
    _configure(tmp_path)
    async with killable_daemon(tmp_path) as (home, daemon):
        await daemon.wait_until_up()
        ada = await home.add_agent("ada", providers=CHAIN)
        await home.store.update_gate("scripted", Closed(None, "by hand"))
        held = 'play:[{"text":"on it"},{"until":"go"},{"text":"done"}]'
        item = await home.send(ada, held)
        await home.wait_for_text(ada, "on it")
        process = await home.find_process(ada)
        daemon.kill()
    async with running_daemon(tmp_path, config=CONFIG) as harness:
        (harness.place / "ada" / "go").touch()
        assert (await harness.wait_until_settled(item)).reply == "done"
        second = await harness.send_and_wait(ada, 'play:[{"text":"two"}]')
        assert second.reply == "two"
        runs = await harness.runs(ada)
        assert [(run.provider, run.process) for run in runs] == [("claude", process)] * 2
        assert len({run.resume_token for run in runs}) == 1


async def test_process_of_one_provider_gets_no_turn_for_another(tmp_path: Path) -> None:
    """The daemon that began the item elsewhere was killed before it could end the old process."""
    _configure(tmp_path)
    async with killable_daemon(tmp_path) as (home, daemon):
        await daemon.wait_until_up()
        ada = await home.add_agent("ada", providers=CHAIN)
        await home.send_and_wait(ada, say("the first"))
        await home.wait_for_lane(ada, "warm")
        daemon.kill()
        await home.store.update_gate("scripted", Closed(None, "by hand"))
        item = await home.send(ada, 'play:[{"text":"moved"}]')
        await _begin_and_leave(home)
    async with running_daemon(tmp_path, config=CONFIG) as harness:
        done = await harness.wait_until_settled(item)

        assert (done.status, done.attempt) == ("completed", 1)
        assert [run.provider for run in await harness.runs(ada)] == [*CHAIN]
        assert len(read_turns_of(tmp_path, "scripted")) == 1
        assert "play:" in read_turns_of(tmp_path, "claude")[0]


async def _begin_and_leave(home: HomeHarness) -> None:
    """Take the lane over, begin what waits in it, and be gone."""
    holder = (await home.store.join("daemon")).id
    await home.store.reap(holder)
    run = RunId("run_moved")

    def begun(agent: Agent, item: Item) -> Created:
        now = item.created_at
        return Created(run, agent.id, item.id, agent.provider, now)

    [started] = await home.store.start(holder, begun)
    assert started.run.provider == "claude"
    assert started.process
    assert started.process.provider == "scripted"
    await home.store.leave(holder)


def read_turns_of(place: Path, provider: str) -> list[str]:
    """Every turn that was sent to processes of the provider, in order."""
    texts: dict[str, Callable[[dict[str, object]], object]] = {
        "scripted": lambda frame: frame["text"],
        "claude": lambda frame: frame["message"]["content"],  # type: ignore[index]
    }
    found = []
    for directory in (place / "home" / "processes").glob("*"):
        for frame in read_sent(directory, 0):
            turns = msgspec.json.decode(frame.raw)
            if frame.key.startswith("begin:") and ("message" in turns) == (provider == "claude"):
                found.append((frame.key, str(texts[provider](turns))))
    return [text for _, text in sorted(found)]


async def _is(harness: DaemonHarness, state: str) -> bool:
    [gate] = await harness.store.gates()
    return compute_gate_state(gate, SystemClock().now()) == state


async def _is_paused(harness: DaemonHarness, agent: AgentId) -> bool:
    return (await harness.store.lane(agent)).is_paused


def _configure(place: Path) -> None:
    (place / "home").mkdir()
    (place / "home" / "config.toml").write_text(CONFIG)
