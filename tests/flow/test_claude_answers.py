"""Does the real Claude Code answer as it was asked to? Approvals, schemas, images, limits."""

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
from tests.support.real_cli_stage import (
    PNG,
    Played,
    Stage,
    asked,
    is_asking,
    reached,
    resolved,
    staged,
    times_told,
    until,
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
    with staged(tmp_path, script) as stage:
        played = asked(stage, verdicts)

        assert (played.run.status, played.run.text) == ("completed", "So be it.")
        requests = played.of(ev.ApprovalRequested)
        assert [each.tool_input["command"] for each in requests] == [
            "touch one",
            "touch two",
            "touch three",
        ]
        tools = [tool.tool_call_id for tool in played.of(ev.ToolStarted)]
        assert [each.tool_call_id for each in requests] == tools
        assert resolved(played) == [("allow", "library"), ("allow", "library"), ("deny", "library")]
        assert sorted(path.name for path in stage.cwd.iterdir()) == ["one", "other"]
        assert [tool.tool_input["command"] for tool in played.of(ev.ToolCompleted)] == [
            "touch one",
            "touch other",
        ]
        [denied] = played.of(ev.ToolFailed)
        assert denied.error == "not on a Monday"
        [result] = stage.server.main_requests[3].results
        assert (result["content"], result["is_error"]) == ("not on a Monday", True)


def test_a_denial_may_end_the_turn(tmp_path: Path) -> None:
    with staged(tmp_path, [touching("one"), answer("Never said.")]) as stage:
        played = asked(stage, [Verdict(False, "enough", ends_turn=True)])

        assert (played.run.status, played.run.text) == ("cancelled", None)
        assert resolved(played) == [("deny", "library")]
        assert len(played.of(ev.ToolFailed)) == 1
        assert len(stage.server.main_requests) == 1
        assert list(stage.cwd.iterdir()) == []


def test_a_run_is_stopped_while_it_asks(tmp_path: Path) -> None:
    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            run = await stage.start(library, "work", mode="default")
            await until(run, is_asking)
            await run.cancel("nobody is there")
            return await stage.read(await run.result())

    with staged(tmp_path, [touching("one")]) as stage:
        played = anyio.run(main, stage)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert resolved(played) == [("cancelled", "provider")]
        assert len(stage.server.main_requests) == 1
        assert list(stage.cwd.iterdir()) == []


def test_a_follow_up_while_it_asks_is_taken_in_once_it_is_answered(tmp_path: Path) -> None:
    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            run = await stage.start(library, "work", mode="default")
            asking = await until(run, is_asking)
            assert isinstance(await run.steer("hurry up"), Offered)
            await run.decide(asking.approval, Verdict(True))
            return await stage.read(await run.result())

    with staged(tmp_path, [touching("one"), answer("Done.")]) as stage:
        played = anyio.run(main, stage)

        assert (played.run.status, played.run.text) == ("completed", "Done.")
        assert [(item.delivery, item.run) for item in played.items[1:]] == [
            ("absorbed", played.run.id)
        ]
        assert [path.name for path in stage.cwd.iterdir()] == ["one"]
        assert times_told(stage.server, "hurry up") == 1
        assert len(stage.server.main_requests) == 2


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


def final_texts(played: Played) -> list[str]:
    return [each.text for each in played.of(ev.TextFinal)]


def tool_events(played: Played) -> list[object]:
    kinds = (ev.ToolStarted, ev.ToolCompleted, ev.ToolFailed)
    return [seen.event for seen in played.stored if isinstance(seen.event, kinds)]


def test_an_answer_fits_the_schema(tmp_path: Path) -> None:
    with staged(tmp_path, [answer("Forty-two."), in_form("forty-two"), in_form(42)]) as stage:
        played = stage.played("What is six times seven?", schema=SCHEMA)

        assert (played.run.status, played.run.text) == ("completed", '{"answer":42}')
        assert final_texts(played) == ["Forty-two.", '{"answer":"forty-two"}', '{"answer":42}']
        [why] = played.of(ev.Note)
        assert "must be integer" in why.text
        assert (tool_events(played), played.run.tools) == ([], 0)
        # It was asked again where it did not answer so, and where that did not fit.
        assert len(stage.server.main_requests) == 3
        [mismatch] = stage.server.main_requests[2].results
        assert mismatch["is_error"]


def test_an_answer_that_never_fits_is_a_failure(tmp_path: Path) -> None:
    with staged(tmp_path, [in_form("forty-two")] * 9) as stage:
        played = stage.played("What is six times seven?", schema=SCHEMA)

        assert played.run.status == "failed"
        assert played.run.error is not None
        assert played.run.error.code == "schema_unmet"
        assert (
            len(played.of(ev.Note)) == len(final_texts(played)) == len(stage.server.main_requests)
        )
        assert tool_events(played) == []


def test_an_answer_in_a_form_may_have_to_be_asked_for(tmp_path: Path) -> None:
    verdicts = [Verdict(False, "think again"), Verdict(True)]
    with staged(tmp_path, [in_form(41), in_form(42)], options=ASK_FOR_ANSWERS) as stage:
        played = asked(stage, verdicts, schema=SCHEMA)

        assert (played.run.status, played.run.text) == ("completed", '{"answer":42}')
        assert resolved(played) == [("deny", "library"), ("allow", "library")]
        assert final_texts(played) == ['{"answer":41}', '{"answer":42}']
        assert [note.text.endswith(": think again") for note in played.of(ev.Note)] == [True]
        assert tool_events(played) == []


def test_a_run_is_stopped_between_an_answer_and_its_being_taken(tmp_path: Path) -> None:
    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            run = await stage.start(library, "work", mode="default", schema=SCHEMA)
            await until(run, is_asking)
            await run.cancel("enough")
            return await stage.read(await run.result())

    with staged(tmp_path, [in_form(42)], options=ASK_FOR_ANSWERS) as stage:
        played = anyio.run(main, stage)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert resolved(played) == [("cancelled", "provider")]
        assert final_texts(played) == ['{"answer":42}']
        assert (tool_events(played), played.of(ev.Note)) == ([], [])


def test_images_go_in_and_come_out(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PNG)
    script = [answer(call("Read", file_path=str(picture))), answer("Two dots.")]
    with staged(tmp_path, script) as stage:
        played = stage.played("What is this?", images=[Image("image/png", PNG)])

        assert played.run.status == "completed"
        [produced] = played.of(ev.ImageProduced)
        assert (produced.media_type, produced.size_bytes) == ("image/png", len(PNG))
        assert produced.file is not None
        assert (stage.home / produced.file).read_bytes() == PNG
        [tool] = played.of(ev.ToolCompleted)
        assert tool.tool_output == [
            {"type": "image", "media_type": "image/png", "name": produced.name}
        ]
        first, second = stage.server.main_requests
        assert [
            block["source"]["data"] for block in first.new_items if block["type"] == "image"
        ] == [base64.b64encode(PNG).decode()]
        # The second has it in what was said before, and the tool's as news.
        assert [block["type"] for block in second.new_items] == ["tool_result"]
        assert [part["type"] for part in second.results[0]["content"]] == ["image"]


def test_thinking_and_words_are_told_as_they_come(tmp_path: Path) -> None:
    in_thought, in_words = StreamGate(), StreamGate()
    said = answer(thinking("Hm, ", in_thought, "well."), text("It ", in_words, "is."))

    async def main(stage: Stage) -> list[StoredEvent | LiveEvent]:
        async with stage.library() as library:
            run = await stage.start(library, "what?")
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

    with staged(tmp_path, [said]) as stage:
        heard = anyio.run(main, stage)

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
    with staged(tmp_path, lambda ask: on_and_on) as stage:
        run = stage.played("go on", **wish).run

        assert (run.status, run.stop_reason, run.text) == ("failed", stop_reason, "Once more.")
        assert run.error
        assert (run.error.code, run.error.retryable) == (code, False)
        assert run.error.hint
        assert len(stage.server.main_requests) == rounds
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

    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            run = await stage.start(library, "work FOR LONG")
            await reached(gate)
            assert isinstance(await run.steer("and then?"), Offered)
            gate.open()
            return await stage.read(await run.result())

    with staged(tmp_path, script, options={"auto_compact_window": 100_000}) as stage:
        played = anyio.run(main, stage)

        assert [end.text for end in played.of(ev.RunCompleted)] == ["At last.", "At last."]
        assert [each.trigger for each in played.of(ev.CompactionStarted)] == ["auto"]
        [done] = played.of(ev.CompactionCompleted)
        assert (done.tokens_before or 0) > 67_000 > (done.tokens_after or 0) > 0
        assert played.of(ev.CompactionFailed) == []
        *_, before, summary, after, then = stage.server.main_requests
        assert "Respond with TEXT ONLY" in summary.user_text
        # What was said before is in the summary only, and the tool's result is not lost.
        assert "FOR LONG" in str(before.messages)
        assert "FOR LONG" not in str(after.messages)
        assert "SO FAR: four rounds." in str(after.messages)
        assert "round 3" in str(after.results)
        assert then.user_text == "and then?"
        assert times_told(stage.server, "SO FAR: four rounds.") == 1
        # It has one token, and all that was used is counted.
        assert len(played.of(ev.TokenBound)) == 1
        assert played.of(ev.TokenRotated) == []
        assert played.run.usage.input_tokens == 20_000 * (1 + 2 + 3 + 4) + 100 + 10


def test_a_compaction_that_fails_does_not_end_the_turn(tmp_path: Path) -> None:
    model = Growing(Refusal("invalid", message="no summary today"))
    with staged(tmp_path, model, options={"auto_compact_window": 100_000}) as stage:
        played = stage.played("work")

        assert (played.run.status, played.run.text) == ("completed", "At last.")
        assert len(played.of(ev.CompactionFailed)) == len(played.of(ev.CompactionStarted)) >= 1
        assert played.of(ev.CompactionCompleted) == []
        assert Growing.rounds(stage.server.main_requests[-1]) == 6


def test_a_compaction_is_interrupted_and_what_is_queued_is_taken_back(tmp_path: Path) -> None:
    gate = StreamGate()

    async def main(stage: Stage) -> Played:
        async with stage.library() as library:
            run = await stage.start(library, "work")
            await reached(gate)
            assert isinstance(await run.steer("and then?"), Offered)
            await run.cancel("enough")
            return await stage.read(await run.result())

    model = Growing(answer(text("<summary>SO ", gate, "FAR</summary>")))
    with staged(tmp_path, model, options={"auto_compact_window": 100_000}) as stage:
        played = anyio.run(main, stage)

        assert (played.run.status, played.run.stop_reason) == ("cancelled", "user_stop")
        assert len(played.of(ev.CompactionStarted)) == len(played.of(ev.CompactionFailed)) == 1
        assert [(item.delivery, item.status) for item in played.items[1:]] == [
            ("returned", "cancelled")
        ]
        assert times_told(stage.server, "and then?") == 0
        assert "Respond with TEXT ONLY" in stage.server.main_requests[-1].user_text


# -- how it is started


def test_a_process_for_one_turn_takes_a_long_prompt_and_no_follow_up(tmp_path: Path) -> None:
    gate, prompt = StreamGate(), "/many words " * 33_000 + "end"

    async def main(stage: Stage) -> tuple[Played, object]:
        async with stage.library() as library:
            run = await stage.start(library, prompt)
            await reached(gate)
            steered = await run.steer("one more")
            gate.open()
            return await stage.read(await run.result()), steered

    script = [answer(text("All ", gate, "read."))]
    with staged(tmp_path, script, options={"one_shot": True}) as stage:
        played, steered = anyio.run(main, stage)

        assert len(prompt) > 390_000
        assert isinstance(steered, Refused)
        assert (played.run.status, played.run.text) == ("completed", "All read.")
        [ask] = stage.server.main_requests
        assert ask.user_text == prompt
        assert times_told(stage.server, "one more") == 0


def test_the_system_prompt_and_the_tools_are_those_asked_for(tmp_path: Path) -> None:
    with staged(tmp_path, [answer("Yes.")]) as stage:
        run = stage.played("Are you?", system="You are a test.", tools=["Read", "Bash"]).run

        assert run.status == "completed"
        [ask] = stage.server.main_requests
        assert sorted(ask.tools) == ["Bash", "Read"]
        assert ask.body["system"][-1]["text"] == "You are a test."
        assert "You are Claude Code" not in str(ask.body["system"])
