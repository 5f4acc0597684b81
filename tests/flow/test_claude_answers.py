"""The real Claude Code keeps approvals, schemas, images and limits of a run."""

import base64
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.dialect import Image, Refused, Verdict
from steadyrun.library import Offered
from steadyrun.model import event as ev
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.testing.model_servers.anthropic import (
    AnswerTokens,
    ModelAnswer,
    ModelRequest,
    ServerStep,
    answer,
    call,
    text,
    thinking,
)
from steadyrun.testing.model_servers.faults import Refusal, StreamGate
from tests.support.real_cli_harness import (
    PNG,
    CliHarness,
    RunRecord,
    approval_outcomes,
    cli_harness,
    count_sent,
    is_approval_request,
    run_with_verdicts,
    wait_for_event,
    wait_for_gate,
)


def touching(name: str) -> ModelAnswer:
    """The model wants to run something that has to be asked for."""
    return answer(call("Bash", command=f"touch {name}"))


# -- approvals


def test_a_tool_is_allowed_changed_or_denied(tmp_path: Path) -> None:
    script = [touching("one"), touching("two"), touching("three"), answer("So be it.")]
    verdicts = [
        Verdict(True),
        Verdict(True, input={"command": "touch other"}),
        Verdict(False, "not on a Monday"),
    ]
    with cli_harness(tmp_path, script) as harness:
        played = run_with_verdicts(harness, verdicts)

        assert (played.run.status, played.run.text) == ("completed", "So be it.")
        requests = played.events_of(ev.ApprovalRequested)
        assert [each.tool_input["command"] for each in requests] == [
            "touch one",
            "touch two",
            "touch three",
        ]
        tools = [tool.tool_call_id for tool in played.events_of(ev.ToolStarted)]
        assert [each.tool_call_id for each in requests] == tools
        assert approval_outcomes(played) == [
            ("allow", "library"),
            ("allow", "library"),
            ("deny", "library"),
        ]
        assert sorted(path.name for path in harness.cwd.iterdir()) == ["one", "other"]
        assert [tool.tool_input["command"] for tool in played.events_of(ev.ToolCompleted)] == [
            "touch one",
            "touch other",
        ]
        [denied] = played.events_of(ev.ToolFailed)
        assert denied.error == "not on a Monday"
        [result] = harness.server.main_requests[3].results
        assert (result["content"], result["is_error"]) == ("not on a Monday", True)


def test_a_denial_may_end_the_turn(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [touching("one"), answer("Never said.")]) as harness:
        played = run_with_verdicts(harness, [Verdict(False, "enough", ends_turn=True)])

        assert (played.run.status, played.run.text) == ("cancelled", None)
        assert approval_outcomes(played) == [("deny", "library")]
        assert len(played.events_of(ev.ToolFailed)) == 1
        assert len(harness.server.main_requests) == 1
        assert list(harness.cwd.iterdir()) == []


def test_a_run_is_stopped_while_it_asks(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work", mode="default")
            await wait_for_event(run, is_approval_request)
            await run.cancel("no user is there")
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [touching("one")]) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert approval_outcomes(played) == [("cancelled", "provider")]
        assert len(harness.server.main_requests) == 1
        assert list(harness.cwd.iterdir()) == []


def test_a_follow_up_while_it_asks_is_taken_in_once_it_is_answered(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work", mode="default")
            asking = await wait_for_event(run, is_approval_request)
            assert isinstance(await run.steer("hurry up"), Offered)
            await run.decide(asking.approval, Verdict(True))
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [touching("one"), answer("Done.")]) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        assert [(item.delivery, item.run) for item in played.items[1:]] == [
            ("absorbed", played.run.id)
        ]
        assert [path.name for path in harness.cwd.iterdir()] == ["one"]
        assert count_sent(harness.server, "hurry up") == 1
        assert len(harness.server.main_requests) == 2


# -- what comes back


SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
}
# It answers in a form by a tool, for which a user may want to be asked like for any other.
ASK_FOR_ANSWERS = {"settings": {"permissions": {"ask": ["StructuredOutput"]}}}


