"""How do things look as JSON? Every key is always there; what is not known is null."""

from datetime import date, datetime
from typing import Any, Literal

from msgspec import Struct

from steadyrun.model.agent import OnLimited
from steadyrun.model.approval import ApprovalStatus
from steadyrun.model.budget import Budget, Extended
from steadyrun.model.event import About, Diagnostic, ErrorFact
from steadyrun.model.gate import Gate, GateState, dispatchable, gate_state, opens_at
from steadyrun.model.item import SETTLED, Delivery, Followup, ItemKind, ItemStatus, OnLost
from steadyrun.model.policy import Mode, Tier
from steadyrun.model.run import TERMINAL, Metadata, Run, RunStatus, StopReason
from steadyrun.model.usage import Cost, CostKind, Usage, UsageSum

AgentState = Literal["idle", "running", "waiting", "paused", "gated"]
# What a queued item waits for.
Waiting = Literal["turn", "paused", "budget", "gate", "slot", "daemon"]


class CostSum(Struct, frozen=True):
    """What several runs have cost together, as far as it is known; `unknown_runs` are not in it."""

    usd: float | None
    kind: CostKind
    unknown_runs: int = 0


class AgentDocument(Struct, frozen=True, kw_only=True):
    """An agent and what it does now. `state` is paused also while its last run goes on."""

    id: str
    name: str
    provider: str
    fallback: tuple[str, ...]
    home: str
    role: str | None
    model: str | None
    mode: Mode
    tier: Tier | None
    tools: tuple[str, ...] | None
    deny: tuple[str, ...]
    followup: Followup
    on_lost: OnLost
    on_limited: OnLimited
    approvers: tuple[str, ...]
    origin: Literal["store", "config"]
    state: AgentState
    # When its gate opens, if that is why nothing runs.
    until: datetime | None
    # Why it is paused, if its budget is the reason.
    reason: str | None
    budget: Budget
    # Known to the daemon only.
    process: Literal["idle", "busy", "background"] | None
    item: str | None
    run: str | None
    # How the text of that item begins.
    now: str | None
    queued: int
    resume_token: str | None
    cost_today: CostSum


class TokenDocument(Struct, frozen=True):
    """A conversation of an agent's; the last one has not ended."""

    provider: str
    token: str
    cwd: str
    model: str | None
    bound_at: datetime
    ended: str | None


class AgentPage(AgentDocument, frozen=True, kw_only=True):
    """All there is to know of an agent."""

    system: str | None
    timeout_seconds: float | None
    tokens: tuple[TokenDocument, ...]


class AgentsDocument(Struct, frozen=True):
    agents: tuple[AgentDocument, ...]


class RemovedDocument(Struct, frozen=True):
    id: str
    name: str


class ItemDocument(Struct, frozen=True, kw_only=True):
    """What somebody asked, and what became of it."""

    id: str
    agent: str
    status: ItemStatus
    delivery: Delivery
    run: str | None
    text: str
    reply: str | None
    kind: ItemKind
    followup: Followup
    attempt: int
    # None unless it is queued; `until` is when its gate opens.
    waiting: Waiting | None
    until: datetime | None
    error: ErrorFact | None
    retry_of: str | None
    files: tuple[str, ...]
    created_at: datetime
    started_at: datetime | None
    settled_at: datetime | None


class ItemsDocument(Struct, frozen=True):
    items: tuple[ItemDocument, ...]


class CancelledDocument(Struct, frozen=True):
    """What was asked to end, and how far it has got."""

    run: str | None
    item: str | None
    status: ItemStatus | RunStatus
    stop_reason: StopReason | None

    @property
    def is_over(self) -> bool:
        return self.status in SETTLED or self.status in TERMINAL


class CostRow(Struct, frozen=True):
    """What the runs of `key` have used and cost; null: of no agent, of no model that was named, or
    all together. `unknown_tokens` are those of the runs whose cost is unknown."""

    key: str | None
    runs: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    known_usd: float
    estimated_usd: float
    unknown_runs: int
    unknown_tokens: int


class PriceSource(Struct, frozen=True):
    """Where estimates come from, and the day that list is of."""

    source: str
    published: date


