"""Traffic of the real Codex with several threads and with a review.

Another client drives the real Codex, and its traffic is replayed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyrun.drivers.replay import RecordedLine, replay
from steadyrun.model import event as ev
from steadyrun.model.event import AnyEvent
from steadyrun.model.usage import Usage
from steadyrun.providers.codex.dialect import Codex
from steadyrun.testing.model_servers.content import AnswerTokens, ModelAnswer, answer, make_text
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.model_server import ResponsesServer
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.support.real_cli import TIMEOUT_SECONDS, Frame
from tests.support.real_codex import StartedAppServer, is_turn_end


class Recorded(StartedAppServer):
    """An app server of which all that passes is written down."""

    def __init__(self, folder: Path, base_url: str) -> None:
        self.lines: list[RecordedLine] = []
        super().__init__(folder, base_url)

    def send(self, *frames: Frame) -> None:
        self.lines += [RecordedLine("in", frame) for frame in frames]
        super().send(*frames)

    def read_until(
        self, is_last: Callable[[Frame], bool], seconds: float = TIMEOUT_SECONDS
    ) -> list[Frame]:
        frames = super().read_until(is_last, seconds)
        self.lines += [RecordedLine("out", frame) for frame in frames]
        return frames

    def turn(self, thread: str, words: str) -> None:
        """A turn, from its beginning to its end."""
        self.start_turn(thread, words)
        self.read_until(is_turn_end)

    def events(self) -> list[Any]:
        return [known(seen) for seen in replay(Codex(), self.lines)]


def known(seen: AnyEvent) -> ev.Event:
    assert not isinstance(seen.event, ev.Foreign)
    return seen.event


def ends(events: list[Any]) -> list[ev.RunEnded]:
    return [each for each in events if isinstance(each, ev.RunEnded)]


def test_usage_of_a_thread_is_counted_once_over_several_turns_and_a_fork(tmp_path: Path) -> None:
    script = [answer("a", tokens=AnswerTokens(100 * 2**n, 2**n)) for n in range(4)]
    with ResponsesServer(script) as server, Recorded(tmp_path, server.url) as codex:
        one, other = codex.start_thread(), codex.start_thread()
        for thread in (one, other, one):
            codex.turn(thread, "go on")
        fork = codex.read_reply("thread/fork", threadId=one)["thread"]["id"]
        codex.turn(fork, "go on")

        used = [each.usage for each in ends(codex.events())]

    assert used == [Usage(100 * 2**n, 2**n, 0, 0) for n in range(4)]


def test_turn_of_a_second_thread_is_kept_as_unknown_and_is_no_follow_up(tmp_path: Path) -> None:
    gates = {"first": StreamGate(), "second": StreamGate()}

    def model(ask: ModelRequest) -> ModelAnswer:
        word = "first" if "first" in ask.user_text else "second"
        return answer(make_text(word[:3], gates[word], word[3:]), tokens=AnswerTokens(10, 1))

    with ResponsesServer(model) as server, Recorded(tmp_path, server.url) as codex:
        one, other = codex.start_thread(), codex.start_thread()
        for thread, word in ((one, "first"), (other, "second")):
            codex.start_turn(thread, word)
            gates[word].wait_until_reached()
        for gate in gates.values():
            gate.open()
            codex.read_until(is_turn_end)
        events = codex.events()

    [end] = ends(events)
    assert (end.text, end.usage) == ("first", Usage(10, 1, 0, 0))
    assert not [each for each in events if isinstance(each, ev.FollowupOffered)]
    kept = [json.loads(each.text or "") for each in events if isinstance(each, ev.Unknown)]
    assert {line["params"]["threadId"] for line in kept} == {other}
    items = [line["params"]["item"] for line in kept if line["method"] == "item/completed"]
    assert [item["text"] for item in items if item["type"] == "agentMessage"] == ["second"]
    assert "thread/tokenUsage/updated" in [line["method"] for line in kept]
    assert kept[-1]["method"] == "turn/completed"


def test_review_is_a_run_with_its_findings(tmp_path: Path) -> None:
    found = {"findings": [], "overall_correctness": "patch is correct",
             "overall_explanation": "All good", "overall_confidence_score": 0.9}  # fmt: skip
    script = [answer(json.dumps(found)), answer("And on.")]
    with ResponsesServer(script) as server, Recorded(tmp_path, server.url) as codex:
        thread = codex.start_thread()
        what = {"type": "custom", "instructions": "look"}
        codex.read_reply("review/start", threadId=thread, target=what)
        codex.read_until(is_turn_end)
        codex.turn(thread, "go on")
        events = codex.events()

    assert [(each.status, each.text) for each in ends(events)] == [
        ("completed", "All good"),
        ("completed", "And on."),
    ]
    assert ev.TextFinal("All good") in events
