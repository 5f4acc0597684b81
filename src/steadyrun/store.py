"""The contract of the system of record: verbs of the domain, never SQL.

`Store` is composed of one Protocol for each subject. The promises below hold for every verb, and
`steadyrun.testing.store_conformance` checks every engine against them.

- A write that has returned is durable: it survives kill -9 of any process. Only `append` may lose
  its last moments to a power cut, and then the journal of the process still has them.
- Every write by a holder names its lease. When the lease is no longer valid, the verb raises
  `LeaseLost` and writes nothing. That is final.
- Every verb may be repeated. Accepting a key again, appending the same events again, finishing a
  finished run or cancelling a settled item changes nothing.
- A verb that raises has changed nothing.
- A write that has begun is completed even if its caller is cancelled, and the caller still gets the
  result, so that it can release what it has claimed. A caller that is cancelled before the write
  begins writes nothing.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, Protocol

from msgspec import Struct

from steadyrun.lib.notifier import FALLBACK_POLL_SECONDS, Notifier
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval, ApprovalAnswer
from steadyrun.model.batch import AppendResult, Batch
from steadyrun.model.event import Emitted, StoredEvent
from steadyrun.model.gate import Accounts, Gate, GateReport
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.process import Process
from steadyrun.model.retention import PrunePosition, PruneStep, RetentionLimits
from steadyrun.model.run import Created, Run, RunChange
from steadyrun.model.session import Session
from steadyrun.model.usage import UsageSum

# How long the key of an accepted message is kept.
DEDUP_RETENTION = timedelta(days=14)
PAGE = 500
# The key of the name of the store's generation, which a restore changes. The first one has no name.
GENERATION = "generation"
# The most text that is offered to a run at once.
MAX_OFFER_BYTES = 64 * 1024

Grouping = Literal["agent", "provider", "model", "day"]
# "idle": nothing is queued. "ready": an item can be claimed. "held": an item runs. "warm": the
# holder keeps only a process.
LaneStatus = Literal["idle", "ready", "held", "warm"]
OfferOutcome = Literal["absorbed", "returned"]


class Holder(Struct, frozen=True):
    """A process that may own lanes for as long as it is alive.

    `is_alive` is read from the operating system, not from the record. A holder whose process has
    ended without `leave` is listed until another holder reaps it, and is not alive."""

    id: HolderId
    kind: str
    machine: str
    version: str
    joined_at: datetime
    is_alive: bool = True


class Lane(Struct, frozen=True):
    """An agent's queue and its owner. The lane can be claimed from `ready_at` on; a lane that has
    an owner can be claimed only by that owner."""

    agent: AgentId
    status: LaneStatus = "idle"
    is_paused: bool = False
    ready_at: datetime | None = None
    holder: HolderId | None = None
    fence: int = 0
    last_seq: int = 0
    queued: int = 0
    event_seq: int = 0


class Started(Struct, frozen=True):
    """What the holder gets with a new run."""

    claim: Claim
    run: Run
    # As it works in this run: the chosen provider comes first (`Agent.with_provider`).
    agent: Agent
    # With the provider of the run.
    session: Session | None
    # The newest open process of the agent.
    process: Process | None
    # The item's previous run.
    before: Run | None
    # Whether the gate admits no other run until this run has shown that the provider works.
    is_probe: bool = False


class Start(Struct, frozen=True):
    """How an accepted message is started at once; see `QueueStore.start` for the fields."""

    holder: HolderId
    create_run: Callable[[Agent, Item], Created]
    excluded: Collection[str] = ()


class Accepted(Struct, frozen=True):
    """The item of a message, whether it is new, and the run that was started with it."""

    item: Item
    is_new: bool
    started: Started | None = None

    def with_started(self, started: Started) -> "Accepted":
        item = started.claim.item
        return Accepted(item if item.id == self.item.id else self.item, self.is_new, started)


class AbandonedLane(Struct, frozen=True):
    """A lane whose holder is dead, after it was taken over. `lease` is a `Claim` unless the lane
    was warm."""

    lease: Lease
    agent: Agent
    # The run of the claim's item.
    run: Run | None
    # The open processes of the agent, oldest first.
    processes: tuple[Process, ...]


class AgentOverview(Struct, frozen=True):
    """What a list of agents shows about one of them, read at one moment."""

    agent: Agent
    lane: Lane
    # With the agent's provider.
    session: Session | None
    # The item that runs in its lane and the run of that item; both None once the run has ended.
    item: Item | None
    run: RunId | None
    # Over the runs that were created since the given time.
    usage: UsageSum


class LaneSnapshot(Struct, frozen=True):
    """What a worker needs to continue with a lane and a process that it did not start."""

    run: Run | None
    # With the provider of the run, else of the newest open process, else of the agent's first one.
    session: Session | None
    # The items of the lane that were offered or returned and are not settled, in order.
    followups: tuple[Item, ...]
    # The events of the run whose kind is in `SNAPSHOT_KINDS`, in order.
    events: tuple[Emitted, ...]
    # Whether a queued item may be offered to the run.
    has_steerable: bool


class PendingRequests(Struct, frozen=True):
    """Work for the holder of a lane in which an item runs: cancellations, follow-ups, answers."""

    agent: AgentId
    # Running or offered items that were asked to stop.
    cancelled: tuple[ItemId, ...]
    # Whether a queued item may be offered to the run.
    has_steerable: bool
    # Answers that the asking process has not received yet, oldest question first.
    answers: tuple[Approval, ...] = ()


class AnswerEffects(Struct, frozen=True):
    """What changes together with an answer: values under keys, an agent (the new one, and the one
    that was read), and an item that is cancelled for the reason of the answer."""

    values: Mapping[str, bytes] = {}
    agent: tuple[Agent, Agent] | None = None
    cancels: ItemId | None = None


class AgentStore(Protocol):
    """Agents, their sessions with providers, and whether their lanes are paused."""

    async def add_agent(self, agent: Agent) -> None:
        """Add an agent and its empty lane; `NameTaken` if the name is in use."""

    async def set_agent(self, agent: Agent, *, was: Agent) -> None:
        """Replace the stored agent `was` by `agent`; `ChangeRefused` if the stored agent is no
        longer `was`. A run in progress continues with the old settings."""

    async def remove_agent(self, agent: AgentId) -> None:
        """Remove an agent whose lane is idle, else `ChangeRefused`. Its record stays, and it can
        still be read by its id. Its name is free, and no message is accepted for it."""

    async def agent(self, name: str) -> Agent:
        """The agent of that name or id, else `NotFound`."""

    async def agents(self) -> list[Agent]:
        """The lasting agents by name."""

    async def sessions(
        self,
        agent: AgentId | None = None,
        *,
        provider: str | None = None,
        token: str | None = None,
    ) -> dict[str, Session]:
        """Sessions by their provider: of that agent, with that provider, with that present token.
        If several agents have one with a provider, that of the newest agent is returned."""

    async def retire_token(self, lease: Lease, provider: str, reason: str) -> None:
        """Move the present token of the session to its history, with the reason. The session has no
        present token then."""

    async def lane(self, agent: AgentId) -> Lane:
        """The lane of the agent, else `NotFound`."""

    async def set_paused(self, agent: AgentId, *, is_paused: bool) -> None:
        """Set whether the items of this lane wait; a run in progress continues.

        A run that ends for a budget, and a question about a budget, pause the lane in their own
        transaction. The answer to that question resumes the lane unless it was also paused by this
        verb."""


class QueueStore(Protocol):
    """Items, the holders that run them, and how an item starts."""

    async def accept(self, message: Message, start: Start | None = None) -> Accepted:
        """Store a message at the end of its agent's lane. The same key again is the same item.

        With `start`, the next item of that lane is started in the same transaction, if possible.
        """

    async def cancel(self, item: ItemId, reason: str | None = None) -> Item:
        """Cancel a queued item, or ask the holder of a running item to stop it. A settled item
        stays as it is.

        The item keeps the first reason as its error; an item that completes or fails in spite of
        the request loses the reason."""

    async def item(self, item: ItemId) -> Item:
        """The item, else `NotFound`."""

    async def items(
        self,
        agent: AgentId | None = None,
        *,
        include_settled: bool = False,
        before: ItemId | None = None,
        limit: int = PAGE,
    ) -> list[Item]:
        """A page of items, newest first."""

    async def join(self, kind: str) -> Holder:
        """Become a holder: alive until `leave` or until this process ends in any way."""

    async def leave(self, holder: HolderId) -> None:
        """Stop being a holder. `reap` takes over the lanes that it still owns."""

    async def holders(self) -> list[Holder]:
        """The holders that have joined and were not removed, by id, with whether each is alive.

        A lane whose holder is not among the living ones is abandoned: `reap` takes it over."""

    async def reap(self, holder: HolderId, *, lasting: bool = True) -> list[AbandonedLane]:
        """Take over, with a higher fence, every lane whose holder is dead, held or warm. Without
        `lasting`, only those of direct agents. The dead holders are removed.

        This starts nothing: the new holder adopts the living processes and settles, retries or
        releases each lane."""

    async def start(
        self,
        holder: HolderId,
        create_run: Callable[[Agent, Item], Created],
        limit: int = 1,
        *,
        agent: AgentId | None = None,
        excluded: Collection[str] = (),
    ) -> list[Started]:
        """Claim up to `limit` ready lanes and create the run of the head item of each, in one
        transaction. The lane that has been ready longest is first; with `agent`, only that agent's
        lane.

        A held, paused or empty lane is never claimed, and two holders never get the same lane. A
        warm lane is claimed only by its own holder and keeps its fence. The lane of a direct agent
        is claimed only by name. The work goes to the first provider of the agent's chain whose gate
        is not closed. A lane is passed over if there is none, or if that provider is suspect
        (`find_unavailable_providers`) or `excluded`. A gate that is ready admits one run until that
        run has shown whether the provider works.

        `create_run` gets the agent with the chosen provider first. It may be called in any thread
        and must have no effect besides its result; what it raises is raised, and nothing is
        claimed. A holder that was removed because it seemed dead gets `HolderGone`, here and in
        `start_direct` and `reap`.
        """

    async def start_direct(
        self,
        holder: HolderId,
        agent: Agent,
        message: Message,
        create_run: Callable[[Agent, Item], Created],
    ) -> Started:
        """Add an agent, accept its first message and start it, in one transaction.
        `ChangeRefused` if the gates of all its providers are closed."""

    async def release_lane(self, lease: Lease) -> None:
        """Give up a warm lane: it is ready if an item is queued, else idle. `ChangeRefused` if an
        item runs in it by now."""


class RunStore(Protocol):
    """Runs in progress: their changes, processes, follow-ups and ends."""

    async def change(self, claim: Claim, run: RunId, change: RunChange) -> Run:
        """Apply a change to a run of the claim's agent; row and event in one transaction.

        `Created` binds the run to the claim's item.
        """

    async def run(self, run: RunId) -> Run:
        """The run, else `NotFound`."""

    async def runs(
        self, agent: AgentId | None = None, *, before: RunId | None = None, limit: int = 50
    ) -> list[Run]:
        """A page of runs, newest first."""

    async def open_process(self, lease: Lease, process: Process) -> None:
        """Store a new process of the lease's agent."""

    async def close_process(self, lease: Lease, process: ProcessId) -> None:
        """Note that a process has ended. The first time is kept."""

    async def processes(self, ids: Collection[ProcessId] | None = None) -> list[Process]:
        """Those of these processes that are stored, or all that were not closed; oldest first."""

    async def pending_requests(self, holder: HolderId) -> list[PendingRequests]:
        """The requests to this holder, for those of its lanes in which an item runs."""

    async def offer_followups(
        self, claim: Claim, limit: int = 1, *, max_bytes: int = MAX_OFFER_BYTES
    ) -> list[Item]:
        """Offer queued follow-ups of the lane to the claim's run, in order; they are `offered`.

        An item that has to wait for its own run (`queue`) or was returned is never offered. The
        texts have `max_bytes` together at most, but the first is offered at any length.
        """

    async def close_offer(self, claim: Claim, item: ItemId, outcome: OfferOutcome) -> None:
        """Store what became of an offered follow-up. `absorbed`: the claim's run has taken it, and
        the item ends with the run. `returned`: the item is queued again in its old place, and is
        not offered any more."""

    async def continue_with(self, lease: Lease, to: ItemId | Message) -> Claim:
        """Run the item of a turn that the CLI has begun already, under the same fence. It runs
        before what is queued, also if the lane is paused or the gate is closed.

        `to` is an offered follow-up, or a message for a turn that the process has begun by itself
        (kind "self"). With a `Claim`, its item, whose run has ended, is settled in the same
        transaction, and the lane stays held in between. What the run absorbed is settled with it;
        other offers stay for the next run. The old claim can settle, retry and create nothing any
        more: `ChangeRefused`. With a `Lease`, the lane must be warm: it has no offers.
        """

    async def retry(self, claim: Claim, *, spends: bool) -> Claim:
        """Prepare the claim's item, whose run has ended, for another run under the same claim. The
        ended run is its `before` now. `spends`: this counts as one of the item's tries.

        What the run absorbed and what it was offered is queued again, `returned`. An item that had
        begun as a follow-up is sent like any other from now on. An item that was asked to stop is
        not run again: `ChangeRefused`.
        """

    async def settle(
        self,
        claim: Claim,
        change: RunChange | None = None,
        batch: Batch | None = None,
        *,
        keep_warm: bool = False,
    ) -> Item:
        """End the claim in one transaction: append `batch`, apply `change` to the run of the item,
        settle the items that it ran.

        The run must be terminal then. `compute_item_status` and `compute_absorbed_status` decide
        what becomes of the item and of what the run absorbed; open offers are returned. A failed
        item has the error of its run. The lane is ready again if an item is queued.

        With `keep_warm` the lane stays with its holder, warm, under the same fence, because its
        process waits for the next item. The claim can run nothing more (`ChangeRefused`); as a
        `Lease` it is valid until the lane is released or taken over.
        """


