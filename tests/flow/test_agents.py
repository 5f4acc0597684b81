"""Lasting agents work in order and side by side, with one conversation each."""

from pathlib import Path

import anyio

from steadyrun.model import event as ev
from steadyrun.model.approval import ApprovalAnswer
from steadyrun.model.item import Message
from steadyrun.runtime.process_pool import Capacity
from steadyrun.stores.sqlite import SqliteStore
from tests.support.daemon_harness import read_turns, running_daemon, say, script


def test_two_items_are_done_by_one_process_in_one_conversation(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)


def test_the_items_of_an_agent_are_done_in_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            sent = [await harness.send(ada, say(str(n)), followup="queue") for n in range(8)]
            await harness.wait_until_settled(sent[-1])

            assert await harness.texts(ada) == [str(n) for n in range(8)]
            assert [text for _, text in read_turns(tmp_path)] == [say(str(n)) for n in range(8)]

    anyio.run(main)


def test_agents_work_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            agents = [await harness.add_agent(f"agent-{n}") for n in range(4)]
            waiting = script({"text": "here"}, harness.gates.wait_step("all"), {"text": "there"})
            sent = [await harness.send(agent, waiting) for agent in agents]
            for agent in agents:
                await harness.wait_for_text(agent, "here")
            harness.gates.open("all")
            settled = [await harness.wait_until_settled(item) for item in sent]

            assert {item.status for item in settled} == {"completed"}

    anyio.run(main)


def test_no_more_runs_at_a_time_than_there_is_room_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path, Capacity(runs=2)) as harness:
            agents = [await harness.add_agent(f"agent-{n}") for n in range(5)]
            waiting = script({"text": "here"}, harness.gates.wait_step("all"))
            sent = [await harness.send(agent, waiting) for agent in agents]
            await harness.wait_for_text(agents[0], "here")
            await harness.wait_for_text(agents[1], "here")

            assert harness.daemon.dispatcher.slots.free == 0
            assert len(await harness.store.runs()) == 2
            harness.gates.open("all")
            assert {(await harness.wait_until_settled(item)).status for item in sent} == {
                "completed"
            }
            assert harness.daemon.dispatcher.slots.free == 2

    anyio.run(main)


def test_a_provider_may_have_less_room_than_the_others(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)


def test_a_run_that_waits_for_a_person_makes_room_for_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path, Capacity(runs=1)) as harness:
            ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
            asking = await harness.send(
                ada, script({"approval": {"name": "Write"}}, {"text": "so"})
            )
            await harness.wait_for_event(ada, ev.ApprovalRequested)
            other = await harness.send_and_wait(bob, say("other"))
            [asked] = await harness.store.approvals(ada)
            await harness.store.answer(asked.id, ApprovalAnswer(True, "eve", asked.asked_at))

            assert other.reply == "other"
            assert (await harness.wait_until_settled(asking)).reply == "so"
            assert harness.daemon.dispatcher.slots.free == 1

    anyio.run(main)


def test_a_paused_agent_is_given_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
            running = await harness.send(
                ada, script({"text": "one"}, harness.gates.wait_step("go"))
            )
            await harness.wait_for_text(ada, "one")
            await harness.store.pause(ada)
            waiting = await harness.send(ada, say("two"), followup="queue")
            harness.gates.open("go")
            assert (await harness.wait_until_settled(running)).status == "completed"
            await harness.send_and_wait(bob, say("something else"))

            assert (await harness.store.item(waiting)).status == "queued"
            await harness.store.resume(ada)
            assert (await harness.wait_until_settled(waiting)).reply == "two"

    anyio.run(main)


def test_queued_item_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)


def test_running_item_can_be_cancelled_from_another_process(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)


def test_message_accepted_by_the_daemon_starts_in_the_same_commit(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)
