"""What becomes of a message that comes while its agent is busy? It is known by evidence alone."""

from pathlib import Path

import anyio

from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Attachment, Payload
from steadyrun.runtime.inbox import accept
from tests.support.daemon_harness import Team, begun, says, script, times_told, wait_for, working

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


async def _busy(team: Team, agent: AgentId, *after: object) -> ItemId:
    """An item of the agent runs, and waits for its gate."""
    item = await team.send(agent, script({"text": "busy"}, team.gates.until("go"), *after))
    await team.until_said(agent, "busy")
    return item


def test_a_message_is_absorbed_by_the_turn_that_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada, {"text": "done"})
            second = await team.send(ada, "and this")
            await team.until_told(ada, ev.FollowupOffered)
            team.gates.open("go")
            main_item, followup = await team.settled(first), await team.settled(second)

            assert (followup.status, followup.delivery) == ("completed", "absorbed")
            assert followup.run == main_item.run
            assert followup.reply == "done"
            assert len(await team.runs(ada)) == 1
            assert len(begun(tmp_path)) == 1

    anyio.run(main)


def test_a_turn_of_its_own_may_take_longer_than_offers_stay_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, offer=0.2, interrupt=0.2) as team:
            ada = await team.hire("ada", on_lost="fail")
            # What is offered in its last step is kept for later.
            first = await team.send(ada, script({"text": "busy"}, team.gates.until("go")))
            await team.until_said(ada, "busy")
            # Several times what an offer may take without a turn.
            second = await team.send(ada, script({"text": "own"}, {"wait": 1.5}, {"text": "done"}))
            await team.until_told(ada, ev.FollowupOffered)
            team.gates.open("go")
            await team.until_said(ada, "own")
            third = await team.send(ada, "and this")
            await team.until_told(ada, ev.FollowupOffered, 2)
            items = [await team.settled(each) for each in (first, second, third)]

            assert [item.status for item in items] == ["completed"] * 3
            assert [item.delivery for item in items] == ["none", "own_turn", "absorbed"]
            assert [run.status for run in await team.runs(ada)] == ["completed"] * 2

    anyio.run(main)


def test_what_is_offered_names_the_files_that_came_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada, {"text": "done"})
            files = [tmp_path / "notes.txt", tmp_path / "dot.png"]
            for file, content in zip(files, (b"remember", PNG), strict=True):
                file.write_bytes(content)
            agent = await team.store.agent(ada)
            sent = await accept(
                team.store.accept, agent, "see these", home=tmp_path / "home", files=files
            )
            await team.until_told(ada, ev.FollowupOffered)
            team.gates.open("go")

            assert (await team.settled(sent.item.id)).delivery == "absorbed"
            [offered] = await team.of(ada, ev.FollowupOffered)
            assert offered.text.startswith("see these\n")
            places = [str(tmp_path / "home" / file.place) for file in sent.item.payload.files]
            assert all(place in offered.text for place in places)
            assert (await team.settled(first)).status == "completed"

    anyio.run(main)


def test_what_cannot_be_offered_with_its_files_fails_by_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada, {"text": "done"})
            gone = Payload(files=(Attachment("a.txt", "attachments/gone", 1),))
            second = await team.send(ada, "see this", payload=gone)
            await team.until_told(ada, ev.FollowupReturned)
            team.gates.open("go")
            item = await team.settled(second)

            assert (await team.settled(first)).status == "completed"
            assert item.error
            assert (item.status, item.error.code) == ("failed", "file_unusable")
            assert await team.of(ada, ev.FollowupOffered) == []

    anyio.run(main)


def test_a_message_that_shall_wait_is_never_told_to_a_busy_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada, {"text": "done"})
            second = await team.send(ada, says("two"), followup="queue")
            third = await team.send(ada, "steer me")
            await team.until_told(ada, ev.FollowupOffered)
            team.gates.open("go")
            await team.settled(first)

            assert (await team.settled(second)).reply == "two"
            assert (await team.settled(third)).delivery == "absorbed"
            offered = await team.of(ada, ev.FollowupOffered)
            assert [each.item for each in offered] == [third]
            assert len(await team.runs(ada)) == 2

    anyio.run(main)


def test_what_is_given_back_has_a_run_of_its_own(tmp_path: Path) -> None:
    """The turn is interrupted before it could take the message in."""

    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada)
            second = await team.send(ada, says("two"))
            await team.until_told(ada, ev.FollowupOffered)
            await team.store.cancel(first)
            item = await team.settled(second)

            assert (await team.settled(first)).status == "cancelled"
            assert (item.status, item.reply) == ("completed", "two")
            assert len(await team.of(ada, ev.FollowupReturned)) == 1
            first_run, second_run = await team.runs(ada)
            assert first_run.process == second_run.process
            assert item.run == second_run.id

    anyio.run(main)