class EventStore(Protocol):
    """The events of all runs, in one order."""

    async def append(self, lease: Lease, batch: Batch) -> AppendResult:
        """Write a batch if it begins where the record of its process ends.

        A repeated batch is written once: events wholly before the stored offset, and events of the
        runtime whose number is stored, are left out. Any other position is `OffsetMismatch`. A run
        that has ended takes no more events: `ChangeRefused`.
        """

    async def events(
        self,
        after: int = 0,
        *,
        agent: AgentId | None = None,
        run: RunId | None = None,
        limit: int = PAGE,
        newest: bool = False,
    ) -> list[StoredEvent]:
        """The first events with a higher cursor, or the newest of them; oldest first. Of a run, of
        an agent or of all. If they are large, there may be fewer than `limit` of the first ones,
        but none only if there are none."""


class ApprovalStore(Protocol):
    """Questions to persons. `append` stores and settles them; the end of a run withdraws its
    questions about tools, and the removal of an agent withdraws the others."""

    async def answer(
        self, approval: ApprovalId, answer: ApprovalAnswer, effects: AnswerEffects | None = None
    ) -> Approval:
        """Answer an open question, with its effects, in one transaction. The same answer again
        changes nothing; any other answer, or one to a settled question, is `ChangeRefused` and has
        no effect: the first answer counts.

        An answer about a budget settles the question and is an event of the agent. If it allows
        more, the lane may be claimed again."""

    async def approval(self, approval: ApprovalId) -> Approval:
        """The question, else `NotFound`."""

    async def approvals(
        self,
        agent: AgentId | None = None,
        *,
        include_settled: bool = False,
        matching: str | None = None,
        limit: int = PAGE,
    ) -> list[Approval]:
        """Questions, newest first. `matching` is the beginning or the end of an id, for ids typed
        by hand."""


