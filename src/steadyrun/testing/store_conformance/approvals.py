"""Promises about approvals.

A question is a row as soon as it is recorded, and the first answer decides. The holder gets the
answer until the process that asked has it. No question about a tool outlives its run.
"""

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, NotFound
from steadyrun.model.approval import Approval, ApprovalAnswer, build_approval_id
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, ErrorFact, Event
from steadyrun.model.ids import ApprovalId
from steadyrun.model.item import Message
from steadyrun.store import AnswerEffects
from steadyrun.testing.store_conformance.fixtures import (
    Working,
    expect_error,
    expect_refused,
    read_everything,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_question_is_stored(harness: StoreHarness) -> None:
    working = await set_working(harness)
    approval = await _ask(working, 0, tool_input={"command": "ls"})

    found = await working.store.approval(approval)

    assert found == Approval(
        build_approval_id(working.process, "1"),
        working.agent,
        working.run,
        harness.clock.now(),
        "Bash",
        {"command": "ls"},
        "call_1",
    )
    assert (found.process, found.name) == (working.process, "1")
    assert await working.store.approvals() == [found]


async def check_a_repeated_question_is_stored_once(harness: StoreHarness) -> None:
    working = await set_working(harness)
    asked = working.make_batch(0, 1, working.make_event(1, 0, ApprovalRequested("1", None, "Bash")))
    await working.store.append(working.claim, asked)
    await working.store.answer(build_approval_id(working.process, "1"), _make_yes(harness))
    before = await read_everything(working.store)

    await working.store.append(working.claim, asked)
    await _append_event(working, 1, ApprovalRequested("1", None, "Write"))

    [approval] = await working.store.approvals()
    assert (approval.tool_name, approval.status) == ("Bash", "answered")
    assert (await read_everything(working.store))["approvals"] == before["approvals"]


async def check_a_question_outside_of_a_run_is_not_stored(harness: StoreHarness) -> None:
    working = await set_working(harness)
    events = working.make_event(1, 0, ApprovalRequested("1", None, "Bash"))
    await working.store.append(working.claim, working.make_batch(0, 1, events, run=None))

    assert await working.store.approvals(include_settled=True) == []


async def check_a_question_holds_no_secret(harness: StoreHarness) -> None:
    working = await set_working(harness)
    approval = await _ask(working, 0, tool_input={"key": harness.secret.reveal()})
    await working.store.answer(approval, _make_no(harness, reason=harness.secret.reveal()))

    found = await working.store.approval(approval)

    assert harness.secret.reveal() not in str(found)
    assert found.answer
    assert found.answer.reason


async def check_a_repeated_answer_changes_nothing(harness: StoreHarness) -> None:
    working = await set_working(harness)
    approval = await _ask(working, 0)

    first = await working.store.answer(approval, _make_yes(harness))
    harness.clock.advance(timedelta(seconds=1))
    again = await working.store.answer(approval, _make_yes(harness))

    assert first == again
    assert (first.status, first.answer and first.answer.by) == ("answered", "ada")


async def check_the_first_answer_decides(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, approval = working.store, await _ask(working, 0)
    await store.answer(approval, _make_yes(harness))

    await expect_refused(store, ChangeRefused, store.answer(approval, _make_no(harness)))
    await expect_refused(store, ChangeRefused, store.answer(approval, _make_yes(harness, by="bo")))
    await expect_error(NotFound, store.answer(ApprovalId("prc_x:1"), _make_yes(harness)))


async def check_an_answer_is_pending_until_it_is_resolved(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, holder = working.store, working.holder
    first, second = await _ask(working, 0), await _ask(working, 1)
    assert await store.pending_requests(holder) == []
    await store.answer(second, _make_no(harness))
    await store.answer(first, _make_yes(harness))

    [requests] = await store.pending_requests(holder)
    assert [each.id for each in requests.answers] == [first, second]
    await _append_event(working, 2, ApprovalResolved("1", "allow", "ada"))
    [requests] = await store.pending_requests(holder)
    assert [each.id for each in requests.answers] == [second]
    await _append_event(working, 3, ApprovalResolved("2", "deny", "ada"))

    assert await store.pending_requests(holder) == []
    assert [each.status for each in await store.approvals(include_settled=True)] == [
        "resolved", "resolved",
    ]  # fmt: skip


async def check_an_answer_goes_only_to_the_holder_of_the_run(harness: StoreHarness) -> None:
    working = await set_working(harness)
    other = await set_scene(harness, "bo", store=working.store)
    await working.store.answer(await _ask(working, 0), _make_yes(harness))

    assert await working.store.pending_requests(other.holder) == []


async def check_an_answer_waits_for_the_next_holder(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    approval = await _ask(working, 0)
    await store.leave(working.holder)
    await store.answer(approval, _make_yes(harness))
    next_one = (await store.join("worker")).id
    await store.reap(next_one)

    [requests] = await store.pending_requests(next_one)

    assert [each.id for each in requests.answers] == [approval]


async def check_a_question_cancelled_by_the_provider_is_withdrawn(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, approval = working.store, await _ask(working, 0)
    await _append_event(working, 1, ApprovalResolved("1", "cancelled", "provider"))

    assert (await store.approval(approval)).status == "withdrawn"
    assert await store.approvals() == []
    await expect_refused(store, ChangeRefused, store.answer(approval, _make_yes(harness)))


async def check_the_end_of_a_run_withdraws_its_questions(harness: StoreHarness) -> None:
    working = await set_working(harness)
    other = await set_working(harness, "bo", store=working.store)
    store = working.store
    first, second = await _ask(working, 0), await _ask(working, 1)
    of_other = await _ask(other, 0)
    await store.answer(first, _make_yes(harness))

    await working.finish(working.claim)

    found = [(await store.approval(each)).status for each in (first, second, of_other)]
    assert found == ["withdrawn", "withdrawn", "open"]
    assert [each.id for each in await store.approvals()] == [of_other]


async def check_a_resolved_question_stays_resolved(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, approval = working.store, await _ask(working, 0)
    await store.answer(approval, _make_yes(harness))
    await _append_event(working, 1, ApprovalResolved("1", "allow", "ada"))
    await _append_event(working, 2, ApprovalResolved("1", "cancelled", "provider"))
    await working.finish(working.claim)

    assert (await store.approval(approval)).status == "resolved"


async def check_a_question_about_a_budget_pauses_and_outlives_its_run(
    harness: StoreHarness,
) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.agent
    asked = await _ask_about_budget(working)
    assert (await store.lane(agent)).is_paused

    await working.finish(working.claim)

    assert (await store.approval(asked)).status == "open"
    assert (await store.approval(asked)).about == "budget"
    assert [each.id for each in await store.approvals()] == [asked]


async def check_an_allowed_budget_resumes_the_lane(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.agent
    asked = await _ask_about_budget(working)
    await working.finish(working.claim)
    last = (await store.events(agent=agent, limit=1, newest=True))[0]

    first = await store.answer(asked, _make_yes(harness))
    again = await store.answer(asked, _make_yes(harness))

    assert (first, first.status) == (again, "resolved")
    assert not (await store.lane(agent)).is_paused
    [resolved] = await store.events(last.cursor, agent=agent)
    assert (resolved.event, resolved.run) == (ApprovalResolved("b", "allow", "ada"), None)
    assert resolved.seq is not None
    assert last.seq is not None
    assert resolved.seq == last.seq + 1
    assert await store.pending_requests(working.holder) == []


async def check_a_lane_paused_by_hand_stays_paused_after_an_allowed_budget(
    harness: StoreHarness,
) -> None:
    before, after = await set_working(harness), await set_working(harness, "bo")
    for working, is_before in ((before, True), (after, False)):
        store, agent = working.store, working.agent
        if is_before:
            await store.set_paused(agent, is_paused=True)
        asked = await _ask_about_budget(working)
        await working.finish(working.claim)
        if not is_before:
            await store.set_paused(agent, is_paused=True)

        await store.answer(asked, _make_yes(harness))

        assert (await store.lane(agent)).is_paused
        await store.set_paused(agent, is_paused=False)
        assert not (await store.lane(agent)).is_paused


async def check_a_denied_budget_leaves_the_lane_paused(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    asked = await _ask_about_budget(working)
    await working.finish(working.claim)

    await store.answer(asked, _make_no(harness))

    assert (await store.lane(working.agent)).is_paused
    assert (await store.approval(asked)).status == "resolved"
    await expect_refused(store, ChangeRefused, store.answer(asked, _make_yes(harness)))


async def check_only_the_first_answer_has_effects(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, await working.store.agent(working.agent)
    asked = await _ask_about_budget(working)
    await working.finish(working.claim)
    waiting = (await store.accept(Message(working.agent, "next"))).item
    denied = AnswerEffects({"denied": b"1"}, cancels=waiting.id)
    changed = replace(agent, role="other")
    allowed = AnswerEffects({"allowed": b"1"}, (changed, agent))

    for _ in range(2):
        await store.answer(asked, _make_no(harness), denied)
    await expect_refused(store, ChangeRefused, store.answer(asked, _make_yes(harness), allowed))

    assert (await store.get("denied"), await store.get("allowed")) == (b"1", None)
    assert await store.agent(working.agent) == agent
    cancelled = await store.item(waiting.id)
    assert (cancelled.status, cancelled.error) == ("cancelled", ErrorFact("cancelled", "not now"))
    assert (await store.lane(working.agent)).queued == 0


async def check_an_answer_whose_effect_is_refused_is_not_stored(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, await working.store.agent(working.agent)
    asked = await _ask_about_budget(working)
    await working.finish(working.claim)
    changed = replace(agent, role="other")
    effects = AnswerEffects({"allowed": b"1"}, (changed, replace(agent, role="stale")))

    await expect_refused(store, ChangeRefused, store.answer(asked, _make_yes(harness), effects))

    assert await store.get("allowed") is None
    assert (await store.approval(asked)).status == "open"
    await store.answer(
        asked, _make_yes(harness), AnswerEffects({"allowed": b"1"}, (changed, agent))
    )
    assert await store.get("allowed") == b"1"
    assert await store.agent(working.agent) == changed


async def check_questions_of_a_removed_agent_are_withdrawn(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, asked = working.store, await _ask_about_budget(working)
    await working.finish(working.claim)

    await store.remove_agent(working.agent)

    assert (await store.approval(asked)).status == "withdrawn"
    await expect_refused(store, ChangeRefused, store.answer(asked, _make_yes(harness)))


async def check_questions_are_listed_newest_first(harness: StoreHarness) -> None:
    working = await set_working(harness)
    other = await set_working(harness, "bo", store=working.store)
    store = working.store
    ids = [await _ask(working, 0), await _ask(other, 0), await _ask(working, 1)]
    await _append_event(working, 2, ApprovalResolved("1", "allow", "ada"))

    async def list_ids(*words: Any, **fields: Any) -> list[str]:
        return [each.id for each in await store.approvals(*words, **fields)]

    assert await list_ids() == [ids[2], ids[1]]
    assert await list_ids(include_settled=True) == [*reversed(ids)]
    assert await list_ids(working.agent, include_settled=True) == [ids[2], ids[0]]
    assert await list_ids(include_settled=True, limit=1) == [ids[2]]


async def check_a_question_is_found_by_a_part_of_its_id(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    first, second = await _ask(working, 0), await _ask(working, 1)

    async def find_ids(part: str, **fields: Any) -> list[str]:
        return [
            each.id for each in await store.approvals(matching=part, include_settled=True, **fields)
        ]

    assert await find_ids(":1") == [first]
    assert await find_ids(first) == [first]
    assert await find_ids(working.process) == [second, first]
    assert await find_ids(working.process, limit=1) == [second]
    assert await find_ids("%") == []


async def _ask(working: Working, n: int, *, tool_input: object = None) -> ApprovalId:
    """The question of the run whose name is `n + 1`."""
    name = str(n + 1)
    await _append_event(working, n, ApprovalRequested(name, f"call_{name}", "Bash", tool_input))
    return build_approval_id(working.process, name)


async def _ask_about_budget(working: Working) -> ApprovalId:
    question = ApprovalRequested("b", None, "budget", {"why": "it is spent"}, about="budget")
    await _append_event(working, 0, question)
    return build_approval_id(working.process, "b")


async def _append_event(working: Working, offset: int, event: Event) -> None:
    working.harness.clock.advance(timedelta(milliseconds=1))
    events = working.make_event(offset + 1, 0, event)
    await working.store.append(working.claim, working.make_batch(offset, offset + 1, events))


def _make_yes(harness: StoreHarness, *, by: str = "ada") -> ApprovalAnswer:
    return ApprovalAnswer(True, by, harness.clock.now())


def _make_no(harness: StoreHarness, *, reason: str = "not now") -> ApprovalAnswer:
    return ApprovalAnswer(False, "bo", harness.clock.now(), reason)
