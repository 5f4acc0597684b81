"""Checks messages to a running run, and answers to its approvals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from steadyrun.dialect import Refused, Verdict
from steadyrun.errors import AbilityMissing
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    FollowupAbsorbed,
    FollowupOffered,
    FollowupOwnTurn,
    FollowupReturned,
    ToolCompleted,
    ToolFailed,
)
from steadyrun.testing.provider_conformance.fixtures import (
    PlayedRun,
    check_record,
    get_prompt,
    open_program,
    play,
    release_runs,
    start_run,
    steer,
    wait_for_event,
)
from steadyrun.testing.provider_conformance.harness import ProviderHarness, RunLike, make_promise

_FATES: dict[type[FollowupAbsorbed | FollowupOwnTurn | FollowupReturned], str] = {
    FollowupAbsorbed: "absorbed",
    FollowupOwnTurn: "own_turn",
    FollowupReturned: "returned",
}


def _check_fate(played: PlayedRun, item: str) -> str:
    """Check that a message was offered once and has exactly one fate, and return it."""
    offered = [event for event in played.select(FollowupOffered) if event.item == item]
    ends = [
        fate for kind, fate in _FATES.items() for event in played.select(kind) if event.item == item
    ]
    assert len(offered) == 1
    assert len(ends) == 1
    [record] = [each for each in played.items if each.id == item]
    assert record.delivery == ends[0]
    return ends[0]


@make_promise("answers")
async def check_an_ended_run_refuses_a_message(harness: ProviderHarness) -> None:
    played = await play(harness, "answers")

    async with open_program(harness) as library:
        answer = await (await library.run(played.run.id)).steer("too late")

    assert isinstance(answer, Refused)
    assert answer.reason
    assert (await check_record(harness, played.run)).stored == played.stored


def _find_steer_ability(harness: ProviderHarness) -> str | None:
    return "it can be steered" if "steer" in harness.abilities else None


@make_promise("waits", unless=_find_steer_ability)
async def check_steering_is_refused_where_unsupported(harness: ProviderHarness) -> None:
    async with start_run(harness, "waits") as run:
        answer = await run.steer("more")
        release_runs(harness)
        ended = await run.result()

    played = await check_record(harness, ended)
    assert isinstance(answer, Refused)
    assert answer.reason
    assert ended.status == "completed"
    assert [item.status for item in played.items] == ["completed", "cancelled"]


@make_promise("waits", abilities=("steer",))
async def check_the_fate_of_a_message_is_recorded(harness: ProviderHarness) -> None:
    async with start_run(harness, "waits") as run:
        offer = await steer(run, "more")
        await wait_for_event(run, FollowupOffered)
        release_runs(harness)
        ended = await run.result()

    played = await check_record(harness, ended)
    assert ended.status == "completed"
    assert _check_fate(played, offer.item) in {"absorbed", "own_turn"}
    assert [item.status for item in played.items] == ["completed", "completed"]


@make_promise("waits", abilities=("steer",))
async def check_any_program_can_steer(harness: ProviderHarness) -> None:
    async with start_run(harness, "waits") as run:
        async with harness.open_library() as other:
            offer = await steer(await other.run(run.id), "more")
        await wait_for_event(run, FollowupOffered)
        release_runs(harness)
        ended = await run.result()

    assert _check_fate(await check_record(harness, ended), offer.item) in {"absorbed", "own_turn"}


@make_promise("hangs", abilities=("steer",))
async def check_a_message_of_a_cancelled_run_has_one_fate(harness: ProviderHarness) -> None:
    async with start_run(harness, "hangs") as run:
        offer = await steer(run, "more")
        await wait_for_event(run, FollowupOffered)
        await run.cancel()
        ended = await run.result()

    played = await check_record(harness, ended)
    _check_fate(played, offer.item)
    assert [item.status for item in played.items] == ["cancelled", "cancelled"]


@asynccontextmanager
async def _wait_for_approval(
    harness: ProviderHarness,
) -> AsyncIterator[tuple[RunLike, ApprovalRequested]]:
    async with open_program(harness) as library:
        run = await library.start(get_prompt(harness, "asks"))
        yield run, await wait_for_event(run, ApprovalRequested)


def _check_answered(played: PlayedRun, asked: ApprovalRequested, verdict: str) -> None:
    [resolved] = played.select(ApprovalResolved)
    assert (resolved.approval, resolved.verdict) == (asked.approval, verdict)
    assert played.run.status == "completed"


@make_promise("asks", abilities=("approvals",))
async def check_an_allowed_tool_runs(harness: ProviderHarness) -> None:
    async with _wait_for_approval(harness) as (run, asked):
        await run.decide(asked.approval, Verdict(True))
        ended = await run.result()

    played = await check_record(harness, ended)
    _check_answered(played, asked, "allow")
    assert asked.tool_name in {tool.tool_name for tool in played.select(ToolCompleted)}


@make_promise("asks", abilities=("approvals",))
async def check_a_denied_tool_does_not_run(harness: ProviderHarness) -> None:
    async with _wait_for_approval(harness) as (run, asked):
        await run.decide(asked.approval, Verdict(False, "not today"))
        ended = await run.result()

    played = await check_record(harness, ended)
    _check_answered(played, asked, "deny")
    assert asked.tool_name in {tool.tool_name for tool in played.select(ToolFailed)}
    assert played.select(ToolCompleted) == []


def _find_change_ability(harness: ProviderHarness) -> str | None:
    return "it can change the input" if "change_input" in harness.abilities else None


@make_promise("asks", abilities=("approvals",), unless=_find_change_ability)
async def check_a_changed_input_is_refused_by_name(harness: ProviderHarness) -> None:
    """A tool must not run with another input than the approved one."""
    async with _wait_for_approval(harness) as (run, asked):
        try:
            await run.decide(asked.approval, Verdict(True, input={"other": 1}))
        except AbilityMissing as error:
            refused = error.ability
        else:
            raise AssertionError("it was taken")
        await run.decide(asked.approval, Verdict(False))
        ended = await run.result()

    played = await check_record(harness, ended)
    assert refused == "change_input"
    _check_answered(played, asked, "deny")
    assert played.select(ToolCompleted) == []


@make_promise("asks", abilities=("approvals",))
async def check_a_denial_may_end_the_turn(harness: ProviderHarness) -> None:
    async with _wait_for_approval(harness) as (run, asked):
        await run.decide(asked.approval, Verdict(False, "stop here", ends_turn=True))
        ended = await run.result()

    played = await check_record(harness, ended)
    assert ended.status == "cancelled"
    assert [each.verdict for each in played.select(ApprovalResolved)] == ["deny"]
    assert played.select(ToolCompleted) == []


@make_promise("asks", abilities=("approvals",))
async def check_the_first_answer_counts(harness: ProviderHarness) -> None:
    async with _wait_for_approval(harness) as (run, asked):
        await run.decide("unknown", Verdict(False))
        await run.decide(asked.approval, Verdict(True))
        await run.decide(asked.approval, Verdict(False))
        ended = await run.result()

    _check_answered(await check_record(harness, ended), asked, "allow")


@make_promise("asks", abilities=("approvals",))
async def check_a_run_can_be_cancelled_during_an_approval(harness: ProviderHarness) -> None:
    async with _wait_for_approval(harness) as (run, _):
        await run.cancel()
        ended = await run.result()

    played = await check_record(harness, ended)
    assert (ended.status, ended.stop_reason) == ("cancelled", "user_stop")
    assert played.select(ToolCompleted) == []
