"""A message that Codex absorbs at the end of a turn is answered in a turn of its own.

The real Codex does that in one of ten tries; the fake one does it when a step says so.
"""

from collections.abc import Sequence
from pathlib import Path

import anyio

from steadyrun.dialect import Refused
from steadyrun.model.event import FollowupAbsorbed, FollowupOwnTurn, FollowupReturned
from steadyrun.model.ids import AgentId
from steadyrun.model.run import Run
from steadyrun.store import Store
from steadyrun.testing.provider_conformance.fixtures import ALL, TIMEOUT_SECONDS, wait_until_busy
from tests.conformance.test_providers import harness_of, play_of

FATES = (FollowupAbsorbed, FollowupOwnTurn, FollowupReturned)


def test_message_absorbed_too_late_gets_an_own_turn(tmp_path: Path) -> None:
    anyio.run(_check_late_message, tmp_path)


async def _check_late_message(place: Path) -> None:
    harness = harness_of("codex", place)
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with harness.open_library() as library:
            run = await library.start(play_of({"late": "one"}))
            await wait_until_busy(run)
            offer = await run.steer("more")
            assert not isinstance(offer, Refused)
            first = await run.result()
            async with harness.open_store() as store:
                runs = await _two_that_are_over(store, first.agent)
                events = await store.events(agent=first.agent, limit=ALL)
                items = await store.items(first.agent, include_settled=True)

    assert (first.status, first.text) == ("completed", "one")
    [second] = [each for each in runs if each.id != first.id]
    assert (second.status, second.text, second.item) == ("completed", "more", offer.item)
    assert [type(seen.event) for seen in events if isinstance(seen.event, FATES)] == [
        FollowupOwnTurn
    ]
    assert [item.status for item in items] == ["completed", "completed"]


async def _two_that_are_over(store: Store, agent: AgentId) -> Sequence[Run]:
    with store.hints.watch(agent) as watch:
        while len(runs := await store.runs()) < 2 or not all(run.is_terminal for run in runs):
            await watch.wait()
    return runs
