"""Promises about what is said to a run while it works: messages, and answers to its questions."""

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
    Played,
    check_order,
    let_go,
    play,
    program,
    read,
    steered,
    text_of,
    until,
    until_busy,
)
from steadyrun.testing.provider_conformance.harness import ProviderHarness, RunLike, promised

_FATES: dict[type[FollowupAbsorbed | FollowupOwnTurn | FollowupReturned], str] = {
    FollowupAbsorbed: "absorbed",
    FollowupOwnTurn: "own_turn",
    FollowupReturned: "returned",
}


def _check_fate(played: Played, item: str) -> str:
    """It was offered once, and there is evidence once of what became of it."""
    offered = [event for event in played.of(FollowupOffered) if event.item == item]
    ends = [
        fate for kind, fate in _FATES.items() for event in played.of(kind) if event.item == item
    ]
    assert len(offered) == 1
    assert len(ends) == 1
    [found] = [each for each in played.items if each.id == item]
    assert found.delivery == ends[0]
    return ends[0]


@promised("answers")
async def check_a_run_that_has_ended_takes_no_message(harness: ProviderHarness) -> None:
    played = await play(harness, "answers")

    async with program(harness) as library:
        answer = await (await library.run(played.run.id)).steer("too late")

    assert isinstance(answer, Refused)
    assert answer.reason
    assert (await read(harness, played.run)).stored == played.stored


def _can_be_steered(harness: ProviderHarness) -> str | None:
    return "it can be steered" if "steer" in harness.abilities else None


@promised("waits", unless=_can_be_steered)
async def check_who_cannot_be_steered_says_so(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "waits"))
        await until_busy(run)
        answer = await run.steer("more")
        let_go(harness)
        ended = await run.result()

    played = await read(harness, ended)
    check_order(played)
    assert isinstance(answer, Refused)
    assert answer.reason
    assert ended.status == "completed"
    assert [item.status for item in played.items] == ["completed", "cancelled"]


@promised("waits", abilities=("steer",))
async def check_it_is_told_what_became_of_a_message(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "waits"))
        await until_busy(run)
        offer = await steered(run, "more")
        await until(run, FollowupOffered)
        let_go(harness)
        ended = await run.result()

    played = await read(harness, ended)
    check_order(played)
    assert ended.status == "completed"
    assert _check_fate(played, offer.item) in {"absorbed", "own_turn"}
    assert [item.status for item in played.items] == ["completed", "completed"]


@promised("waits", abilities=("steer",))
async def check_any_program_may_steer(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "waits"))
        await until_busy(run)
        async with harness.library() as other:
            offer = await steered(await other.run(run.id), "more")
        await until(run, FollowupOffered)
        let_go(harness)
        ended = await run.result()

    assert _check_fate(await read(harness, ended), offer.item) in {"absorbed", "own_turn"}


@promised("hangs", abilities=("steer",))
async def check_a_message_that_was_not_taken_is_returned(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "hangs"))
        await until_busy(run)
        offer = await steered(run, "more")
        await until(run, FollowupOffered)
        await run.cancel()
        ended = await run.result()

    played = await read(harness, ended)
    check_order(played)
    _check_fate(played, offer.item)
    assert [item.status for item in played.items] == ["cancelled", "cancelled"]


@asynccontextmanager
async def _asking(harness: ProviderHarness) -> AsyncIterator[tuple[RunLike, ApprovalRequested]]:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "asks"))
        yield run, await until(run, ApprovalRequested)


def _check_answered(played: Played, asked: ApprovalRequested, verdict: str) -> None:
    check_order(played)
    [resolved] = played.of(ApprovalResolved)
    assert (resolved.approval, resolved.verdict) == (asked.approval, verdict)
    assert played.run.status == "completed"


@promised("asks", abilities=("approvals",))
async def check_what_is_allowed_is_done(harness: ProviderHarness) -> None:
    async with _asking(harness) as (run, asked):
        await run.decide(asked.approval, Verdict(True))
        ended = await run.result()

    played = await read(harness, ended)
    _check_answered(played, asked, "allow")
    assert asked.tool_name in {tool.tool_name for tool in played.of(ToolCompleted)}


@promised("asks", abilities=("approvals",))
async def check_what_is_denied_is_not_done(harness: ProviderHarness) -> None:
    async with _asking(harness) as (run, asked):
        await run.decide(asked.approval, Verdict(False, "not today"))
        ended = await run.result()

    played = await read(harness, ended)
    _check_answered(played, asked, "deny")
    assert asked.tool_name in {tool.tool_name for tool in played.of(ToolFailed)}
    assert played.of(ToolCompleted) == []


def _can_change(harness: ProviderHarness) -> str | None:
    return "it can be told another input" if "change_input" in harness.abilities else None


@promised("asks", abilities=("approvals",), unless=_can_change)
async def check_another_input_is_refused_by_name(harness: ProviderHarness) -> None:
    """Never is something else done than what was allowed."""
    async with _asking(harness) as (run, asked):
        try:
            await run.decide(asked.approval, Verdict(True, input={"other": 1}))
        except AbilityMissing as error:
            refused = error.ability
        else:
            raise AssertionError("it was taken")
        await run.decide(asked.approval, Verdict(False))
        ended = await run.result()

    played = await read(harness, ended)
    assert refused == "change_input"
    _check_answered(played, asked, "deny")
    assert played.of(ToolCompleted) == []


@promised("asks", abilities=("approvals",))
async def check_a_denial_may_end_the_turn(harness: ProviderHarness) -> None:
    async with _asking(harness) as (run, asked):
        await run.decide(asked.approval, Verdict(False, "stop here", ends_turn=True))
        ended = await run.result()

    played = await read(harness, ended)
    check_order(played)
    assert ended.status == "cancelled"
    assert [each.verdict for each in played.of(ApprovalResolved)] == ["deny"]
    assert played.of(ToolCompleted) == []


@promised("asks", abilities=("approvals",))
async def check_the_first_answer_counts(harness: ProviderHarness) -> None:
    async with _asking(harness) as (run, asked):
        await run.decide("of nobody", Verdict(False))
        await run.decide(asked.approval, Verdict(True))
        await run.decide(asked.approval, Verdict(False))
        ended = await run.result()

    _check_answered(await read(harness, ended), asked, "allow")


@promised("asks", abilities=("approvals",))
async def check_a_run_may_be_cancelled_while_it_asks(harness: ProviderHarness) -> None:
    async with _asking(harness) as (run, _):
        await run.cancel()
        ended = await run.result()

    played = await read(harness, ended)
    check_order(played)
    assert (ended.status, ended.stop_reason) == ("cancelled", "user_stop")
    assert played.of(ToolCompleted) == []
