"""Documents have every key, and unknown values are not zero."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from steadyrun.model.gate import Gate
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.run import Run
from steadyrun.model.usage import UsageSum
from steadyrun.operations.documents import CostSum
from steadyrun.operations.views import build_cost_sum, build_gate_document, build_run_document

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (UsageSum(), CostSum(0.0, "known")),
        (UsageSum(runs=2, known_usd=1.5), CostSum(1.5, "known")),
        (UsageSum(runs=2, known_usd=1.5, estimated_usd=0.5), CostSum(2.0, "estimated")),
        (UsageSum(runs=2, unknown_cost_runs=2), CostSum(None, "unknown", 2)),
        (UsageSum(runs=3, known_usd=1.0, unknown_cost_runs=1), CostSum(1.0, "known", 1)),
    ],
)
def test_cost_sum_counts_runs_with_an_unknown_cost(usage: UsageSum, cost: CostSum) -> None:
    assert build_cost_sum(usage) == cost


def test_gate_is_ready_at_the_end_of_its_closing_time() -> None:
    gate = Gate("claude", is_closed=True, until=NOW, reason="limit")

    before = build_gate_document(gate, NOW - timedelta(seconds=1), is_present=True)
    then = build_gate_document(gate, NOW, is_present=True)

    assert (before.state, before.until, before.dispatchable, before.reason) == (
        "closed", NOW, False, "limit",
    )  # fmt: skip
    assert (then.state, then.until, then.dispatchable, then.reason) == ("ready", None, True, None)


def test_run_document_has_every_key() -> None:
    run = Run(RunId("run_1"), AgentId("agt_1"), None, "claude", NOW)

    document = msgspec.to_builtins(build_run_document(run, "ada"))

    assert list(document) == [
        "run", "agent", "item", "provider", "model", "status", "stop_reason", "text", "usage",
        "cost", "resume_token", "duration_ms", "exit_code", "error", "diagnostic", "events",
        "tools", "events_pruned", "text_pruned", "metadata", "created_at", "started_at", "ended_at",
    ]  # fmt: skip
    assert (document["run"], document["agent"]) == ("run_1", "ada")
