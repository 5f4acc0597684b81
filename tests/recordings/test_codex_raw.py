"""Tests the follow-ups and counters of Codex against its raw frames."""

import pytest

from steadyrun.model import event as ev
from tests.recordings.played import Fate, events_of
from tests.recordings.raw import Tokens, frames
from tests.recordings.raw_codex import read, tokens_of
from tests.recordings.recorded import Recording, recordings

by_name = pytest.mark.parametrize("recording", recordings("codex"), ids=str)


@by_name
def test_follow_up_is_absorbed_by_the_turn_in_which_it_was_sent(recording: Recording) -> None:
    followups = read(recording.path, one_shot=recording.one_shot).followups
    fates = [event for event in events_of(recording.play()) if isinstance(event, Fate)]
    by_text = {fate.text: type(fate) for fate in fates}

    for line in followups:
        taken = ev.FollowupAbsorbed if line.echoed_in == line.while_open else ev.FollowupOwnTurn
        assert by_text[line.text] is (ev.FollowupReturned if line.echoed_in is None else taken)


@by_name
def test_usage_of_the_runs_is_the_growth_of_their_threads(recording: Recording) -> None:
    """By the first and the last total of each thread, whatever stands between them."""
    said = [message for way, message in frames(recording.path) if way == "out"]
    begun = [each["params"] for each in said if each.get("method") == "turn/started"]
    turns = {(each["threadId"], each["turn"]["id"]) for each in begun}
    before, after = dict[str, Tokens](), dict[str, Tokens]()
    for each in said:
        if each.get("method") == "thread/tokenUsage/updated":
            thread, turn = each["params"]["threadId"], each["params"]["turnId"]
            totals = after if (thread, turn) in turns else before
            totals[thread] = tokens_of(each["params"]["tokenUsage"]["total"])
    grown = [total.minus(before.get(thread, Tokens())) for thread, total in after.items()]

    if not recording.one_shot:
        assert _used(recording) == [sum(each) for each in zip(Tokens(), *grown, strict=True)]


def _used(recording: Recording) -> list[int]:
    ends = [each for each in events_of(recording.play()) if isinstance(each, ev.RunEnded)]
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return [sum(getattr(end.usage, name) or 0 for end in ends) for name in names]