def in_form(given: Any) -> ModelAnswer:
    return answer(call("StructuredOutput", answer=given))


def final_texts(played: RunRecord) -> list[str]:
    return [each.text for each in played.events_of(ev.TextFinal)]


def tool_events(played: RunRecord) -> list[object]:
    kinds = (ev.ToolStarted, ev.ToolCompleted, ev.ToolFailed)
    return [seen.event for seen in played.stored if isinstance(seen.event, kinds)]


def test_an_answer_fits_the_schema(tmp_path: Path) -> None:
    with cli_harness(
        tmp_path, [answer("Forty-two."), in_form("forty-two"), in_form(42)]
    ) as harness:
        played = harness.run("What is six times seven?", schema=SCHEMA)

        assert (played.run.status, played.run.text) == ("completed", '{"answer":42}')
        assert final_texts(played) == ["Forty-two.", '{"answer":"forty-two"}', '{"answer":42}']
        [why] = played.events_of(ev.Note)
        assert "must be integer" in why.text
        assert (tool_events(played), played.run.tools) == ([], 0)
        # It was asked again where it did not answer so, and where that did not fit.
        assert len(harness.server.main_requests) == 3
        [mismatch] = harness.server.main_requests[2].results
        assert mismatch["is_error"]


def test_an_answer_that_never_fits_is_a_failure(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [in_form("forty-two")] * 9) as harness:
        played = harness.run("What is six times seven?", schema=SCHEMA)

        assert played.run.status == "failed"
        assert played.run.error is not None
        assert played.run.error.code == "schema_unmet"
        assert (
            len(played.events_of(ev.Note))
            == len(final_texts(played))
            == len(harness.server.main_requests)
        )
        assert tool_events(played) == []


def test_an_answer_in_a_form_may_have_to_be_asked_for(tmp_path: Path) -> None:
    verdicts = [Verdict(False, "think again"), Verdict(True)]
    with cli_harness(tmp_path, [in_form(41), in_form(42)], options=ASK_FOR_ANSWERS) as harness:
        played = run_with_verdicts(harness, verdicts, schema=SCHEMA)

        assert (played.run.status, played.run.text) == ("completed", '{"answer":42}')
        assert approval_outcomes(played) == [("deny", "library"), ("allow", "library")]
        assert final_texts(played) == ['{"answer":41}', '{"answer":42}']
        assert [note.text.endswith(": think again") for note in played.events_of(ev.Note)] == [True]
        assert tool_events(played) == []


def test_a_run_is_stopped_between_an_answer_and_its_being_taken(tmp_path: Path) -> None:
    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work", mode="default", schema=SCHEMA)
            await wait_for_event(run, is_approval_request)
            await run.cancel("enough")
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, [in_form(42)], options=ASK_FOR_ANSWERS) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert approval_outcomes(played) == [("cancelled", "provider")]
        assert final_texts(played) == ['{"answer":42}']
        assert (tool_events(played), played.events_of(ev.Note)) == ([], [])


