"""A message to a busy agent is absorbed, returned or becomes a turn, as the CLI reports."""

from pathlib import Path

import anyio

from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Attachment, Payload
from steadyrun.runtime.inbox import accept
from tests.support.daemon_harness import (
    DaemonHarness,
    count_sent,
    read_turns,
    running_daemon,
    say,
    script,
    wait_for,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


async def _busy(harness: DaemonHarness, agent: AgentId, *after: object) -> ItemId:
    """An item of the agent runs, and waits for its gate."""
    item = await harness.send(
        agent, script({"text": "busy"}, harness.gates.wait_step("go"), *after)
    )
    await harness.wait_for_text(agent, "busy")
    return item


def test_a_message_is_absorbed_by_the_turn_that_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada, {"text": "done"})
            second = await harness.send(ada, "and this")
            await harness.wait_for_event(ada, ev.FollowupOffered)
            harness.gates.open("go")
            main_item, followup = (
                await harness.wait_until_settled(first),
                await harness.wait_until_settled(second),
            )

            assert (followup.status, followup.delivery) == ("completed", "absorbed")
            assert followup.run == main_item.run
            assert followup.reply == "done"
            assert len(await harness.runs(ada)) == 1
            assert len(read_turns(tmp_path)) == 1

    anyio.run(main)


def test_a_turn_of_its_own_may_take_longer_than_offers_stay_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path, offer=0.2, interrupt=0.2) as harness:
            ada = await harness.add_agent("ada", on_lost="fail")
            # What is offered in its last step is kept for later.
            first = await harness.send(ada, script({"text": "busy"}, harness.gates.wait_step("go")))
            await harness.wait_for_text(ada, "busy")
            # Several times what an offer may take without a turn.
            second = await harness.send(
                ada, script({"text": "own"}, {"wait": 1.5}, {"text": "done"})
            )
            await harness.wait_for_event(ada, ev.FollowupOffered)
            harness.gates.open("go")
            await harness.wait_for_text(ada, "own")
            third = await harness.send(ada, "and this")
            await harness.wait_for_event(ada, ev.FollowupOffered, 2)
            items = [await harness.wait_until_settled(each) for each in (first, second, third)]

            assert [item.status for item in items] == ["completed"] * 3
            assert [item.delivery for item in items] == ["none", "own_turn", "absorbed"]
            assert [run.status for run in await harness.runs(ada)] == ["completed"] * 2

    anyio.run(main)


def test_offered_message_names_its_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada, {"text": "done"})
            files = [tmp_path / "notes.txt", tmp_path / "dot.png"]
            for file, content in zip(files, (b"remember", PNG), strict=True):
                file.write_bytes(content)
            agent = await harness.store.agent(ada)
            sent = await accept(
                harness.store.accept, agent, "see these", home=tmp_path / "home", files=files
            )
            await harness.wait_for_event(ada, ev.FollowupOffered)
            harness.gates.open("go")

            assert (await harness.wait_until_settled(sent.item.id)).delivery == "absorbed"
            [offered] = await harness.events_of(ada, ev.FollowupOffered)
            assert offered.text.startswith("see these\n")
            places = [str(tmp_path / "home" / file.place) for file in sent.item.payload.files]
            assert all(place in offered.text for place in places)
            assert (await harness.wait_until_settled(first)).status == "completed"

    anyio.run(main)


def test_message_whose_files_cannot_be_offered_fails_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada, {"text": "done"})
            gone = Payload(files=(Attachment("a.txt", "attachments/gone", 1),))
            second = await harness.send(ada, "see this", payload=gone)
            await harness.wait_for_event(ada, ev.FollowupReturned)
            harness.gates.open("go")
            item = await harness.wait_until_settled(second)

            assert (await harness.wait_until_settled(first)).status == "completed"
            assert item.error
            assert (item.status, item.error.code) == ("failed", "file_unusable")
            assert await harness.events_of(ada, ev.FollowupOffered) == []

    anyio.run(main)


def test_queued_message_is_never_offered_to_a_busy_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada, {"text": "done"})
            second = await harness.send(ada, say("two"), followup="queue")
            third = await harness.send(ada, "steer me")
            await harness.wait_for_event(ada, ev.FollowupOffered)
            harness.gates.open("go")
            await harness.wait_until_settled(first)

            assert (await harness.wait_until_settled(second)).reply == "two"
            assert (await harness.wait_until_settled(third)).delivery == "absorbed"
            offered = await harness.events_of(ada, ev.FollowupOffered)
            assert [each.item for each in offered] == [third]
            assert len(await harness.runs(ada)) == 2

    anyio.run(main)


def test_returned_message_gets_its_own_run(tmp_path: Path) -> None:
    """The turn is interrupted before it could take the message in."""

    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada)
            second = await harness.send(ada, say("two"))
            await harness.wait_for_event(ada, ev.FollowupOffered)
            await harness.store.cancel(first)
            item = await harness.wait_until_settled(second)

            assert (await harness.wait_until_settled(first)).status == "cancelled"
            assert (item.status, item.reply) == ("completed", "two")
            assert len(await harness.events_of(ada, ev.FollowupReturned)) == 1
            first_run, second_run = await harness.runs(ada)
            assert first_run.process == second_run.process
            assert item.run == second_run.id

    anyio.run(main)


