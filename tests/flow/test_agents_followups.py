"""A message to a busy agent is absorbed, returned or becomes a turn, as the CLI reports."""

from pathlib import Path

import pytest

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


async def test_message_is_absorbed_by_the_running_turn(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada, {"text": "done"})
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


async def test_own_turn_of_a_followup_may_last_longer_than_the_offer_timeout(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path, offer=0.5, interrupt=0.5) as harness:
        ada = await harness.add_agent("ada", on_lost="fail")
        # A message that is offered in the last step of a turn gets its own turn.
        first = await harness.send_waiting(ada)
        # The wait is longer than the two limits together.
        steps = ({"wait": 1.5}, harness.gates.wait_step("end"), {"text": "done"})
        second = await harness.send(ada, script({"text": "own"}, *steps))
        await harness.wait_for_event(ada, ev.FollowupOffered)
        harness.gates.open("go")
        await harness.wait_for_text(ada, "own")
        third = await harness.send(ada, "and this")
        await harness.wait_for_event(ada, ev.FollowupOffered, 2)
        harness.gates.open("end")
        items = [await harness.wait_until_settled(each) for each in (first, second, third)]

        assert [item.status for item in items] == ["completed"] * 3
        assert [item.delivery for item in items] == ["none", "own_turn", "absorbed"]
        assert [run.status for run in await harness.runs(ada)] == ["completed"] * 2


async def test_offered_message_contains_the_paths_of_its_files(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada, {"text": "done"})
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


async def test_followup_with_a_missing_file_fails_and_the_running_item_completes(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada, {"text": "done"})
        gone = Payload(files=(Attachment("a.txt", "attachments/gone", 1),))
        second = await harness.send(ada, "see this", payload=gone)
        await harness.wait_for_event(ada, ev.FollowupReturned)
        harness.gates.open("go")
        item = await harness.wait_until_settled(second)

        assert (await harness.wait_until_settled(first)).status == "completed"
        assert item.error
        assert (item.status, item.error.code) == ("failed", "file_unusable")
        assert await harness.events_of(ada, ev.FollowupOffered) == []


async def test_message_with_followup_queue_is_not_offered_to_the_running_turn(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada, {"text": "done"})
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


async def test_followup_returned_by_a_cancelled_turn_gets_its_own_run(tmp_path: Path) -> None:
    """The turn is interrupted before it could take the message in."""
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada)
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


async def test_unabsorbed_followup_becomes_the_next_turn_under_the_same_fence(
    tmp_path: Path,
) -> None:
    """A turn whose last step waits takes nothing in any more: what was offered comes after it."""
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada)
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


async def test_at_most_16_messages_are_offered_at_once(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada, {"text": "done"}, {"text": "all"})
        sent = [await harness.send(ada, f"message {n}") for n in range(20)]
        await harness.wait_for_event(ada, ev.FollowupOffered, 16)
        worker = harness.find_worker(ada)
        assert worker.slot.process
        assert len(worker.slot.process.offers.open) == 16
        offered = [each.item for each in await harness.events_of(ada, ev.FollowupOffered)]
        assert offered == sent[:16]
        harness.gates.open("go")
        items = [await harness.wait_until_settled(item) for item in sent]

        assert (await harness.wait_until_settled(first)).status == "completed"
        assert {item.status for item in items} == {"completed"}
        assert {item.delivery for item in items[:16]} == {"absorbed"}