def test_images_go_in_and_come_out(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    script = [answer(call("Read", file_path=str(picture))), answer("Two dots.")]
    with cli_harness(tmp_path, script) as harness:
        played = harness.run("What is this?", images=[Image("image/png", PNG)])

        assert played.run.status == "completed"
        [produced] = played.events_of(ev.ImageProduced)
        assert (produced.media_type, produced.size_bytes) == ("image/png", len(PNG))
        assert produced.file is not None
        assert (harness.home / produced.file).read_bytes() == PNG
        [tool] = played.events_of(ev.ToolCompleted)
        assert tool.tool_output == [
            {"type": "image", "media_type": "image/png", "name": produced.name}
        ]
        first, second = harness.server.main_requests
        assert [
            block["source"]["data"] for block in first.new_items if block["type"] == "image"
        ] == [base64.b64encode(PNG).decode()]
        # The second has it in what was said before, and the tool's as news.
        assert [block["type"] for block in second.new_items] == ["tool_result"]
        assert [part["type"] for part in second.results[0]["content"]] == ["image"]


def test_thinking_and_text_are_streamed_in_order(tmp_path: Path) -> None:
    in_thought, in_words = StreamGate(), StreamGate()
    said = answer(thinking("Hm, ", in_thought, "well."), text("It ", in_words, "is."))

    async def main(harness: CliHarness) -> list[StoredEvent | LiveEvent]:
        async with harness.library() as library:
            run = await harness.start(library, "what?")
            heard = []
            async for seen in run.events():
                heard.append(seen)
                # A gate opens only when the piece before it was heard.
                if isinstance(seen.event, ev.ThinkingDelta):
                    in_thought.open()
                if isinstance(seen.event, ev.TextDelta):
                    in_words.open()
            await run.result()
            return heard

    with cli_harness(tmp_path, [said]) as harness:
        heard = anyio.run(main, harness)

        live = [seen.event for seen in heard if isinstance(seen, LiveEvent)]
        assert live == [
            ev.ThinkingDelta("Hm, "),
            ev.ThinkingDelta("well."),
            ev.TextDelta("It "),
            ev.TextDelta("is."),
        ]
        kinds = [type(seen.event) for seen in heard]
        assert kinds.index(ev.TextFinal) > kinds.index(ev.TextDelta) > kinds.index(ev.ThinkingDelta)
        [final] = [seen.event for seen in heard if isinstance(seen.event, ev.TextFinal)]
        assert final.text == "It is."


# -- limits


@pytest.mark.parametrize(
    ("wish", "code", "stop_reason", "rounds"),
    [
        ({"max_turns": 2}, "max_turns", None, 2),
        ({"max_cost_usd": 0.02}, "max_cost", "budget", 1),
    ],
    ids=["turns", "cost"],
)
def test_a_run_ends_at_its_limit(
    tmp_path: Path, wish: dict[str, Any], code: str, stop_reason: str | None, rounds: int
) -> None:
    on_and_on = answer(
        "Once more.", call("Bash", command="echo on"), tokens=AnswerTokens(1000, 1000)
    )
    with cli_harness(tmp_path, lambda ask: on_and_on) as harness:
        run = harness.run("go on", **wish).run

        assert (run.status, run.stop_reason, run.text) == ("failed", stop_reason, "Once more.")
        assert run.error
        assert (run.error.code, run.error.retryable) == (code, False)
        assert run.error.hint
        assert len(harness.server.main_requests) == rounds
        assert run.usage.output_tokens == 1000 * rounds
        assert run.cost.usd == pytest.approx(0.03 * rounds)


# -- compaction


class Growing:
    """A model that works in rounds which take more and more tokens, until it is compacted."""

    def __init__(self, summary: ServerStep) -> None:
        self._summary = summary

    def __call__(self, ask: ModelRequest) -> ServerStep:
        if "Respond with TEXT ONLY" in ask.user_text:
            return self._summary
        rounds = self.rounds(ask)
        if rounds == 6 or "SO FAR" in str(ask.messages):
            return answer("At last.")
        echo = call("Bash", command=f"echo round {rounds}")
        return answer(echo, tokens=AnswerTokens(20_000 * (rounds + 1), 50))

    @staticmethod
    def rounds(ask: ModelRequest) -> int:
        return str(ask.messages).count("'tool_result'")


def test_a_conversation_is_compacted_in_mid_turn_and_goes_on(tmp_path: Path) -> None:
    model = Growing(answer("<summary>SO FAR: four rounds.</summary>", tokens=AnswerTokens(100, 50)))
    gate = StreamGate()

    def script(ask: ModelRequest) -> ServerStep:
        step = model(ask)
        return answer(text("At ", gate, "last.")) if step == answer("At last.") else step

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work FOR LONG")
            await wait_for_gate(gate)
            assert isinstance(await run.steer("and then?"), Offered)
            gate.open()
            return await harness.read_record(await run.result())

    with cli_harness(tmp_path, script, options={"auto_compact_window": 100_000}) as harness:
        played = anyio.run(main, harness)

        assert [end.text for end in played.events_of(ev.RunCompleted)] == ["At last.", "At last."]
        assert [each.trigger for each in played.events_of(ev.CompactionStarted)] == ["auto"]
        [done] = played.events_of(ev.CompactionCompleted)
        assert (done.tokens_before or 0) > 67_000 > (done.tokens_after or 0) > 0
        assert played.events_of(ev.CompactionFailed) == []
        *_, before, summary, after, then = harness.server.main_requests
        assert "Respond with TEXT ONLY" in summary.user_text
        # What was said before is in the summary only, and the tool's result is not lost.
        assert "FOR LONG" in str(before.messages)
        assert "FOR LONG" not in str(after.messages)
        assert "SO FAR: four rounds." in str(after.messages)
        assert "round 3" in str(after.results)
        assert then.user_text == "and then?"
        assert count_sent(harness.server, "SO FAR: four rounds.") == 1
        # It has one token, and all that was used is counted.
        assert len(played.events_of(ev.TokenBound)) == 1
        assert played.events_of(ev.TokenRotated) == []
        assert played.run.usage.input_tokens == 20_000 * (1 + 2 + 3 + 4) + 100 + 10


def test_a_compaction_that_fails_does_not_end_the_turn(tmp_path: Path) -> None:
    model = Growing(Refusal("invalid", message="no summary today"))
    with cli_harness(tmp_path, model, options={"auto_compact_window": 100_000}) as harness:
        played = harness.run("work")

        assert (played.run.status, played.run.text) == ("completed", "At last.")
        assert (
            len(played.events_of(ev.CompactionFailed))
            == len(played.events_of(ev.CompactionStarted))
            >= 1
        )
        assert played.events_of(ev.CompactionCompleted) == []
        assert Growing.rounds(harness.server.main_requests[-1]) == 6


def test_cancel_in_a_compaction_returns_the_queued_message(tmp_path: Path) -> None:
    gate = StreamGate()

    async def main(harness: CliHarness) -> RunRecord:
        async with harness.library() as library:
            run = await harness.start(library, "work")
            await wait_for_gate(gate)
            assert isinstance(await run.steer("and then?"), Offered)
            await run.cancel("enough")
            return await harness.read_record(await run.result())

    model = Growing(answer(text("<summary>SO ", gate, "FAR</summary>")))
    with cli_harness(tmp_path, model, options={"auto_compact_window": 100_000}) as harness:
        played = anyio.run(main, harness)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert (
            len(played.events_of(ev.CompactionStarted))
            == len(played.events_of(ev.CompactionFailed))
            == 1
        )
        assert [(item.delivery, item.status) for item in played.items[1:]] == [
            ("returned", "cancelled")
        ]
        assert count_sent(harness.server, "and then?") == 0
        assert "Respond with TEXT ONLY" in harness.server.main_requests[-1].user_text


# -- how it is started


def test_a_process_for_one_turn_takes_a_long_prompt_and_no_follow_up(tmp_path: Path) -> None:
    gate, prompt = StreamGate(), "/many words " * 33_000 + "end"

    async def main(harness: CliHarness) -> tuple[RunRecord, object]:
        async with harness.library() as library:
            run = await harness.start(library, prompt)
            await wait_for_gate(gate)
            steered = await run.steer("one more")
            gate.open()
            return await harness.read_record(await run.result()), steered

    script = [answer(text("All ", gate, "read."))]
    with cli_harness(tmp_path, script, options={"one_shot": True}) as harness:
        played, steered = anyio.run(main, harness)

        assert len(prompt) > 390_000
        assert isinstance(steered, Refused)
        assert (played.run.status, played.run.text) == ("completed", "All read.")
        [ask] = harness.server.main_requests
        assert ask.user_text == prompt
        assert count_sent(harness.server, "one more") == 0


def test_the_system_prompt_and_the_tools_are_those_asked_for(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("Yes.")]) as harness:
        run = harness.run("Are you?", system="You are a test.", tools=["Read", "Bash"]).run

        assert run.status == "completed"
        [ask] = harness.server.main_requests
        assert sorted(ask.tools) == ["Bash", "Read"]
        assert ask.body["system"][-1]["text"] == "You are a test."
        assert "You are Claude Code" not in str(ask.body["system"])