def test_what_the_turn_left_over_is_the_next_one_under_the_same_fence(tmp_path: Path) -> None:
    """A turn whose last step waits takes nothing in any more: what was offered comes after it."""

    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada)
            second = await team.send(ada, says("two"))
            third = await team.send(ada, says("three"), followup="queue")
            await team.until_told(ada, ev.FollowupOffered)
            fence = (await team.store.lane(ada)).fence
            team.gates.open("go")
            own, queued = await team.settled(second), await team.settled(third)

            assert (await team.settled(first)).status == "completed"
            assert (own.status, own.delivery, own.reply) == ("completed", "own_turn", "two")
            assert queued.reply == "three"
            assert (await team.store.lane(ada)).fence == fence
            runs = await team.runs(ada)
            assert len({run.process for run in runs}) == 1
            assert [run.item for run in runs] == [first, second, third]
            assert times_told(tmp_path, "two") == 0

    anyio.run(main)


def test_so_much_is_open_at_once_and_not_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada, {"text": "done"}, {"text": "all"})
            sent = [await team.send(ada, f"message {n}") for n in range(20)]
            await team.until_told(ada, ev.FollowupOffered, 16)
            seat = team.daemon.seats.of(ada)
            assert seat
            assert seat.live
            assert len(seat.live.offers.open) == 16
            offered = [each.item for each in await team.of(ada, ev.FollowupOffered)]
            assert offered == sent[:16]
            team.gates.open("go")
            items = [await team.settled(item) for item in sent]

            assert (await team.settled(first)).status == "completed"
            assert {item.status for item in items} == {"completed"}
            assert {item.delivery for item in items[:16]} == {"absorbed"}

    anyio.run(main)


def test_long_messages_are_open_one_after_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            await _busy(team, ada, {"text": "done"})
            short, long = "s" * 40_000, "l" * 90_000
            sent = [await team.send(ada, text) for text in (short, long)]
            await team.until_told(ada, ev.FollowupOffered)
            # Something that is heard after both were looked at.
            await team.store.pause(ada)
            await team.store.resume(ada)
            seat = team.daemon.seats.of(ada)
            assert seat
            assert seat.live
            assert [*seat.live.offers.open] == sent[:1]
            team.gates.open("go")
            items = [await team.settled(item) for item in sent]

            assert {item.status for item in items} <= {"completed", "failed"}
            assert items[0].delivery == "absorbed"

    anyio.run(main)


def test_a_provider_that_cannot_be_steered_keeps_the_message_in_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada", "shell")
            gate = tmp_path / "gate-go"
            wait = f"sh -c 'echo one; until test -e {gate}; do sleep 0.02; done'"
            first = await team.send(ada, wait)
            await team.until_told(ada, ev.RunStarted)
            second = await team.send(ada, "echo two")
            await team.until_lane(ada, "held")

            assert (await team.store.item(second)).delivery == "none"
            team.gates.open("go")
            assert (await team.settled(first)).status == "completed"
            assert (await team.settled(second)).reply == "two"
            assert await team.of(ada, ev.FollowupOffered) == []
            assert await team.of(ada, ev.FollowupReturned) == []

    anyio.run(main)


def test_a_message_that_comes_before_the_turn_has_begun_is_offered_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            await team.store.pause(ada)
            first = await team.send(ada, script({"text": "one"}, team.gates.until("go"), "recall"))
            second = await team.send(ada, "two")
            await team.store.resume(ada)
            await team.until_told(ada, ev.FollowupOffered)
            team.gates.open("go")

            assert (await team.settled(first)).status == "completed"
            assert (await team.settled(second)).delivery == "absorbed"
            assert len(await team.runs(ada)) == 1

    anyio.run(main)


def test_what_was_offered_can_be_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await _busy(team, ada, {"text": "done"})
            second = await team.send(ada, "never mind")
            await team.until_told(ada, ev.FollowupOffered)
            await team.store.cancel(second)
            taken_back = await team.settled(second)
            team.gates.open("go")

            assert taken_back.status == "cancelled"
            assert (await team.settled(first)).status == "completed"
            assert len(await team.of(ada, ev.FollowupReturned)) == 1
            assert await team.of(ada, ev.FollowupAbsorbed) == []

    anyio.run(main)


# -- turns that nobody asked for


def _later(*steps: object, after: float = 0.05) -> dict[str, object]:
    return {"self_turn": {"after": after, "steps": [*steps]}}