async def test_long_message_is_not_offered_while_another_offer_is_open(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_waiting(ada, {"text": "done"})
        short, long = "s" * 40_000, "l" * 90_000
        sent = [await harness.send(ada, text) for text in (short, long)]
        await harness.wait_for_event(ada, ev.FollowupOffered)
        # The daemon reads the requests again after both messages were stored.
        await harness.store.set_paused(ada, is_paused=True)
        await harness.store.set_paused(ada, is_paused=False)
        worker = harness.find_worker(ada)
        assert worker.slot.process
        assert [*worker.slot.process.offers.open] == sent[:1]
        harness.gates.open("go")
        items = [await harness.wait_until_settled(item) for item in sent]

        assert {item.status for item in items} <= {"completed", "failed"}
        assert items[0].delivery == "absorbed"


async def test_message_for_a_provider_without_steering_stays_queued(tmp_path: Path) -> None:
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


async def test_message_queued_before_the_turn_began_is_offered_to_it(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        await harness.store.set_paused(ada, is_paused=True)
        first = await harness.send(
            ada, script({"text": "one"}, harness.gates.wait_step("go"), "recall")
        )
        second = await harness.send(ada, "two")
        await harness.store.set_paused(ada, is_paused=False)
        await harness.wait_for_event(ada, ev.FollowupOffered)
        harness.gates.open("go")

        assert (await harness.wait_until_settled(first)).status == "completed"
        assert (await harness.wait_until_settled(second)).delivery == "absorbed"
        assert len(await harness.runs(ada)) == 1


async def test_offered_message_can_be_cancelled(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        first = await harness.send_waiting(ada, {"text": "done"})
        second = await harness.send(ada, "never mind")
        await harness.wait_for_event(ada, ev.FollowupOffered)
        await harness.store.cancel(second)
        withdrawn = await harness.wait_until_settled(second)
        harness.gates.open("go")

        assert withdrawn.status == "cancelled"
        assert (await harness.wait_until_settled(first)).status == "completed"
        assert len(await harness.events_of(ada, ev.FollowupReturned)) == 1
        assert await harness.events_of(ada, ev.FollowupAbsorbed) == []


# -- turns without a request


def _later(*steps: object, after: float = 0.05) -> dict[str, object]:
    return {"self_turn": {"after": after, "steps": [*steps]}}


async def test_unprompted_turn_is_recorded_as_its_own_item(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("after", [0.0, 0.5], ids=["right after a turn", "when idle"])
async def test_unprompted_turn_of_a_paused_agent_is_stopped(tmp_path: Path, after: float) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        later = _later({"text": "by itself"}, "hang", after=after)
        await harness.send_waiting(ada, later, {"text": "one"})
        await harness.store.set_paused(ada, is_paused=True)
        harness.gates.open("go")
        await harness.wait_for_event(ada, ev.RunFailed)
        await harness.wait_until_idle(ada)

        _, unprompted = await harness.runs(ada)
        assert (unprompted.status, unprompted.stop_reason) == ("failed", "policy")
        items = await harness.store.items(ada, include_settled=True)
        assert [item.status for item in items if item.kind == "self"] == ["failed"]
        assert (await harness.store.lane(ada)).status == "warm"


async def _send_in_unprompted_turn(
    harness: DaemonHarness, agent: AgentId, text: str, *steps: object
) -> ItemId:
    """Start an item when its process has begun an unprompted turn that is not recorded yet."""
    await harness.send_and_wait(agent, script(_later(*steps, after=1.5), {"text": "one"}))
    await harness.wait_for_lane(agent, "warm")
    worker = harness.find_worker(agent)
    assert worker.slot.process
    driver = worker.slot.process.connection.driver
    assert driver
    async with worker.lane.turn_lock:
        await wait_for(lambda: driver.is_open, "a turn")
        item = await harness.send(agent, text)
        await harness.wait_for_lane(agent, "held")
    return item


async def test_item_is_sent_after_an_unprompted_turn_that_began_before_it(tmp_path: Path) -> None:
    """The item is sent after that turn.

    Both turns belong to its run, which ends with the item's own turn.
    """
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        spent = {"usage": {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.5}}
        own = {"usage": {"input_tokens": 1, "cost_usd": 0.25}}
        item = await _send_in_unprompted_turn(
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


async def test_item_continues_in_a_new_process_when_an_unprompted_turn_crashes_before_it(
    tmp_path: Path,
) -> None:
    """The process ends before the item was sent: the run continues in another process."""
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        item = await _send_in_unprompted_turn(
            harness, ada, say("two"), {"text": "by itself"}, {"crash": 3}
        )
        settled = await harness.wait_until_settled(item)

        first, run = await harness.runs(ada)
        assert (settled.status, settled.attempt, settled.reply) == ("completed", 1, "two")
        assert first.process != run.process
        assert count_sent(tmp_path, "two") == 1


async def test_item_that_waits_for_an_unprompted_turn_can_be_cancelled(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        item = await _send_in_unprompted_turn(
            harness, ada, say("two"), {"text": "by itself"}, "hang"
        )
        await harness.wait_for_text(ada, "by itself")
        await harness.store.cancel(item)

        assert (await harness.wait_until_settled(item)).status == "cancelled"
        assert count_sent(tmp_path, "two") == 0
        assert (await harness.send_and_wait(ada, say("three"))).reply == "three"
