"""The documents that operations return, as JSON: every key is always present, unknown is null."""

from datetime import date, datetime
from typing import Any, Literal

from msgspec import Struct

from steadyrun.model.agent import OnLimited
from steadyrun.model.approval import ApprovalStatus
from steadyrun.model.budget import Budget, BudgetExtension
from steadyrun.model.event import ApprovalTopic, Diagnostic, ErrorFact
from steadyrun.model.gate import GateState
from steadyrun.model.health import HealthReading
from steadyrun.model.item import SETTLED, Delivery, Followup, ItemKind, ItemStatus, OnLost
from steadyrun.model.policy import Mode, Tier
from steadyrun.model.run import TERMINAL, Metadata, RunStatus, StopReason
from steadyrun.model.usage import Cost, CostKind, Usage

AgentState = Literal["idle", "running", "waiting", "paused", "gated"]
# The reason why a queued item does not run yet.
Waiting = Literal["turn", "paused", "budget", "gate", "slot", "daemon"]


class CostSum(Struct, frozen=True):
    """The known cost of several runs. The cost of `unknown_runs` more runs is not known."""

    usd: float | None
    kind: CostKind
    unknown_runs: int = 0


class AgentDocument(Struct, frozen=True, kw_only=True):
    """An agent and its current state. A paused agent may still have a run in progress."""

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
    # When the gate opens, if the state is `gated`.
    until: datetime | None
    # Why the agent is paused, if a spent budget is the reason; why the gate is closed, if gated.
    reason: str | None
    budget: Budget
    # Only the daemon has this; null without one.
    process: Literal["idle", "busy", "background"] | None
    item: str | None
    run: str | None
    # The beginning of the text of that item.
    now: str | None
    queued: int
    resume_token: str | None
    cost_today: CostSum


class TokenDocument(Struct, frozen=True):
    """A conversation of an agent with a provider. The current one has not ended."""

    provider: str
    token: str
    cwd: str
    model: str | None
    bound_at: datetime
    ended: str | None


class AgentPage(AgentDocument, frozen=True, kw_only=True):
    """An agent with all its settings and conversations."""

    system: str | None
    timeout_seconds: float | None
    tokens: tuple[TokenDocument, ...]


class AgentsDocument(Struct, frozen=True):
    agents: tuple[AgentDocument, ...]


class RemovedDocument(Struct, frozen=True):
    id: str
    name: str


class ItemDocument(Struct, frozen=True, kw_only=True):
    """A message to an agent, and its result."""

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
    # None unless the item is queued. `until` is when the gate opens, and `reason` why it is closed.
    waiting: Waiting | None
    until: datetime | None
    reason: str | None = None
    error: ErrorFact | None
    retry_of: str | None
    files: tuple[str, ...]
    # Whether text and reply were deleted because they are old.
    text_pruned: bool = False
    created_at: datetime
    started_at: datetime | None
    settled_at: datetime | None


class ItemsDocument(Struct, frozen=True):
    items: tuple[ItemDocument, ...]


class CancelledDocument(Struct, frozen=True):
    """The state of a run or an item that was cancelled."""

    run: str | None
    item: str | None
    status: ItemStatus | RunStatus
    stop_reason: StopReason | None

    @property
    def is_over(self) -> bool:
        return self.status in SETTLED or self.status in TERMINAL


class CostRow(Struct, frozen=True):
    """Tokens and costs of the runs of one `key`. The key is null for runs without an agent or a
    model, and for the total. `unknown_tokens` belong to the runs with an unknown cost."""

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
    """The price list that estimates are based on, and its date."""

    source: str
    published: date


class CostDocument(Struct, frozen=True):
    """Tokens and costs since a moment, or of all time. Days are those of the time zone."""

    by: Literal["agent", "provider", "model", "day"]
    rows: tuple[CostRow, ...]
    total: CostRow
    since: datetime | None
    timezone: str
    prices: PriceSource | None


class GateDocument(Struct, frozen=True):
    """Whether a provider may be used now. `run` was the last refused run, at `hit_at`; `level` is
    the number of probe runs that were refused since, one after the other.

    `account` is a fingerprint of credentials and base URL, empty for the login of the machine.
    Only the gate of the account in use (`is_present`) holds back runs.
    """

    provider: str
    account: str
    state: GateState
    # When the gate opens without a command.
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
    """A request of an agent, and the answer to it. The answer has reached the agent when the status
    is `resolved`.

    About a budget: `provider` is the new provider, and `extended` has the new limits.
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
    about: ApprovalTopic
    provider: str | None
    extended: tuple[BudgetExtension, ...]


class ApprovalsDocument(Struct, frozen=True):
    approvals: tuple[ApprovalDocument, ...]


class LiveCount(Struct, frozen=True):
    """The present number and the limit."""

    live: int
    most: int


class DaemonDocument(Struct, frozen=True):
    """The daemon. `health` has what it measures of itself."""

    pid: int
    version: str
    home: str
    started_at: datetime
    runs: LiveCount
    processes: LiveCount
    is_draining: bool
    health: tuple[HealthReading, ...] = ()


class AsideDocument(Struct, frozen=True):
    """A process that was set aside, and why."""

    process: str
    reason: str


class StatusDocument(Struct, frozen=True):
    daemon: DaemonDocument
    agents: tuple[AgentDocument, ...]
    gates: tuple[GateDocument, ...]
    set_aside: tuple[AsideDocument, ...] = ()


class StoppedDocument(Struct, frozen=True):
    """How many runs the daemon stopped or left to their keepers, and how many items are queued.
    None if the daemon ended before it could answer."""

    stopped: int | None
    kept: int | None
    queued: int | None


class StreamStart(Struct, frozen=True):
    """The cursor after which a stream of events begins. Events up to the cursor `pruned_to` are
    deleted: a caller with a lower cursor has missed some of them."""

    as_of: int
    pruned_to: int = 0


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
    # Whether the events, or the text, were deleted because they are old.
    events_pruned: bool = False
    text_pruned: bool = False
    metadata: Metadata
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
