"""Lasting agents work in order and side by side, with one conversation each."""

from pathlib import Path

from steadyrun.model import event as ev
from steadyrun.model.approval import ApprovalAnswer
from steadyrun.model.item import Message
from steadyrun.runtime.process_pool import Capacity
from steadyrun.stores.sqlite import SqliteStore
from tests.support.daemon_harness import read_turns, running_daemon, say, script


async def test_two_items_are_done_by_one_process_in_one_conversation(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_and_wait(ada, say("one"))
        second = await harness.send_and_wait(ada, script("recall"))

        assert [first.status, second.status] == ["completed", "completed"]
        assert first.reply == "one"
        assert say("one") in str(second.reply).encode().decode("unicode_escape")
        runs = await harness.runs(ada)
        assert len({run.process for run in runs}) == 1
        assert (await harness.store.lane(ada)).status == "warm"


async def test_items_of_an_agent_run_in_order(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        sent = [await harness.send(ada, say(str(n)), followup="queue") for n in range(8)]
        await harness.wait_until_settled(sent[-1])

        assert await harness.texts(ada) == [str(n) for n in range(8)]
        assert [text for _, text in read_turns(tmp_path)] == [say(str(n)) for n in range(8)]


async def test_four_agents_run_at_the_same_time(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        agents = [await harness.add_agent(f"agent-{n}") for n in range(4)]
        waiting = script({"text": "here"}, harness.gates.wait_step("all"), {"text": "there"})
        sent = [await harness.send(agent, waiting) for agent in agents]
        for agent in agents:
            await harness.wait_for_text(agent, "here")
        harness.gates.open("all")
        settled = [await harness.wait_until_settled(item) for item in sent]

        assert {item.status for item in settled} == {"completed"}


async def test_no_more_runs_are_active_than_there_are_slots(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, Capacity(runs=2)) as harness:
        agents = [await harness.add_agent(f"agent-{n}") for n in range(5)]
        waiting = script({"text": "here"}, harness.gates.wait_step("all"))
        sent = [await harness.send(agent, waiting) for agent in agents]
        await harness.wait_for_text(agents[0], "here")
        await harness.wait_for_text(agents[1], "here")

        assert harness.daemon.dispatcher.slots.free == 0
        assert len(await harness.store.runs()) == 2
        harness.gates.open("all")
        assert {(await harness.wait_until_settled(item)).status for item in sent} == {"completed"}
        assert harness.daemon.dispatcher.slots.free == 2


async def test_item_waits_for_the_slot_of_its_provider_while_another_provider_runs(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path, Capacity(runs=5, runs_of={"scripted": 1})) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        eve = await harness.add_agent("eve", "shell")
        waiting = script({"text": "here"}, harness.gates.wait_step("all"))
        first = await harness.send(ada, waiting)
        await harness.wait_for_text(ada, "here")
        second = await harness.send(bob, say("two"))
        third = await harness.send_and_wait(eve, "echo three")

        assert (third.status, third.reply) == ("completed", "three")
        assert (await harness.store.item(second)).status == "queued"
        harness.gates.open("all")
        assert (await harness.wait_until_settled(first)).status == "completed"
        assert (await harness.wait_until_settled(second)).reply == "two"


async def test_run_that_waits_for_an_approval_frees_its_slot(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, Capacity(runs=1)) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        asking = await harness.send(ada, script({"approval": {"name": "Write"}}, {"text": "so"}))
        await harness.wait_for_event(ada, ev.ApprovalRequested)
        other = await harness.send_and_wait(bob, say("other"))
        [asked] = await harness.store.approvals(ada)
        await harness.store.answer(asked.id, ApprovalAnswer(True, "eve", asked.asked_at))

        assert other.reply == "other"
        assert (await harness.wait_until_settled(asking)).reply == "so"
        assert harness.daemon.dispatcher.slots.free == 1


async def test_paused_agent_starts_no_item_until_it_is_resumed(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        running = await harness.send(ada, script({"text": "one"}, harness.gates.wait_step("go")))
        await harness.wait_for_text(ada, "one")
        await harness.store.set_paused(ada, is_paused=True)
        waiting = await harness.send(ada, say("two"), followup="queue")
        harness.gates.open("go")
        assert (await harness.wait_until_settled(running)).status == "completed"
        await harness.send_and_wait(bob, say("something else"))

        assert (await harness.store.item(waiting)).status == "queued"
        await harness.store.set_paused(ada, is_paused=False)
        assert (await harness.wait_until_settled(waiting)).reply == "two"


async def test_queued_item_can_be_cancelled(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send(ada, script({"text": "one"}, harness.gates.wait_step("go")))
        await harness.wait_for_text(ada, "one")
        second = await harness.send(ada, say("two"), followup="queue")
        third = await harness.send(ada, say("three"), followup="queue")
        await harness.store.cancel(second)
        harness.gates.open("go")

        assert (await harness.wait_until_settled(third)).status == "completed"
        assert (await harness.wait_until_settled(second)).status == "cancelled"
        assert (await harness.wait_until_settled(first)).status == "completed"
        assert await harness.texts(ada) == ["one", "three"]


async def test_running_item_is_cancelled_through_another_store_connection(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send(ada, script({"text": "one"}, "hang"))
        await harness.wait_for_text(ada, "one")
        elsewhere = await SqliteStore.open(tmp_path / "home")
        await elsewhere.cancel(first, "enough")
        await elsewhere.close()
        settled = await harness.wait_until_settled(first)
        after = await harness.send_and_wait(ada, say("two"))

        [run, next_run] = await harness.runs(ada)
        assert (settled.status, run.stop_reason) == ("cancelled", "user_stop")
        assert settled.error == run.error == ev.ErrorFact("cancelled", "enough")
        assert (after.status, next_run.process) == ("completed", run.process)


async def test_message_accepted_by_the_daemon_starts_in_the_same_commit_if_a_slot_is_free(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path, capacity=Capacity(runs=1)) as harness:
        ada, bo = await harness.add_agent("ada"), await harness.add_agent("bo")
        accept = harness.daemon.accept
        until = script(harness.gates.wait_step("go"), {"text": "done"})

        first = await accept(Message(ada, until))
        second = await accept(Message(ada, say("later"), followup="queue"))
        third = await accept(Message(bo, say("with room")))

        assert first.item.status == "running"
        assert first.item == await harness.store.item(first.item.id)
        assert [second.item.status, third.item.status] == ["queued", "queued"]
        harness.gates.open("go")
        for accepted, said in ((first, "done"), (second, "later"), (third, "with room")):
            assert (await harness.wait_until_settled(accepted.item.id)).reply == said