class CostDocument(Struct, frozen=True):
    """What was spent since a moment, or ever; days are those of the time zone."""

    by: Literal["agent", "provider", "model", "day"]
    rows: tuple[CostRow, ...]
    total: CostRow
    since: datetime | None
    timezone: str
    prices: PriceSource | None


class GateDocument(Struct, frozen=True):
    """May this provider be dispatched to now? `run` was the last that it refused, at `hit_at`;
    `level` is how many it has refused since that were let through, one after the other.

    `account` is a fingerprint of credentials and base URL, empty for the machine's own login; only
    the gate of the one that `is_present` is in anybody's way.
    """

    provider: str
    account: str
    state: GateState
    # When it lets somebody through by itself.
    until: datetime | None
    level: int
    dispatchable: bool
    reason: str | None
    probe: str | None
    run: str | None
    hit_at: datetime | None
    is_present: bool


class GatesDocument(Struct, frozen=True):
    gates: tuple[GateDocument, ...]


class ApprovalDocument(Struct, frozen=True, kw_only=True):
    """What a person was asked, and what they said: an answer is on its way until it is resolved.

    Of a budget: who goes on instead, and how much may be spent now (`extended`).
    """

    id: str
    agent: str
    run: str
    status: ApprovalStatus
    tool_name: str
    tool_input: Any
    tool_call_id: str | None
    offers_always: bool
    asked_at: datetime
    verdict: Literal["allow", "deny"] | None
    by: str | None
    reason: str | None
    always: bool | None
    answered_at: datetime | None
    about: About
    provider: str | None
    extended: tuple[Extended, ...]


class ApprovalsDocument(Struct, frozen=True):
    approvals: tuple[ApprovalDocument, ...]


class LiveCount(Struct, frozen=True):
    """How many there are, and may be."""

    live: int
    most: int


class DaemonDocument(Struct, frozen=True):
    pid: int
    version: str
    home: str
    started_at: datetime
    runs: LiveCount
    processes: LiveCount
    is_draining: bool


class StatusDocument(Struct, frozen=True):
    daemon: DaemonDocument
    agents: tuple[AgentDocument, ...]
    gates: tuple[GateDocument, ...]


class StoppedDocument(Struct, frozen=True):
    """What became of the runs when the daemon went down: stopped, left to their keepers; and how
    many items are queued for the next one. None where it did not say."""

    stopped: int | None
    kept: int | None
    queued: int | None


class StreamStart(Struct, frozen=True):
    """A stream has begun: what it tells comes after this cursor."""

    as_of: int


class RunDocument(Struct, frozen=True, kw_only=True):
    run: str
    agent: str
    item: str | None
    provider: str
    model: str | None
    status: RunStatus
    stop_reason: StopReason | None
    text: str | None
    usage: Usage
    cost: Cost
    resume_token: str | None
    duration_ms: int | None
    exit_code: int | None
    error: ErrorFact | None
    diagnostic: Diagnostic | None
    events: int
    tools: int
    metadata: Metadata
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


def build_run_document(run: Run, agent_name: str) -> RunDocument:
    same = {
        name: getattr(run, name)
        for name in RunDocument.__struct_fields__
        if name not in {"run", "agent"}
    }
    return RunDocument(run=run.id, agent=agent_name, **same)


def build_gate_document(gate: Gate, now: datetime, *, is_present: bool) -> GateDocument:
    is_open = dispatchable(gate, now)
    return GateDocument(
        gate.provider,
        gate.account,
        gate_state(gate, now),
        opens_at(gate, now),
        gate.level,
        is_open,
        None if is_open else gate.reason,
        gate.probe,
        gate.run,
        gate.hit_at,
        is_present,
    )


def build_cost_sum(usage: UsageSum) -> CostSum:
    """Money that is not known is counted, never taken for nothing."""
    if usage.runs and usage.unknown_cost_runs == usage.runs:
        return CostSum(None, "unknown", usage.unknown_cost_runs)
    kind: CostKind = "estimated" if usage.estimated_usd else "known"
    return CostSum(usage.known_usd + usage.estimated_usd, kind, usage.unknown_cost_runs)
