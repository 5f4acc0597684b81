"""Tests that `TurnTracker` keeps turns in order for any output of a Dialect."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from steadyrun.dialect import (
    STILL_RUNNING,
    Ability,
    DialectOutput,
    ProcessExit,
    ProducedImage,
    Send,
    TurnBegan,
    TurnEnded,
)
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker
from steadyrun.lib.framing import Frame
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    Emitted,
    Event,
    FollowupAbsorbed,
    FollowupOffered,
    FollowupOwnTurn,
    FollowupReturned,
    ImageProduced,
    Note,
    TextFinal,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Unknown,
    UsageUpdated,
)
from steadyrun.model.usage import MOST_TOKENS, USAGE_REFUSED, Cost, Usage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CRASH = ProcessExit(code=3, stderr="sorry")
MANY: frozenset[Ability] = frozenset({"multi_turn"})
ONE: frozenset[Ability] = frozenset()


class ParrotState(Struct, frozen=True):
    """How many frames it has heard."""

    heard: int = 0


class Parrot:
    """A Dialect whose frames contain its output."""

    name: ClassVar[str] = "parrot"

    def __init__(
        self, script: list[list[DialectOutput]], abilities: frozenset[Ability] = MANY
    ) -> None:
        self.abilities = abilities
        self.state = ParrotState()
        self._script = script

    def receive(self, frame: Frame) -> list[DialectOutput]:
        if frame.raw == b"?":
            raise msgspec.DecodeError("what?")
        said = self._script[self.state.heard]
        self.state = ParrotState(self.state.heard + 1)
        return said

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        return self.receive(frame)

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        return []


def _turns(script: list[list[DialectOutput]], abilities: frozenset[Ability] = MANY) -> TurnTracker:
    parrot: Any = Parrot(script, abilities)
    return TurnTracker(parrot)


def _tell(turns: TurnTracker, frames: range) -> list[TrackedOutput]:
    return [each for n in frames for each in turns.on_received(Frame(b"line", n * 10), NOW)]


def _play(
    *script: list[DialectOutput], abilities: frozenset[Ability] = MANY
) -> list[TrackedOutput]:
    """The output for a process that prints this and then crashes."""
    turns = _turns(list(script), abilities)
    return [*_tell(turns, range(1, len(script) + 1)), *turns.on_exited(CRASH, NOW)]


def _plain(told: list[TrackedOutput]) -> list[Event | TurnBegan | TurnEnded | Send]:
    return [each.event if isinstance(each, Emitted) else each for each in told]  # type: ignore[misc]


def _tool(call: str = "1") -> ToolStarted:
    return ToolStarted(call, "Bash", {"command": "true"})


def _still_running(call: str = "1") -> ToolFailed:
    return ToolFailed(call, "Bash", {"command": "true"}, error=STILL_RUNNING)


# -- turns


def test_events_of_a_turn_are_passed_on_unchanged() -> None:
    said: list[DialectOutput] = [TurnBegan("run_1"), TextFinal("hi"), TurnEnded("completed", "hi")]

    assert _plain(_play(said)) == said


def test_turn_that_is_open_at_the_exit_fails() -> None:
    *_, ended = _play([TurnBegan("run_1")])

    assert isinstance(ended, TurnEnded)
    assert (ended.status, ended.exit_code) == ("failed", 3)
    assert ended.error
    assert (ended.error.code, ended.error.retryable) == ("exited", True)
    assert ended.diagnostic
    assert ended.diagnostic.stderr_excerpt == "sorry"


@pytest.mark.parametrize(
    ("reason", "status", "stop_reason"),
    [
        ("user_stop", "cancelled", "user_stop"),
        ("wall_timeout", "timed_out", "wall_timeout"),
        ("disk_full", "failed", "disk_full"),
        ("keeper_lost", "failed", "keeper_lost"),
        ("unclaimed", "timed_out", "idle_timeout"),
        ("who knows", "failed", None),
    ],
)
def test_stop_reason_of_the_process_sets_the_status_of_the_turn(
    reason: str, status: str, stop_reason: str | None
) -> None:
    turns = _turns([[TurnBegan("run_1")]])
    _tell(turns, range(1, 2))

    [ended] = turns.on_exited(ProcessExit(reason=reason), NOW)

    assert isinstance(ended, TurnEnded)
    assert (ended.status, ended.stop_reason) == (status, stop_reason)


def test_turn_that_begins_within_another_ends_it() -> None:
    began, lost, second, _ = _plain(_play([TurnBegan("run_1")], [TurnBegan("run_2")]))

    assert (began, second) == (TurnBegan("run_1"), TurnBegan("run_2"))
    assert isinstance(lost, TurnEnded)
    assert lost.error
    assert lost.error.code == "no_end"


def test_end_without_a_begin_is_a_turn() -> None:
    assert _plain(_play([TurnEnded("completed")])) == [TurnBegan(None), TurnEnded("completed")]


def test_exit_of_an_idle_process_ends_no_turn() -> None:
    assert _play([TurnBegan("run_1"), TurnEnded("completed")], [Note("bye")])[2:] == [
        Emitted(20, 0, NOW, Note("bye"))
    ]


def test_awaited_turn_that_never_began_fails() -> None:
    began, ended = _turns([]).on_exited(CRASH, NOW, is_awaited=True)

    assert began == TurnBegan(None)
    assert isinstance(ended, TurnEnded)
    assert ended.status == "failed"


def test_one_shot_process_has_an_open_turn_from_the_start() -> None:
    [ended] = _play(abilities=ONE)

    assert isinstance(ended, TurnEnded)
    assert ended.status == "failed"


# -- tools


def test_open_tool_is_closed_at_the_end_of_its_turn() -> None:
    told = _plain(_play([TurnBegan("run_1"), _tool(), _tool("2")], [TurnEnded("completed")]))

    assert told[3:] == [_still_running(), _still_running("2"), TurnEnded("completed")]


def test_tool_that_ends_after_its_turn_is_noted() -> None:
    done = ToolCompleted("1", "Bash")
    *_, note = _plain(_play([TurnBegan("run_1"), _tool(), TurnEnded("completed")], [done]))

    assert isinstance(note, Note)
    assert note.text == "Bash 1 ended after its turn: tool.completed"


def test_id_of_an_unfinished_tool_may_be_reused() -> None:
    first: list[DialectOutput] = [TurnBegan("run_1"), _tool(), TurnEnded("completed")]
    second: list[DialectOutput] = [
        TurnBegan("run_2"),
        _tool(),
        ToolCompleted("1", "Bash"),
        TurnEnded("completed"),
    ]

    assert _plain(_play(first, second))[-len(second) :] == second


def test_open_tools_are_tracked() -> None:
    turns = _turns([[TurnBegan("run_1"), _tool()], [ToolCompleted("1", "Bash")]])

    _tell(turns, range(1, 2))
    assert turns.has_open_tools
    _tell(turns, range(2, 3))
    assert not turns.has_open_tools


# -- follow-ups


def test_open_offer_is_returned_at_the_exit_before_the_end() -> None:
    *_, back, ended = _plain(_play([TurnBegan("run_1"), FollowupOffered("itm_1", "more")]))

    assert back == FollowupReturned("itm_1", "more", "the process ended")
    assert isinstance(ended, TurnEnded)


@pytest.mark.parametrize("end", [FollowupAbsorbed, FollowupOwnTurn, FollowupReturned])
def test_settled_offer_is_not_returned_at_the_exit(end: Any) -> None:
    told = _plain(_play([FollowupOffered("itm_1", "more")], [end("itm_1", "more")]))

    assert told == [FollowupOffered("itm_1", "more"), end("itm_1", "more")]


# -- images


def test_image_is_reported_and_waits_to_be_stored() -> None:
    turns = _turns(
        [[ProducedImage("a.png", "image/png", b"one")], [ProducedImage("b", "image/../x", b"two")]]
    )

    told = [each.event for each in _tell(turns, range(1, 3)) if isinstance(each, Emitted)]

    files = list(turns.pictures)
    assert list(turns.pictures.values()) == [b"one", b"two"]
    assert told == [
        ImageProduced("a.png", "image/png", 3, files[0]),
        ImageProduced("b", "image/../x", 3, files[1]),
    ]
    assert [Path(file).name for file in files] == files
    assert [Path(file).suffix for file in files] == [".png", ".bin"]


# -- frames


def test_open_approval_is_cancelled_at_the_exit_before_the_end() -> None:
    asked = [ApprovalRequested(name, None, "Write", {}) for name in ("1", "2")]
    answered = ApprovalResolved("1", "allow", by="user")

    told = _play([TurnBegan("t1"), *asked], [answered])

    withdrawn = ApprovalResolved("2", "cancelled", by="provider")
    events = [each.event for each in told if isinstance(each, Emitted)]
    assert events == [*asked, answered, withdrawn]
    assert isinstance(told[-1], TurnEnded)


def test_unreadable_frame_is_kept() -> None:
    turns = _turns([])

    assert turns.on_received(Frame(b"?", 2), NOW) == [Emitted(2, 0, NOW, Unknown(text="?"))]


def test_events_of_a_sent_frame_are_numbered() -> None:
    said: list[DialectOutput] = [
        Note("a"),
        TurnBegan("run_1"),
        Note("b"),
        Send("key", b"raw"),
        _tool(),
    ]
    turns = _turns([said])

    told = turns.on_sent(Frame(b"line", 7, "key", 3), NOW)

    places = [(each.place, each.n) for each in told if isinstance(each, Emitted)]
    assert places == [("s3", 0), ("s3", 1), ("s3", 2)]


# -- whatever is said

_CALLS = st.sampled_from(["1", "2", "3"])
_ITEMS = st.sampled_from(["itm_1", "itm_2"])
_SAID: st.SearchStrategy[DialectOutput] = st.one_of(
    st.sampled_from(
        [TurnBegan("run_1"), TurnBegan(None), TurnEnded("completed"), TurnEnded("failed")]
    ),
    st.builds(ToolStarted, _CALLS, st.just("Bash")),
    st.builds(ToolCompleted, _CALLS, st.just("Bash")),
    st.builds(ToolFailed, _CALLS, st.just("Bash")),
    st.builds(FollowupOffered, _ITEMS, st.just("more")),
    st.builds(FollowupAbsorbed, _ITEMS, st.just("more")),
    st.builds(FollowupOwnTurn, _ITEMS, st.just("more")),
    st.builds(FollowupReturned, _ITEMS, st.just("more")),
    st.builds(Note, st.just("note")),
    st.builds(Send, st.just("key"), st.just(b"raw")),
)
_SCRIPTS = st.lists(st.lists(_SAID, max_size=4), max_size=12)
_ABILITIES = st.sampled_from([MANY, ONE])


@given(_SCRIPTS, _ABILITIES)
def test_turns_never_overlap_and_each_ends_once(
    script: list[list[DialectOutput]], abilities: frozenset[Ability]
) -> None:
    is_open = abilities is ONE
    for each in _play(*script, abilities=abilities):
        if isinstance(each, TurnBegan | TurnEnded):
            assert isinstance(each, TurnEnded) == is_open
            is_open = not is_open
    assert not is_open


@given(_SCRIPTS, _ABILITIES)
def test_no_tool_is_open_when_a_turn_has_ended(
    script: list[list[DialectOutput]], abilities: frozenset[Ability]
) -> None:
    open_tools: set[str] = set()
    for each in _plain(_play(*script, abilities=abilities)):
        match each:
            case ToolStarted(call):
                open_tools.add(call)
            case ToolCompleted(call) | ToolFailed(call):
                open_tools.discard(call)
            case TurnEnded():
                assert not open_tools
            case _:
                pass


@given(_SCRIPTS, _ABILITIES)
def test_every_offer_is_settled_at_the_exit(
    script: list[list[DialectOutput]], abilities: frozenset[Ability]
) -> None:
    open_offers: set[str] = set()
    for each in _plain(_play(*script, abilities=abilities)):
        match each:
            case FollowupOffered(item):
                open_offers.add(item)
            case FollowupAbsorbed(item) | FollowupOwnTurn(item) | FollowupReturned(item):
                open_offers.discard(item)
            case _:
                pass
    assert not open_offers


@given(_SCRIPTS, _ABILITIES)
def test_every_output_is_kept_and_every_event_has_a_unique_place(
    script: list[list[DialectOutput]], abilities: frozenset[Ability]
) -> None:
    told = _play(*script, abilities=abilities)

    places = [(each.place, each.n) for each in told if isinstance(each, Emitted)]
    assert len(set(places)) == len(places)
    said = [each for frame in script for each in frame]
    for kind in (Send, ToolStarted, FollowupOffered):
        assert [each for each in _plain(told) if isinstance(each, kind)] == [
            each for each in said if isinstance(each, kind)
        ]


@given(_SCRIPTS, _ABILITIES, st.data())
def test_restored_tracker_continues_with_the_same_output(
    script: list[list[DialectOutput]], abilities: frozenset[Ability], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(script)), label="saved after so many frames")
    first, second = _turns(script, abilities), _turns(script, abilities)
    _tell(first, range(1, at + 1))
    second.restore(first.save())

    rest = range(at + 1, len(script) + 1)
    assert _tell(first, rest) == _tell(second, rest)
    assert (first.is_open, first.input, first.has_open_tools) == (
        second.is_open,
        second.input,
        second.has_open_tools,
    )
    assert first.on_exited(CRASH, NOW) == second.on_exited(CRASH, NOW)


# -- numbers that cannot be stored


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(MOST_TOKENS + 1), Cost()),
        (Usage(1, 2**63), Cost()),
        (Usage(cache_read_tokens=-1), Cost()),
        (Usage(1), Cost(float("inf"), "known")),
        (Usage(1), Cost(float("nan"), "known")),
        (Usage(1), Cost(-1.0, "estimated")),
    ],
)
def test_implausible_usage_is_replaced_by_a_note(usage: Usage, cost: Cost) -> None:
    began, ended = TurnBegan("run_1"), TurnEnded("completed", "hi", usage, cost)
    heard = _plain(_play([began], [UsageUpdated(usage, cost)], [ended]))

    note = Note(USAGE_REFUSED)
    kept = usage if cost != Cost() else None
    assert heard == [began, note, note, TurnEnded("completed", "hi", kept, Cost())]


def test_state_with_an_integer_of_any_size_is_saved_and_restored() -> None:
    tool = ToolStarted("1", "Bash", {"n": 10**30})
    first, second = _turns([[TurnBegan("run_1"), tool]]), _turns([])
    _tell(first, range(1, 2))
    second.restore(first.save())

    assert _plain(second.on_exited(CRASH, NOW))[0] == ToolFailed(
        "1", "Bash", {"n": 10**30}, error=STILL_RUNNING
    )
