"""Do lasting agents work? In order, side by side, one conversation each."""

from pathlib import Path

import anyio

from steadyrun.model import event as ev
from steadyrun.model.approval import Answer
from steadyrun.model.item import Message
from steadyrun.runtime.dispatcher import Capacity
from steadyrun.stores.sqlite import SqliteStore
from tests.support.daemon_harness import begun, says, script, working


def test_two_items_are_done_by_one_process_in_one_conversation(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await team.done(ada, says("one"))
            second = await team.done(ada, script("recall"))

            assert [first.status, second.status] == ["completed", "completed"]
            assert first.reply == "one"
            assert says("one") in str(second.reply).encode().decode("unicode_escape")
            runs = await team.runs(ada)
            assert len({run.process for run in runs}) == 1
            assert (await team.store.lane(ada)).status == "warm"

    anyio.run(main)


def test_the_items_of_an_agent_are_done_in_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            sent = [await team.send(ada, says(str(n)), followup="queue") for n in range(8)]
            await team.settled(sent[-1])

            assert await team.texts(ada) == [str(n) for n in range(8)]
            assert [text for _, text in begun(tmp_path)] == [says(str(n)) for n in range(8)]

    anyio.run(main)


def test_agents_work_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            agents = [await team.hire(f"agent-{n}") for n in range(4)]
            waiting = script({"text": "here"}, team.gates.until("all"), {"text": "there"})
            sent = [await team.send(agent, waiting) for agent in agents]
            for agent in agents:
                await team.until_said(agent, "here")
            team.gates.open("all")
            settled = [await team.settled(item) for item in sent]

            assert {item.status for item in settled} == {"completed"}

    anyio.run(main)


def test_no_more_runs_at_a_time_than_there_is_room_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, Capacity(runs=2)) as team:
            agents = [await team.hire(f"agent-{n}") for n in range(5)]
            waiting = script({"text": "here"}, team.gates.until("all"))
            sent = [await team.send(agent, waiting) for agent in agents]
            await team.until_said(agents[0], "here")
            await team.until_said(agents[1], "here")

            assert team.daemon.worker.slots.free == 0
            assert len(await team.store.runs()) == 2
            team.gates.open("all")
            assert {(await team.settled(item)).status for item in sent} == {"completed"}
            assert team.daemon.worker.slots.free == 2

    anyio.run(main)


def test_a_provider_may_have_less_room_than_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, Capacity(runs=5, runs_of={"scripted": 1})) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            eve = await team.hire("eve", "shell")
            waiting = script({"text": "here"}, team.gates.until("all"))
            first = await team.send(ada, waiting)
            await team.until_said(ada, "here")
            second = await team.send(bob, says("two"))
            third = await team.done(eve, "echo three")

            assert (third.status, third.reply) == ("completed", "three")
            assert (await team.store.item(second)).status == "queued"
            team.gates.open("all")
            assert (await team.settled(first)).status == "completed"
            assert (await team.settled(second)).reply == "two"

    anyio.run(main)


def test_a_run_that_waits_for_a_person_makes_room_for_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, Capacity(runs=1)) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            asking = await team.send(ada, script({"approval": {"name": "Write"}}, {"text": "so"}))
            await team.until_told(ada, ev.ApprovalRequested)
            other = await team.done(bob, says("meanwhile"))
            [asked] = await team.store.approvals(ada)
            await team.store.answer(asked.id, Answer(True, "eve", asked.asked_at))

            assert other.reply == "meanwhile"
            assert (await team.settled(asking)).reply == "so"
            assert team.daemon.worker.slots.free == 1

    anyio.run(main)


def test_a_paused_agent_is_given_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            running = await team.send(ada, script({"text": "one"}, team.gates.until("go")))
            await team.until_said(ada, "one")
            await team.store.pause(ada)
            waiting = await team.send(ada, says("two"), followup="queue")
            team.gates.open("go")
            assert (await team.settled(running)).status == "completed"
            await team.done(bob, says("something else"))

            assert (await team.store.item(waiting)).status == "queued"
            await team.store.resume(ada)
            assert (await team.settled(waiting)).reply == "two"

    anyio.run(main)


def test_what_is_queued_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await team.send(ada, script({"text": "one"}, team.gates.until("go")))
            await team.until_said(ada, "one")
            second = await team.send(ada, says("two"), followup="queue")
            third = await team.send(ada, says("three"), followup="queue")
            await team.store.cancel(second)
            team.gates.open("go")

            assert (await team.settled(third)).status == "completed"
            assert (await team.settled(second)).status == "cancelled"
            assert (await team.settled(first)).status == "completed"
            assert await team.texts(ada) == ["one", "three"]

    anyio.run(main)


def test_what_runs_can_be_cancelled_from_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await team.send(ada, script({"text": "one"}, "hang"))
            await team.until_said(ada, "one")
            elsewhere = await SqliteStore.open(tmp_path / "home")
            await elsewhere.cancel(first, "enough")
            await elsewhere.close()
            settled = await team.settled(first)
            after = await team.done(ada, says("two"))

            [run, next_run] = await team.runs(ada)
            assert (settled.status, run.stop_reason) == ("cancelled", "user_stop")
            assert settled.error == run.error == ev.ErrorFact("cancelled", "enough")
            assert (after.status, next_run.process) == ("completed", run.process)

    anyio.run(main)


def test_what_the_daemon_takes_in_begins_in_the_same_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, room=Capacity(runs=1)) as team:
            ada, bo = await team.hire("ada"), await team.hire("bo")
            accept = team.daemon.worker.accept
            until = script(team.gates.until("go"), {"text": "done"})

            first = await accept(Message(ada, until))
            second = await accept(Message(ada, says("later"), followup="queue"))
            third = await accept(Message(bo, says("with room")))

            assert first.item.status == "running"
            assert first.item == await team.store.item(first.item.id)
            assert [second.item.status, third.item.status] == ["queued", "queued"]
            team.gates.open("go")
            for accepted, said in ((first, "done"), (second, "later"), (third, "with room")):
                assert (await team.settled(accepted.item.id)).reply == said

    anyio.run(main)
