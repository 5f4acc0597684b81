"""Promises about approvals.

A question is a row as soon as it is recorded, and the first answer decides. The holder gets the
answer until the process that asked has it. No question about a tool outlives its run.
"""

from datetime import timedelta
from typing import Any

from steadyrun.errors import ChangeRefused, NotFound
from steadyrun.model.approval import Approval, ApprovalAnswer, build_approval_id
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, Event
from steadyrun.model.ids import ApprovalId
from steadyrun.testing.store_conformance.fixtures import (
    Working,
    expect_error,
    expect_refused,
    read_everything,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_question_is_a_row(harness: StoreHarness) -> None:
    working = await set_working(harness)
    approval = await _ask(working, 0, tool_input={"command": "ls"})

    found = await working.store.approval(approval)

    assert found == Approval(
        build_approval_id(working.process, "1"),
        working.scene.agent,
        working.run,
        harness.clock.now(),
        "Bash",
        {"command": "ls"},
        "call_1",
    )
    assert (found.process, found.name) == (working.process, "1")
    assert await working.store.approvals() == [found]


async def check_a_question_that_is_told_again_is_one(harness: StoreHarness) -> None:
    working = await set_working(harness)
    asked = working.batch(0, 1, working.said(1, 0, ApprovalRequested("1", None, "Bash")))
    await working.store.append(working.claim, asked)
    await working.store.answer(build_approval_id(working.process, "1"), _yes(harness))
    before = await read_everything(working.store)

    await working.store.append(working.claim, asked)
    await _tell(working, 1, ApprovalRequested("1", None, "Write"))

    [approval] = await working.store.approvals()
    assert (approval.tool_name, approval.status) == ("Bash", "answered")
    assert (await read_everything(working.store))["approvals"] == before["approvals"]


async def check_a_question_outside_of_a_run_is_no_row(harness: StoreHarness) -> None:
    working = await set_working(harness)
    said = working.said(1, 0, ApprovalRequested("1", None, "Bash"))
    await working.store.append(working.claim, working.batch(0, 1, said, run=None))

    assert await working.store.approvals(include_settled=True) == []


async def check_a_question_holds_no_secret(harness: StoreHarness) -> None:
    working = await set_working(harness)
    approval = await _ask(working, 0, tool_input={"key": harness.secret.reveal()})
    await working.store.answer(approval, _no(harness, reason=harness.secret.reveal()))

    found = await working.store.approval(approval)

    assert harness.secret.reveal() not in str(found)
    assert found.answer
    assert found.answer.reason


async def check_an_answer_is_once(harness: StoreHarness) -> None:
    working = await set_working(harness)
    approval = await _ask(working, 0)

    first = await working.store.answer(approval, _yes(harness))
    harness.clock.advance(timedelta(seconds=1))
    again = await working.store.answer(approval, _yes(harness))

    assert first == again
    assert (first.status, first.answer and first.answer.by) == ("answered", "ada")


async def check_the_first_answer_decides(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, approval = working.store, await _ask(working, 0)
    await store.answer(approval, _yes(harness))

    await expect_refused(store, ChangeRefused, store.answer(approval, _no(harness)))
    await expect_refused(store, ChangeRefused, store.answer(approval, _yes(harness, by="bo")))
    await expect_error(NotFound, store.answer(ApprovalId("prc_x:1"), _yes(harness)))


async def check_the_holder_hears_of_an_answer_until_it_is_told(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, holder = working.store, working.scene.holder
    first, second = await _ask(working, 0), await _ask(working, 1)
    assert await store.pending_requests(holder) == []
    await store.answer(second, _no(harness))
    await store.answer(first, _yes(harness))

    [call] = await store.pending_requests(holder)
    assert [each.id for each in call.answers] == [first, second]
    await _tell(working, 2, ApprovalResolved("1", "allow", "ada"))
    [call] = await store.pending_requests(holder)
    assert [each.id for each in call.answers] == [second]
    await _tell(working, 3, ApprovalResolved("2", "deny", "ada"))

    assert await store.pending_requests(holder) == []
    assert [each.status for each in await store.approvals(include_settled=True)] == [
        "resolved", "resolved",
    ]  # fmt: skip


async def check_an_answer_goes_only_to_the_holder_of_the_run(harness: StoreHarness) -> None:
    working = await set_working(harness)
    other = await set_scene(harness, "bo", store=working.store)
    await working.store.answer(await _ask(working, 0), _yes(harness))

    assert await working.store.pending_requests(other.holder) == []


async def check_an_answer_waits_for_the_next_holder(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    approval = await _ask(working, 0)
    await store.leave(working.scene.holder)
    await store.answer(approval, _yes(harness))
    next_one = (await store.join("worker")).id
    await store.reap(next_one)

    [call] = await store.pending_requests(next_one)

    assert [each.id for each in call.answers] == [approval]


async def check_what_the_provider_takes_back_is_withdrawn(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, approval = working.store, await _ask(working, 0)
    await _tell(working, 1, ApprovalResolved("1", "cancelled", "provider"))

    assert (await store.approval(approval)).status == "withdrawn"
    assert await store.approvals() == []
    await expect_refused(store, ChangeRefused, store.answer(approval, _yes(harness)))


async def check_the_end_of_a_run_withdraws_its_questions(harness: StoreHarness) -> None:
    working = await set_working(harness)
    other = await set_working(harness, "bo", store=working.store)
    store = working.store
    first, second = await _ask(working, 0), await _ask(working, 1)
    of_other = await _ask(other, 0)
    await store.answer(first, _yes(harness))

    await working.scene.finish(working.claim)

    found = [(await store.approval(each)).status for each in (first, second, of_other)]
    assert found == ["withdrawn", "withdrawn", "open"]
    assert [each.id for each in await store.approvals()] == [of_other]


async def check_what_has_ended_stays_as_it_was(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, approval = working.store, await _ask(working, 0)
    await store.answer(approval, _yes(harness))
    await _tell(working, 1, ApprovalResolved("1", "allow", "ada"))
    await _tell(working, 2, ApprovalResolved("1", "cancelled", "provider"))
    await working.scene.finish(working.claim)

    assert (await store.approval(approval)).status == "resolved"


async def check_a_question_about_a_budget_pauses_and_outlives_its_run(
    harness: StoreHarness,
) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.scene.agent
    asked = await _ask_about_budget(working)
    assert (await store.lane(agent)).is_paused

    await working.scene.finish(working.claim)

    assert (await store.approval(asked)).status == "open"
    assert (await store.approval(asked)).about == "budget"
    assert [each.id for each in await store.approvals()] == [asked]


async def check_a_yes_about_a_budget_lets_the_lane_go_on(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.scene.agent
    asked = await _ask_about_budget(working)
    await working.scene.finish(working.claim)
    last = (await store.events(agent=agent, limit=1, newest=True))[0]

    first = await store.answer(asked, _yes(harness))
    again = await store.answer(asked, _yes(harness))

    assert (first, first.status) == (again, "resolved")
    assert not (await store.lane(agent)).is_paused
    [told] = await store.events(last.cursor, agent=agent)
    assert (told.event, told.run) == (ApprovalResolved("b", "allow", "ada"), None)
    assert told.seq is not None
    assert last.seq is not None
    assert told.seq == last.seq + 1
    assert await store.pending_requests(working.scene.holder) == []


async def check_who_was_paused_besides_stays_so(harness: StoreHarness) -> None:
    before, after = await set_working(harness), await set_working(harness, "bo")
    for working, is_before in ((before, True), (after, False)):
        store, agent = working.store, working.scene.agent
        if is_before:
            await store.pause(agent)
        asked = await _ask_about_budget(working)
        await working.scene.finish(working.claim)
        if not is_before:
            await store.pause(agent)

        await store.answer(asked, _yes(harness))

        assert (await store.lane(agent)).is_paused
        await store.resume(agent)
        assert not (await store.lane(agent)).is_paused


async def check_a_no_about_a_budget_leaves_it_paused(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    asked = await _ask_about_budget(working)
    await working.scene.finish(working.claim)

    await store.answer(asked, _no(harness))

    assert (await store.lane(working.scene.agent)).is_paused
    assert (await store.approval(asked)).status == "resolved"
    await expect_refused(store, ChangeRefused, store.answer(asked, _yes(harness)))


async def check_no_question_stays_open_for_a_removed_agent(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, asked = working.store, await _ask_about_budget(working)
    await working.scene.finish(working.claim)

    await store.remove_agent(working.scene.agent)

    assert (await store.approval(asked)).status == "withdrawn"
    await expect_refused(store, ChangeRefused, store.answer(asked, _yes(harness)))


async def check_questions_are_listed_newest_first(harness: StoreHarness) -> None:
    working = await set_working(harness)
    other = await set_working(harness, "bo", store=working.store)
    store = working.store
    ids = [await _ask(working, 0), await _ask(other, 0), await _ask(working, 1)]
    await _tell(working, 2, ApprovalResolved("1", "allow", "ada"))

    async def listed(*words: Any, **fields: Any) -> list[str]:
        return [each.id for each in await store.approvals(*words, **fields)]

    assert await listed() == [ids[2], ids[1]]
    assert await listed(include_settled=True) == [*reversed(ids)]
    assert await listed(working.scene.agent, include_settled=True) == [ids[2], ids[0]]
    assert await listed(include_settled=True, limit=1) == [ids[2]]


async def check_a_question_is_found_by_a_part_of_its_id(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    first, second = await _ask(working, 0), await _ask(working, 1)

    async def like(part: str, **fields: Any) -> list[str]:
        return [
            each.id for each in await store.approvals(matching=part, include_settled=True, **fields)
        ]

    assert await like(":1") == [first]
    assert await like(first) == [first]
    assert await like(working.process) == [second, first]
    assert await like(working.process, limit=1) == [second]
    assert await like("%") == []


async def _ask(working: Working, n: int, *, tool_input: object = None) -> ApprovalId:
    """The question of the run whose name is `n + 1`."""
    name = str(n + 1)
    await _tell(working, n, ApprovalRequested(name, f"call_{name}", "Bash", tool_input))
    return build_approval_id(working.process, name)


async def _ask_about_budget(working: Working) -> ApprovalId:
    question = ApprovalRequested("b", None, "budget", {"why": "it is spent"}, about="budget")
    await _tell(working, 0, question)
    return build_approval_id(working.process, "b")


async def _tell(working: Working, offset: int, event: Event) -> None:
    working.scene.harness.clock.advance(timedelta(milliseconds=1))
    said = working.said(offset + 1, 0, event)
    await working.store.append(working.claim, working.batch(offset, offset + 1, said))


def _yes(harness: StoreHarness, *, by: str = "ada") -> ApprovalAnswer:
    return ApprovalAnswer(True, by, harness.clock.now())


def _no(harness: StoreHarness, *, reason: str = "not now") -> ApprovalAnswer:
    return ApprovalAnswer(False, "bo", harness.clock.now(), reason)