class GateStore(Protocol):
    """The gates of providers: whether runs may be sent to an account."""

    async def update_gate(
        self, provider: str, report: GateReport, *, account: str | None = None
    ) -> Gate:
        """Update the gate of an account, or of the present account; `step_gate` decides
        what becomes of the gate. A change is an event of no agent, in the same transaction. A run
        that begins or ends reports to the gate of its account in its own transaction."""

    async def gates(self, *, include_others: bool = False) -> list[Gate]:
        """The gates of the present accounts that were ever updated, or of all accounts."""


class ReadViews(Protocol):
    """Reads that serve one screen or one step of the runtime each."""

    async def agent_overviews(
        self, since: datetime, *, agent: AgentId | None = None
    ) -> list[AgentOverview]:
        """What a list of agents shows, by name, for the lasting agents or one of them."""

    async def lane_snapshots(
        self, lanes: Mapping[AgentId, RunId | None]
    ) -> dict[AgentId, LaneSnapshot]:
        """A snapshot of each of these lanes and of a run of its agent; `NotFound` for an agent or
        a run that is not stored."""

    async def usage(
        self,
        by: Grouping,
        *,
        agent: AgentId | None = None,
        since: datetime | None = None,
        zone: tzinfo = UTC,
    ) -> dict[str, UsageSum]:
        """Totals over the runs created since then, for each name of the grouping. The empty name
        has the runs of direct agents, or the runs without a model. A day is a date in the zone;
        `add_up` adds up the totals."""