def test_unabsorbed_message_starts_the_next_turn_under_the_same_fence(tmp_path: Path) -> None:
    """A turn whose last step waits takes nothing in any more: what was offered comes after it."""

    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada)
            second = await harness.send(ada, say("two"))
            third = await harness.send(ada, say("three"), followup="queue")
            await harness.wait_for_event(ada, ev.FollowupOffered)
            fence = (await harness.store.lane(ada)).fence
            harness.gates.open("go")
            own, queued = (
                await harness.wait_until_settled(second),
                await harness.wait_until_settled(third),
            )

            assert (await harness.wait_until_settled(first)).status == "completed"
            assert (own.status, own.delivery, own.reply) == ("completed", "own_turn", "two")
            assert queued.reply == "three"
            assert (await harness.store.lane(ada)).fence == fence
            runs = await harness.runs(ada)
            assert len({run.process for run in runs}) == 1
            assert [run.item for run in runs] == [first, second, third]
            assert count_sent(tmp_path, "two") == 0

    anyio.run(main)


def test_so_much_is_open_at_once_and_not_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada, {"text": "done"}, {"text": "all"})
            sent = [await harness.send(ada, f"message {n}") for n in range(20)]
            await harness.wait_for_event(ada, ev.FollowupOffered, 16)
            seat = harness.daemon.workers.find(ada)
            assert seat
            assert seat.slot.process
            assert len(seat.slot.process.offers.open) == 16
            offered = [each.item for each in await harness.events_of(ada, ev.FollowupOffered)]
            assert offered == sent[:16]
            harness.gates.open("go")
            items = [await harness.wait_until_settled(item) for item in sent]

            assert (await harness.wait_until_settled(first)).status == "completed"
            assert {item.status for item in items} == {"completed"}
            assert {item.delivery for item in items[:16]} == {"absorbed"}

    anyio.run(main)


def test_long_messages_are_open_one_after_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            await _busy(harness, ada, {"text": "done"})
            short, long = "s" * 40_000, "l" * 90_000
            sent = [await harness.send(ada, text) for text in (short, long)]
            await harness.wait_for_event(ada, ev.FollowupOffered)
            # Something that is heard after both were looked at.
            await harness.store.pause(ada)
            await harness.store.resume(ada)
            seat = harness.daemon.workers.find(ada)
            assert seat
            assert seat.slot.process
            assert [*seat.slot.process.offers.open] == sent[:1]
            harness.gates.open("go")
            items = [await harness.wait_until_settled(item) for item in sent]

            assert {item.status for item in items} <= {"completed", "failed"}
            assert items[0].delivery == "absorbed"

    anyio.run(main)


def test_a_provider_that_cannot_be_steered_keeps_the_message_in_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada", "shell")
            gate = tmp_path / "gate-go"
            wait = f"sh -c 'echo one; until test -e {gate}; do sleep 0.02; done'"
            first = await harness.send(ada, wait)
            await harness.wait_for_event(ada, ev.RunStarted)
            second = await harness.send(ada, "echo two")
            await harness.wait_for_lane(ada, "held")

            assert (await harness.store.item(second)).delivery == "none"
            harness.gates.open("go")
            assert (await harness.wait_until_settled(first)).status == "completed"
            assert (await harness.wait_until_settled(second)).reply == "two"
            assert await harness.events_of(ada, ev.FollowupOffered) == []
            assert await harness.events_of(ada, ev.FollowupReturned) == []

    anyio.run(main)


def test_a_message_that_comes_before_the_turn_has_begun_is_offered_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            await harness.store.pause(ada)
            first = await harness.send(
                ada, script({"text": "one"}, harness.gates.wait_step("go"), "recall")
            )
            second = await harness.send(ada, "two")
            await harness.store.resume(ada)
            await harness.wait_for_event(ada, ev.FollowupOffered)
            harness.gates.open("go")

            assert (await harness.wait_until_settled(first)).status == "completed"
            assert (await harness.wait_until_settled(second)).delivery == "absorbed"
            assert len(await harness.runs(ada)) == 1

    anyio.run(main)


def test_offered_message_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            first = await _busy(harness, ada, {"text": "done"})
            second = await harness.send(ada, "never mind")
            await harness.wait_for_event(ada, ev.FollowupOffered)
            await harness.store.cancel(second)
            taken_back = await harness.wait_until_settled(second)
            harness.gates.open("go")

            assert taken_back.status == "cancelled"
            assert (await harness.wait_until_settled(first)).status == "completed"
            assert len(await harness.events_of(ada, ev.FollowupReturned)) == 1
            assert await harness.events_of(ada, ev.FollowupAbsorbed) == []

    anyio.run(main)


# -- turns without a request


def _later(*steps: object, after: float = 0.05) -> dict[str, object]:
    return {"self_turn": {"after": after, "steps": [*steps]}}