def test_a_turn_that_nobody_asked_for_is_an_item_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            usage = {"usage": {"input_tokens": 7, "output_tokens": 5, "cost_usd": 0.25}}
            await team.done(ada, script(_later({"text": "by itself"}, usage), {"text": "a"}))
            await team.until_said(ada, "by itself")
            await team.until_idle(ada)

            by_itself = (await team.runs(ada))[1]
            items = await team.store.items(ada, include_settled=True)
            item = next(each for each in items if each.id == by_itself.item)
            assert (item.kind, item.status, item.reply) == ("self", "completed", "by itself")
            assert by_itself.usage.input_tokens == 7
            assert by_itself.cost.usd == 0.25
            assert by_itself.process == (await team.runs(ada))[0].process
            assert (await team.store.lane(ada)).status == "warm"
            assert team.daemon.worker.slots.free == 5
            assert (await team.done(ada, says("next"))).reply == "next"

    anyio.run(main)


def test_a_paused_agent_does_nothing_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            later = _later({"text": "by itself"}, "hang", after=1.5)
            await team.done(ada, script(later, {"text": "one"}))
            await team.store.pause(ada)
            await team.until_told(ada, ev.RunFailed)
            await team.until_idle(ada)

            run = (await team.runs(ada))[1]
            assert (run.status, run.stop_reason) == ("failed", "policy")
            [item] = [
                i for i in await team.store.items(ada, include_settled=True) if i.kind == "self"
            ]
            assert item.status == "failed"
            assert (await team.store.lane(ada)).status == "warm"

    anyio.run(main)


def test_a_paused_agent_does_nothing_by_itself_right_after_a_turn(tmp_path: Path) -> None:
    """The lane is held when it begins: nobody has to be woken for it."""

    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            later = _later({"text": "by itself"}, "hang", after=0)
            await _busy(team, ada, later, {"text": "one"})
            await team.store.pause(ada)
            team.gates.open("go")
            await team.until_told(ada, ev.RunFailed)
            await team.until_idle(ada)

            assert [run.stop_reason for run in await team.runs(ada)] == [None, "policy"]

    anyio.run(main)


async def _overtaken(team: Team, agent: AgentId, text: str, *steps: object) -> ItemId:
    """An item is started at the moment at which its process has begun these steps by itself."""
    await team.done(agent, script(_later(*steps, after=1.5), {"text": "one"}))
    await team.until_lane(agent, "warm")
    seat = team.daemon.seats.of(agent)
    assert seat
    assert seat.live
    driver = seat.live.driver
    assert driver
    async with seat._turning:
        await wait_for(lambda: driver.is_open, "a turn")
        item = await team.send(agent, text)
        await team.until_lane(agent, "held")
    return item


def test_an_item_waits_for_a_turn_that_began_by_itself(tmp_path: Path) -> None:
    """It is told when that turn is over; both belong to its run, which ends with its own."""

    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            spent = {"usage": {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.5}}
            own = {"usage": {"input_tokens": 1, "cost_usd": 0.25}}
            item = await _overtaken(
                team,
                ada,
                script(own, {"text": "two"}, team.gates.until("go"), {"text": "three"}),
                {"text": "by itself"},
                team.gates.until("early"),
                spent,
            )
            steer = await team.send(ada, "with the item")
            await team.until_said(ada, "by itself")
            assert await team.of(ada, ev.FollowupOffered) == []
            team.gates.open("early")
            await team.until_told(ada, ev.FollowupOffered)
            team.gates.open("go")
            settled = await team.settled(item)

            _, run = await team.runs(ada)
            assert (settled.status, settled.reply) == ("completed", "three")
            assert run.usage.input_tokens == 101
            assert run.cost.usd == 0.75
            assert times_told(tmp_path, "two") == 1
            assert "it had begun a turn of its own before this one could be told" in (
                await team.notes(ada)
            )
            assert (await team.settled(steer)).run == run.id

    anyio.run(main)


def test_an_item_outlives_the_turn_that_was_before_it(tmp_path: Path) -> None:
    """Its process dies before it could be told: its run goes on with another one."""

    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            item = await _overtaken(team, ada, says("two"), {"text": "by itself"}, {"crash": 3})
            settled = await team.settled(item)

            first, run = await team.runs(ada)
            assert (settled.status, settled.attempt, settled.reply) == ("completed", 1, "two")
            assert first.process != run.process
            assert times_told(tmp_path, "two") == 1

    anyio.run(main)


def test_an_item_that_waits_for_another_turn_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            item = await _overtaken(team, ada, says("two"), {"text": "by itself"}, "hang")
            await team.until_said(ada, "by itself")
            await team.store.cancel(item)

            assert (await team.settled(item)).status == "cancelled"
            assert times_told(tmp_path, "two") == 0
            assert (await team.done(ada, says("three"))).reply == "three"

    anyio.run(main)