class KeyValueStore(Protocol):
    """Values that have no table of their own."""

    async def put(self, key: str, value: bytes) -> None:
        """Store a value under a key, in place of the one before."""

    async def get(self, key: str) -> bytes | None:
        """The value under a key."""


class Store(
    AgentStore,
    QueueStore,
    RunStore,
    EventStore,
    ApprovalStore,
    GateStore,
    ReadViews,
    KeyValueStore,
    Protocol,
):
    """The system of record."""

    hints: Notifier
    # As this process is configured: a run for a provider passes the gate of this account.
    accounts: Accounts

    def take_commit_seconds(self) -> float:
        """How long the longest commit since the last call took, or takes if it is not done yet. A
        store without commits returns 0."""

    async def close(self) -> None:
        """Finish the writes that have begun and free all resources. Closing twice is allowed."""


class Maintenance(Protocol):
    """Deletes what is old, in the background. No run needs these verbs.

    Each call is one short write, so that other writers wait only for a moment."""

    async def prune(
        self,
        limits: RetentionLimits,
        position: PrunePosition | None = None,
        *,
        is_dry: bool = False,
    ) -> PruneStep:
        """Do one step of a pruning; with `is_dry`, only count. Call it again with the position of
        the answer until there is none. A pruning that was cut off is begun again.

        Events are deleted by whole runs, from an agent's first event on, up to the first run that
        is kept: one that has not ended, has an unsettled question, belongs to an unsettled item,
        or has an event or a beginning after the limit. Events of no run are deleted with what
        surrounds them. The last event of all is kept, numbers and cursors are never used again,
        and counts and costs of runs do not change.

        Texts are the text of a run that ended before the limit, and the text and the reply of an
        item that was settled before it. Run and item stay, and note that they were pruned.
        """

    async def pruned_to(self, agent: AgentId | None = None) -> int:
        """The cursor of the last event that was pruned, of an agent or of all; 0: none was."""

    async def release_space(self) -> int:
        """Give a part of the space that is free inside the store back to the file system. Returns
        how many bytes are left to give back; 0 also if the store cannot give back any."""


class MaintainedStore(Store, Maintenance, Protocol):
    """A store together with its maintenance: what every engine is."""


async def follow(
    store: Store,
    after: int = 0,
    *,
    agent: AgentId | None = None,
    run: RunId | None = None,
    poll_seconds: float = FALLBACK_POLL_SECONDS,
) -> AsyncGenerator[StoredEvent, None]:
    """Yield every event after a cursor: the stored ones, then each new one when it is committed.
    The generator never ends."""
    with store.hints.watch(agent) as watch:
        while True:
            page: Sequence[StoredEvent] = await store.events(after, agent=agent, run=run)
            for event in page:
                yield event
                after = event.cursor
            if not page:
                await watch.wait(poll_seconds)