def test_unprompted_turn_is_recorded_as_its_own_item(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            usage = {"usage": {"input_tokens": 7, "output_tokens": 5, "cost_usd": 0.25}}
            await harness.send_and_wait(
                ada, script(_later({"text": "by itself"}, usage), {"text": "a"})
            )
            await harness.wait_for_text(ada, "by itself")
            await harness.wait_until_idle(ada)

            by_itself = (await harness.runs(ada))[1]
            items = await harness.store.items(ada, include_settled=True)
            item = next(each for each in items if each.id == by_itself.item)
            assert (item.kind, item.status, item.reply) == ("self", "completed", "by itself")
            assert by_itself.usage.input_tokens == 7
            assert by_itself.cost.usd == 0.25
            assert by_itself.process == (await harness.runs(ada))[0].process
            assert (await harness.store.lane(ada)).status == "warm"
            assert harness.daemon.dispatcher.slots.free == 5
            assert (await harness.send_and_wait(ada, say("next"))).reply == "next"

    anyio.run(main)


def test_a_paused_agent_does_nothing_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            later = _later({"text": "by itself"}, "hang", after=1.5)
            await harness.send_and_wait(ada, script(later, {"text": "one"}))
            await harness.store.pause(ada)
            await harness.wait_for_event(ada, ev.RunFailed)
            await harness.wait_until_idle(ada)

            run = (await harness.runs(ada))[1]
            assert (run.status, run.stop_reason) == ("failed", "policy")
            [item] = [
                i for i in await harness.store.items(ada, include_settled=True) if i.kind == "self"
            ]
            assert item.status == "failed"
            assert (await harness.store.lane(ada)).status == "warm"

    anyio.run(main)


def test_a_paused_agent_does_nothing_by_itself_right_after_a_turn(tmp_path: Path) -> None:
    """The lane is held when the turn begins: no worker has to be woken for it."""

    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            later = _later({"text": "by itself"}, "hang", after=0)
            await _busy(harness, ada, later, {"text": "one"})
            await harness.store.pause(ada)
            harness.gates.open("go")
            await harness.wait_for_event(ada, ev.RunFailed)
            await harness.wait_until_idle(ada)

            assert [run.stop_reason for run in await harness.runs(ada)] == [None, "policy"]

    anyio.run(main)


async def _overtaken(harness: DaemonHarness, agent: AgentId, text: str, *steps: object) -> ItemId:
    """An item is started at the moment at which its process has begun these steps by itself."""
    await harness.send_and_wait(agent, script(_later(*steps, after=1.5), {"text": "one"}))
    await harness.wait_for_lane(agent, "warm")
    seat = harness.daemon.workers.find(agent)
    assert seat
    assert seat.slot.live
    driver = seat.slot.live.connection.driver
    assert driver
    async with seat.lane.turn_lock:
        await wait_for(lambda: driver.is_open, "a turn")
        item = await harness.send(agent, text)
        await harness.wait_for_lane(agent, "held")
    return item


def test_an_item_waits_for_a_turn_that_began_by_itself(tmp_path: Path) -> None:
    """It is told when that turn is over; both belong to its run, which ends with its own."""

    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            spent = {"usage": {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.5}}
            own = {"usage": {"input_tokens": 1, "cost_usd": 0.25}}
            item = await _overtaken(
                harness,
                ada,
                script(own, {"text": "two"}, harness.gates.wait_step("go"), {"text": "three"}),
                {"text": "by itself"},
                harness.gates.wait_step("early"),
                spent,
            )
            steer = await harness.send(ada, "with the item")
            await harness.wait_for_text(ada, "by itself")
            assert await harness.events_of(ada, ev.FollowupOffered) == []
            harness.gates.open("early")
            await harness.wait_for_event(ada, ev.FollowupOffered)
            harness.gates.open("go")
            settled = await harness.wait_until_settled(item)

            _, run = await harness.runs(ada)
            assert (settled.status, settled.reply) == ("completed", "three")
            assert run.usage.input_tokens == 101
            assert run.cost.usd == 0.75
            assert count_sent(tmp_path, "two") == 1
            assert "the provider had begun a turn by itself before this one could be sent" in (
                await harness.notes(ada)
            )
            assert (await harness.wait_until_settled(steer)).run == run.id

    anyio.run(main)


def test_an_item_outlives_the_turn_that_was_before_it(tmp_path: Path) -> None:
    """Its process dies before it could be told: its run goes on with another one."""

    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            item = await _overtaken(harness, ada, say("two"), {"text": "by itself"}, {"crash": 3})
            settled = await harness.wait_until_settled(item)

            first, run = await harness.runs(ada)
            assert (settled.status, settled.attempt, settled.reply) == ("completed", 1, "two")
            assert first.process != run.process
            assert count_sent(tmp_path, "two") == 1

    anyio.run(main)


def test_an_item_that_waits_for_another_turn_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            item = await _overtaken(harness, ada, say("two"), {"text": "by itself"}, "hang")
            await harness.wait_for_text(ada, "by itself")
            await harness.store.cancel(item)

            assert (await harness.wait_until_settled(item)).status == "cancelled"
            assert count_sent(tmp_path, "two") == 0
            assert (await harness.send_and_wait(ada, say("three"))).reply == "three"

    anyio.run(main)
