"""Tests that another driver can take over a Codex process, with any output."""

import json
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.dialect import Offer, ProcessExit, Send, Turn, TurnBegan, TurnEnded, Verdict
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.event import Emitted
from steadyrun.providers.codex.dialect import Codex
from steadyrun.providers.codex.state import CodexState
from tests.support.codex_lines import (
    AGAIN,
    Talk,
    ask,
    begun,
    command,
    command_done,
    completed,
    delta,
    done,
    error,
    failed,
    interrupted,
    limits,
    make_notification,
    question,
    ready,
    refusal,
    reply,
    resolved,
    started,
    text,
    tokens,
    usage,
    user,
    window,
    working,
)
from tests.support.dialect_talker import NOW, play


def conversation() -> list[Frame]:
    """Something of everything."""
    talk = ready(AGAIN)
    dialect = talk.dialect
    talk.receive(
        usage(tokens(1000, 100), turn="of old"),
        make_notification("configWarning", summary="careful"),
    )
    talk.send(*dialect.begin(Turn("t1", "hello", model="m2", mode="plan")))
    talk.send(dialect.interrupt())
    talk.receive(reply("begin:t1", turn={"id": "turn1"}), started(), user("t1"))
    talk.receive(begun("contextCompaction", "k"), usage(tokens(1000, 100)))
    talk.receive(
        done("contextCompaction", "k"), begun("agentMessage", "m1"), delta("h"), text("hi")
    )
    talk.receive(usage(tokens(1100, 120, cached=10)), limits(window(100, 1794785857)))
    talk.receive(
        make_notification(
            "item/reasoning/summaryTextDelta", itemId="r1", delta="hm", turnId="turn1"
        )
    )
    talk.receive(command("c1"), command("c2"), ask(0, item="c1"), ask("0", "fileChange"))
    picture = {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    talk.receive(done("mcpToolCall", "c4", server="s", tool="t", result=picture))
    for offer in ("o1", "o2", "o3"):
        talk.send(dialect.steer(Offer(offer, offer)))
    talk.send(*dialect.decide(next(iter(dialect.state.asks)), Verdict(True)))
    talk.receive(resolved(0), reply("offer:o1", turnId="turn1"), refusal("offer:o2"), user("o1"))
    talk.send(*_sends(talk.receive(question("item/tool/requestUserInput", 3), command_done("c2"))))
    talk.receive(error("serverOverloaded"), begun("reasoning", "r1"), {"method": "news"})
    talk.send(*_sends(talk.receive(interrupted(), resolved("0"), refusal("offer:o3"))))
    talk.receive(reply("terminate:c1", terminated=True), command_done("c1", "failed", -1))
    talk.turn("t2")
    talk.receive(
        reply("begin:t2", turn={"id": "turn2"}), started("turn2"), user("t2", turn="turn2")
    )
    talk.send(dialect.steer(Offer("o4", "o4")))
    talk.receive(
        text("x", turn="turn2"), reply("offer:o4", turnId="turn2"), user("o4", turn="turn2")
    )
    talk.send(*_sends(talk.receive(completed("x", turn="turn2"))))
    talk.receive(
        reply("again:o4", turn={"id": "turn3"}), started("turn3"), command("c9", turn="turn3")
    )
    talk.receive(failed("usageLimitExceeded", turn="turn3"), started("turn4"))
    talk.receive(completed("y", turn="turn4"))
    talk.turn("t5")
    talk.receive(refusal("begin:t5", "no"))
    return talk.log


def _sends(said: list[Any]) -> list[Send]:
    return [each for each in said if isinstance(each, Send)]


FRAMES = conversation()
LAST = ProcessExit(1, stderr="x")


@given(st.integers(0, len(FRAMES)))
def test_restored_state_continues_at_any_frame(cut: int) -> None:
    first, second, whole = TurnTracker(Codex()), TurnTracker(Codex()), TurnTracker(Codex())

    before = play(first, FRAMES[:cut])
    second.restore(first.save())
    after = [*play(second, FRAMES[cut:]), *second.on_exited(LAST, NOW)]

    assert [*before, *after] == [*play(whole, FRAMES), *whole.on_exited(LAST, NOW)]


@given(st.integers(0, len(FRAMES)))
def test_building_requests_never_changes_the_state(cut: int) -> None:
    turns = TurnTracker(Codex())
    play(turns, FRAMES[:cut])
    dialect = turns.dialect
    before = deepcopy(dialect.state)

    dialect.open(AGAIN)
    dialect.begin(Turn("t9", "x"))
    dialect.steer(Offer("o9", "x"))
    dialect.interrupt()
    for approval in before.asks:
        dialect.decide(approval, Verdict(True))
        dialect.decide(approval, Verdict(False, ends_turn=True))
    assert dialect.is_ready in {True, False}

    assert dialect.state == before


def test_state_does_not_grow_with_the_output() -> None:
    talk = working()
    sizes = list[int]()
    for number in range(20):
        turn, name = f"turn{number + 1}", f"t{number + 2}"
        offer, item = f"o{number}", f"c{number}"
        talk.receive(command(item, turn=turn), ask(number, item=item), text("hi", turn=turn))
        talk.receive(
            usage(tokens(number, number), turn=turn),
            make_notification("warning", message="careful"),
        )
        talk.send(talk.dialect.steer(Offer(offer, offer)), talk.dialect.interrupt())
        talk.receive(
            command_done(item), refusal(f"offer:{offer}"), reply(f"interrupt:t{number + 1}")
        )
        talk.receive(completed("hi", turn=turn), resolved(number))
        sizes.append(len(msgspec.msgpack.encode(talk.dialect.state)))
        talk.turn(name)
        talk.receive(reply(f"begin:{name}", turn={"id": f"turn{number + 2}"}))

    assert max(sizes) - sizes[0] < 40


@pytest.mark.parametrize("value", [10**30, -(10**30), 1e300, "\ud7ff", ["x"] * 100])
def test_state_with_any_tool_input_can_be_saved(value: Any) -> None:
    talk = working()
    talk.receive(command("c1", command=value), begun("mcpToolCall", "c2", arguments={"n": value}))
    talk.receive(ask(0, "permissions", permissions={"n": value}))

    saved = msgspec.msgpack.encode(talk.dialect.state)

    assert msgspec.msgpack.decode(saved, type=CodexState) == talk.dialect.state


# -- whatever it prints

GARBAGE: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, "", "x", "turn1", "th1", [], [[]], [{}], {}, {"x": {"type": 1}},
]  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a value."""
    yield path
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield from paths(value[key], (*path, key))


def changed(frame: Frame, path: tuple[Any, ...], value: Any) -> Frame:
    line = json.loads(frame.raw)
    if not path:
        return replace(frame, raw=json.dumps(value).encode())
    inner = line
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return replace(frame, raw=json.dumps(line).encode())


PRINTED = [n for n, frame in enumerate(FRAMES) if not frame.number]
PLACES = [(n, path) for n in PRINTED for path in paths(json.loads(FRAMES[n].raw))]


def events(told: list[TrackedOutput]) -> list[Any]:
    return [each.event if isinstance(each, Emitted) else each for each in told]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(GARBAGE)), max_size=3))
def test_everything_started_is_ended_with_malformed_lines(changes: list[Any]) -> None:
    frames, done_ = list(FRAMES), set[int]()
    for (number, path), value in changes:
        if number not in done_:
            frames[number] = changed(frames[number], path, value)
            done_.add(number)
    turns = TurnTracker(Codex())

    told: list[TrackedOutput] = []
    for frame in frames:
        told += play(turns, [frame])
        if told and isinstance(told[-1], TurnEnded):
            turns.save()
    heard = events([*told, *turns.on_exited(LAST, NOW)])

    _check_ends(heard)


def _check_ends(heard: list[Any]) -> None:
    kinds = Counter(map(type, heard))
    assert kinds[TurnBegan] == kinds[TurnEnded]
    fates = [each.item for each in heard if isinstance(each, FATES)]
    offered = [each.item for each in heard if isinstance(each, ev.FollowupOffered)]
    assert sorted(fates) == sorted(offered)
    asked = [each.approval for each in heard if isinstance(each, ev.ApprovalRequested)]
    answered = [each.approval for each in heard if isinstance(each, ev.ApprovalResolved)]
    assert sorted(asked) == sorted(answered)
    begun_ = Counter(each.tool_call_id for each in heard if isinstance(each, ev.ToolStarted))
    ended = Counter(each.tool_call_id for each in heard if isinstance(each, TOOL_ENDS))
    assert begun_ == ended


FATES = (ev.FollowupAbsorbed, ev.FollowupOwnTurn, ev.FollowupReturned)
TOOL_ENDS = (ev.ToolCompleted, ev.ToolFailed)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_missing_and_repeated_lines_end_every_turn_and_offer_once(data: st.DataObject) -> None:
    frames = list[Frame]()
    for frame in FRAMES:
        times = 1 if frame.number else data.draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
        frames += [frame] * times
    turns = TurnTracker(Codex())

    heard = events([*play(turns, frames), *turns.on_exited(LAST, NOW)])

    kinds = Counter(map(type, heard))
    assert kinds[TurnBegan] == kinds[TurnEnded]
    fates = Counter(each.item for each in heard if isinstance(each, FATES))
    assert not [item for item, times in fates.items() if times > 1]


@given(st.integers(0, len(FRAMES)), st.sampled_from(GARBAGE))
def test_approval_request_is_always_answered(cut: int, params: Any) -> None:
    turns = TurnTracker(Codex())
    play(turns, FRAMES[:cut])
    raw = json.dumps({"id": 99, "method": "item/fileChange/requestApproval", "params": params})

    told = turns.on_received(Frame(raw.encode(), 10**6), NOW)

    sent = [each for each in told if isinstance(each, Send)]
    assert len(sent) + ("1000000" in turns.dialect.state.asks) == 1


def test_recorded_conversation_covers_every_kind_of_event() -> None:
    heard = events(play(TurnTracker(Codex()), FRAMES))

    missing = {*FATES, *TOOL_ENDS, ev.ApprovalResolved, ev.CompactionCompleted, ev.TokenBound,
               ev.ProviderRetrying, ev.Unknown, ev.UsageUpdated, ev.ThinkingDelta,
               ev.ImageProduced} - set(map(type, heard))  # fmt: skip
    assert missing == set()
    assert isinstance(Talk().dialect.state, CodexState)
