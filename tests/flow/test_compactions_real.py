"""Real CLIs compact a conversation in a turn, with messages, cancellation and failures."""

from pathlib import Path

import pytest

from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import AnswerTokens, answer, make_text
from steadyrun.testing.model_servers.faults import Refusal, StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    Cli,
    cli_harness,
    count_sent,
    each_cli,
    final_texts,
    followup_outcomes,
    reply_texts,
    steer_and_wait,
    wait_for_gate,
)

# The settings with which a CLI compacts: Claude Code above about 67,000 tokens, Codex above 50,000.
OPTIONS = {
    "claude": {"auto_compact_window": 100_000},
    "codex": {"auto_compact_token_limit": 50_000},
}
REQUESTS = {"claude": "Respond with TEXT ONLY", "codex": "CONTEXT CHECKPOINT COMPACTION"}
SUMMARY = "SO FAR: some rounds."


class GrowingModel:
    """A model that works in rounds with more and more tokens, until it is compacted."""

    def __init__(self, cli: Cli, summary: ServerStep, last: ServerStep | None = None) -> None:
        self._cli, self._summary, self._last = cli, summary, last or answer("At last.")

    def __call__(self, request: ModelRequest) -> ServerStep:
        if self.is_compaction(request):
            return self._summary
        rounds = self.count_rounds(request)
        if rounds == 6 or "SO FAR" in str(request.messages):
            return self._last
        command = self._cli.run_command(f"echo round {rounds}")
        return answer(command, tokens=AnswerTokens(20_000 * (rounds + 1), 50))

    def is_compaction(self, request: ModelRequest) -> bool:
        return REQUESTS[self._cli.name] in str(request.messages[-1])

    def count_rounds(self, request: ModelRequest) -> int:
        result = "'tool_result'" if self._cli is CLAUDE else "'function_call_output'"
        return str(request.messages).count(result)


def summarize(cli: Cli, gate: StreamGate | None = None) -> ServerStep:
    """The model's summary, which comes to the gate in its middle."""
    first, last = ("<summary>SO ", "</summary>") if cli is CLAUDE else ("SO ", "")
    rest, pauses = f"{SUMMARY.removeprefix('SO ')}{last}", [gate] if gate else []
    return answer(make_text(first, *pauses, rest), tokens=AnswerTokens(100, 50))


@each_cli
def test_conversation_compacted_in_a_turn_continues(tmp_path: Path, cli: Cli) -> None:
    gate = StreamGate()
    model = GrowingModel(cli, summarize(cli), answer(make_text("At ", gate, "last.")))
    with cli_harness(tmp_path, model, cli=cli, options=OPTIONS[cli.name]) as harness:

        async def steer(run: RunHandle) -> None:
            """Claude Code has the next message in the compacted conversation."""
            await wait_for_gate(gate)
            if cli is CLAUDE:
                await steer_and_wait(harness, run, "and then?")
            gate.open()

        record = harness.run("work FOR LONG", steer)

        replies = ["At last."] * (2 if cli is CLAUDE else 1)
        assert reply_texts(record) == final_texts(record) == replies
        assert [each.trigger for each in record.events_of(ev.CompactionStarted)] == ["auto"]
        [done] = record.events_of(ev.CompactionCompleted)
        limit = 67_000 if cli is CLAUDE else 50_000
        assert (done.tokens_before or 0) > limit > (done.tokens_after or 0) > 0
        assert record.events_of(ev.CompactionFailed) == []
        requests = harness.server.main_requests
        place = [model.is_compaction(request) for request in requests].index(True)
        before, after, *more = (requests[place - 1], *requests[place + 1 :])
        assert [request.user_text for request in more] == ["and then?"] * (len(replies) - 1)
        assert "FOR LONG" in str(before.messages)
        assert SUMMARY in str(after.messages)
        assert count_sent(harness.server, SUMMARY) == 1
        if cli is CLAUDE:
            # The first text is in the summary only, and the result of the tool is not lost.
            assert "FOR LONG" not in str(after.messages)
            assert f"round {place - 1}" in str(after.results)
        else:
            assert requests[place].tools == ()
            assert done.tokens_before == 60_050
        # The session has one token, and every request is counted.
        assert len(record.events_of(ev.TokenBound)) == 1
        assert record.events_of(ev.TokenRotated) == []
        rounds = 20_000 * sum(range(1, place + 1))
        assert record.run.usage.input_tokens == rounds + 100 + 10


@pytest.mark.parametrize(
    ("cli", "is_cancelled"),
    [(CLAUDE, True), (CODEX, True), (CODEX, False)],
    ids=["claude, cancelled", "codex, cancelled", "codex"],
)
def test_message_in_a_compaction_is_absorbed_or_returned_by_cancel(
    tmp_path: Path, cli: Cli, is_cancelled: bool
) -> None:
    gate = StreamGate()
    model = GrowingModel(cli, summarize(cli, gate))
    with cli_harness(tmp_path, model, cli=cli, options=OPTIONS[cli.name]) as harness:

        async def steer(run: RunHandle) -> None:
            await wait_for_gate(gate)
            await steer_and_wait(harness, run, "and then?")
            if is_cancelled:
                await run.cancel("enough")
            else:
                gate.open()

        record = harness.run("work", steer)

        assert len(record.events_of(ev.CompactionStarted)) == 1
        assert len(record.events_of(ev.CompactionFailed)) == int(is_cancelled)
        assert len(record.events_of(ev.CompactionCompleted)) == int(not is_cancelled)
        assert count_sent(harness.server, "and then?") == int(not is_cancelled)
        if is_cancelled:
            assert (record.run.status, record.run.stop_reason) == ("cancelled", "user_stop")
            assert followup_outcomes(record) == {"and then?": ("returned", "cancelled")}
            assert model.is_compaction(harness.server.main_requests[-1])
        else:
            assert followup_outcomes(record) == {"and then?": ("absorbed", "completed")}
            assert reply_texts(record) == ["At last."]


@each_cli
def test_failed_compaction_ends_the_turn_of_codex_only(tmp_path: Path, cli: Cli) -> None:
    model = GrowingModel(cli, Refusal("invalid", message="no summary today"))
    with cli_harness(tmp_path, model, cli=cli, options=OPTIONS[cli.name]) as harness:
        record = harness.run("work")

        failed = len(record.events_of(ev.CompactionFailed))
        assert failed == len(record.events_of(ev.CompactionStarted)) >= 1
        assert record.events_of(ev.CompactionCompleted) == []
        if cli is CLAUDE:
            assert (record.run.status, record.run.text) == ("completed", "At last.")
            assert model.count_rounds(harness.server.main_requests[-1]) == 6
        else:
            assert (record.run.status, failed) == ("failed", 1)
            assert record.run.error
            assert "no summary today" in record.run.error.message
