"""What does the runtime ask of its system of record? Domain verbs, never SQL.

The promises stand here once; `steadyrun.testing` checks every engine against them.

- What a verb returned is durable: it survives kill -9 of anything. Only `append` may lose its last
  moments to a power cut, and then the journal still has them.
- Every write by a holder names its claim. When the claim is over it raises `LeaseLost` and nothing
  is written: final.
- Anything may be said twice. Accepting a key again, appending the same events again, finishing a
  finished run or cancelling a settled item changes nothing.
- A verb that raises has changed nothing.
- A write that was begun is carried to its end also when its caller is cancelled meanwhile, and the
  caller still gets its answer: what was claimed can be given back. None begins once cancelled.
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
from steadyrun.model.run import Created, Run, RunChange
from steadyrun.model.session import ResumeToken, Session
from steadyrun.model.usage import Cost, UsageSum

# How long a key is remembered after its item was accepted.
DEDUP_RETENTION = timedelta(days=14)
PAGE = 500
# What a CLI is given at once, at most.
MOST_TAKEN_BYTES = 64 * 1024

Grouping = Literal["agent", "provider", "model", "day"]
# Nothing to do, something to do, something being done; or only a process is kept.
LaneStatus = Literal["idle", "ready", "held", "warm"]


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
    """An agent's queue and who owns it. It can be claimed, by its owner if it has one, from
    `ready_at` on."""

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
    """All that is known when a run begins."""

    claim: Claim
    run: Run
    # As it works now: the provider that was chosen comes first (`Agent.on`).
    agent: Agent
    # With the provider that the run is for.
    session: Session | None
    # The agent's open one.
    process: Process | None
    # The item's last one, if this is not its first.
    before: Run | None
    # Whether its gate lets nobody else through before it is answered.
    is_probe: bool = False


class Start(Struct, frozen=True):
    """Who would begin what is accepted, at once; see `Store.start` for the words."""

    holder: HolderId
    opened: Callable[[Agent, Item], Created]
    but_not: Collection[str] = ()


class Accepted(Struct, frozen=True):
    """The item a message became, or had become before; and what was started with it."""

    item: Item
    is_new: bool
    started: Started | None = None

    def begun(self, started: Started) -> "Accepted":
        item = started.claim.item
        return Accepted(item if item.id == self.item.id else self.item, self.is_new, started)


class AbandonedLane(Struct, frozen=True):
    """What a holder that is gone has left. `hold` is a `Claim` unless the lane was warm."""

    hold: Lease
    agent: Agent
    # Of the claim's item, if it had one.
    run: Run | None
    # Those that are open, oldest first.
    processes: tuple[Process, ...]


class AgentOverview(Struct, frozen=True):
    """How an agent stands: all that a list of agents tells, from one moment."""

    agent: Agent
    lane: Lane
    # With the agent's provider.
    session: Session | None
    # What is going on in its lane, and the run of that; neither, once the run has ended.
    item: Item | None
    run: RunId | None
    # Of the runs that were created since.
    usage: UsageSum


class LaneSnapshot(Struct, frozen=True):
    """What whoever begins to hear a process goes on from."""

    run: Run | None
    # With the provider of the run, else of the newest open process, else with the agent's first.
    session: Session | None
    # Those of the lane that were offered or given back, and are not settled, in order.
    followups: tuple[Item, ...]
    # What the record of the run has of the kinds in `KNOWN_KINDS`, in order.
    events: tuple[Emitted, ...]
    # There is something to take.
    has_steerable: bool


class PendingRequests(Struct, frozen=True):
    """Somebody wants something of whoever holds the lane and runs an item in it."""

    agent: AgentId
    # Running or offered, and asked to stop.
    cancelled: tuple[ItemId, ...]
    # There is something to take.
    has_steerable: bool
    # Answers that whoever asked does not have yet, oldest question first.
    answers: tuple[Approval, ...] = ()


class Store(Protocol):
    """The system of record."""

    hints: Notifier
    # As this process is configured: who is sent to a provider comes to the gate of that account.
    accounts: Accounts

    # -- agents and sessions

    async def add_agent(self, agent: Agent) -> None:
        """Add an agent and its empty lane; `NameTaken` if the name is in use."""

    async def start_direct(
        self,
        holder: HolderId,
        agent: Agent,
        message: Message,
        opened: Callable[[Agent, Item], Created],
    ) -> Started:
        """Add an agent, accept its first message and start it, as `start` does: all of it, or
        nothing. `ChangeRefused` if none of its providers may be sent to."""

    async def set_agent(self, agent: Agent, *, was: Agent) -> None:
        """Make `agent` of what was known of it so far, if that is still `was`: else somebody else
        has changed it, `ChangeRefused`. What runs goes on as it was begun."""

    async def remove_agent(self, agent: AgentId) -> None:
        """Remove an agent whose lane is idle, else `ChangeRefused`. Its record stays, and it is
        still found by its id; its name is free, and nothing more is accepted for it."""

    async def agent(self, name: str) -> Agent:
        """The agent of that name or id, else `NotFound`."""

    async def agents(self) -> list[Agent]:
        """The lasting agents by name."""

    async def agent_overviews(
        self, since: datetime, *, agent: AgentId | None = None
    ) -> list[AgentOverview]:
        """How the lasting agents stand, by name; or only one of them."""

    async def token(self, provider: str, token: str) -> ResumeToken | None:
        """What is known of a token that is the present one of any agent's session."""

    async def session(self, agent: AgentId, provider: str) -> Session | None:
        """The agent's conversation with that provider, if one was begun."""

    async def retire_token(self, hold: Lease, provider: str, reason: str) -> None:
        """The session has no present token any more; the last one is history, with the reason."""

    # -- items

    async def accept(self, message: Message, start: Start | None = None) -> Accepted:
        """Store a message at the end of its agent's lane. The same key again is the same item.

        With `start`, the next item of that lane is started in the same transaction, if it can be.
        """

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

    async def cancel(self, item: ItemId, reason: str | None = None) -> Item:
        """Cancel it at once if queued, ask its holder to if running; settled stays as it is.

        The item has the reason of whoever was the first, as its error; one that completes or fails
        all the same has it no more."""

    # -- lanes

    async def lane(self, agent: AgentId) -> Lane: ...

    async def pause(self, agent: AgentId) -> None:
        """No claim is given for this lane until `resume`; what runs goes on. A run that ends for a
        budget, and a question about one, pause it in their own transaction; the answer resumes it
        only if nobody has paused it besides."""

    async def resume(self, agent: AgentId) -> None: ...

    async def join(self, kind: str) -> Holder:
        """Become a holder: alive until `leave` or the end of this process, however it ends."""

    async def leave(self, holder: HolderId) -> None:
        """Stop being one; what it still holds is there for `reap`."""

    async def holders(self) -> list[Holder]:
        """The holders that have joined and were not removed, by id, with whether each is alive.

        A lane whose holder is not among the living ones is abandoned: `reap` takes it over."""

    async def claim(
        self, holder: HolderId, limit: int = 1, *, agent: AgentId | None = None
    ) -> list[Claim]:
        """Own up to `limit` ready lanes, longest ready first, head item running; with `agent`, that
        agent's lane or none. The first provider of the agent's chain that is not closed does the
        work: a lane is given if there is one, and it is not suspect (`shut_providers`).

        The lane of a direct agent is given to whoever asks for it by name. A held, paused or empty
        lane is never given, a warm one to its own holder only, under the fence it has. Two holders
        never get the same lane. Who is no holder any more, because it was taken for gone, gets
        none: `HolderGone`, here and in `start` and `reap`."""

    async def start(
        self,
        holder: HolderId,
        opened: Callable[[Agent, Item], Created],
        limit: int = 1,
        *,
        agent: AgentId | None = None,
        but_not: Collection[str] = (),
    ) -> list[Started]:
        """As `claim`, with the run of each item made by `opened` in the same transaction.

        `opened` hears of the agent as it works with the provider that was chosen. Lanes whose
        chosen provider is in `but_not` are passed over. A gate that is ready takes one run and no
        more until that has shown how things are. `opened` may be called in any thread and shall
        do nothing but answer; what it raises is raised, and nothing was claimed.
        """

    async def offer_followups(
        self, claim: Claim, limit: int = 1, *, most_bytes: int = MOST_TAKEN_BYTES
    ) -> list[Item]:
        """The holder takes follow-ups queued on its own lane, in order; they are `offered`.

        Never one that shall wait (`queue`) or was given back: those run when it is their turn. The
        texts have `most_bytes` together at most, but the first is taken however long it is.
        """

    async def pending_requests(self, holder: HolderId) -> list[PendingRequests]:
        """What is wanted of this holder, for those of its lanes in which an item runs."""

    async def absorb(self, claim: Claim, item: ItemId) -> None:
        """An offered follow-up entered the claim's run and shares its end."""

    async def return_offer(self, claim: Claim, item: ItemId) -> None:
        """An offered follow-up was not taken: queued again, `returned`, in its old place."""

    async def release(self, claim: Claim) -> Item:
        """Give the lane up and the item back to its place. Its run, if any, must have ended."""

    async def continue_with(self, claim: Claim, to: ItemId | Message) -> Claim:
        """Settle the claim's item, whose run has ended, and go on with another one under the same
        fence, in one transaction: the CLI has begun its turn already.

        `to` is a follow-up that was offered, or a message for a turn that nobody asked for (kind
        "self"). What the run absorbed is settled with it; other offers stay, for the next run. The
        lane is never free in between. The claim it came from can end, give up or begin nothing any
        more: `ChangeRefused`.
        """

    async def retry(self, claim: Claim, *, spends: bool) -> Claim:
        """Run the claim's item once more, under the same claim. Its run must have ended; it is the
        one `before` now. `spends`: this counts as one of the item's tries.

        What the run absorbed and what it was offered is queued again, `returned`. An item that had
        begun as a follow-up of its own is told like any other from now on. An item that was
        asked to stop is not run again: `ChangeRefused`.
        """

    async def settle(
        self, claim: Claim, change: RunChange | None = None, batch: Batch | None = None
    ) -> Item:
        """End the claim: append `batch`, apply `change` to the item's run, settle what it ran.

        The run must be terminal by then. `status_after` and `status_of_absorbed` say what becomes
        of the item and of what the run absorbed; open offers are returned. The lane is ready again
        if anything is queued. One transaction. An item that failed has its run's error.
        """

    async def rest(
        self, claim: Claim, change: RunChange | None = None, batch: Batch | None = None
    ) -> Item:
        """As `settle`, but the lane stays with its holder, warm, under the same fence: its process
        waits for the next item. The claim can run nothing more (`ChangeRefused`); as a `Lease` it
        is valid until the lane is released or taken over."""

    async def start_unprompted(self, hold: Lease, message: Message) -> Claim:
        """The process in a warm lane has begun a turn that nobody asked for (kind "self"): its item
        runs at once, before what is queued, also if the lane is paused or its gate is closed."""

    async def release_lane(self, hold: Lease) -> None:
        """Give a warm lane up: ready if anything is queued, else idle. `ChangeRefused` if something
        runs in it: whoever started that was quicker."""

    async def reap(self, holder: HolderId, *, lasting: bool = True) -> list[AbandonedLane]:
        """Take over, with a higher fence, every lane whose holder is gone, held or warm; not
        `lasting`: only those of direct agents. Nothing is run again by this: the new holder adopts
        what lives and settles, releases or lets go the rest."""

    # -- runs, processes, events

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

    async def runs_like(self, prefix: str, limit: int = 2) -> list[Run]:
        """Runs whose id begins so: for ids typed by hand."""

    async def run_costs(self, runs: Collection[RunId]) -> dict[RunId, Cost]:
        """What runs have cost, in one question; those that are not there are left out."""

    async def open_process(self, hold: Lease, process: Process) -> None: ...

    async def close_process(self, hold: Lease, process: ProcessId) -> None: ...

    async def process(self, process: ProcessId) -> Process:
        """The process, else `NotFound`."""

    async def open_processes(self, agent: AgentId | None = None) -> list[Process]: ...

    async def append(self, hold: Lease, batch: Batch) -> AppendResult:
        """Write a batch if it begins where the record of its process ends.

        Said again it is once: what lies wholly before the stored offset, and an event of ours
        whose number is stored, is left out. Anything else is `OffsetMismatch`. A run that has ended
        takes no more events: `ChangeRefused`.
        """

    async def events(
        self,
        after: int = 0,
        *,
        agent: AgentId | None = None,
        run: RunId | None = None,
        limit: int = PAGE,
    ) -> list[StoredEvent]:
        """Events with a higher cursor, oldest first, of a run or an agent or all."""

    async def last_events(
        self, *, agent: AgentId | None = None, run: RunId | None = None, limit: int = 50
    ) -> list[StoredEvent]:
        """The newest events, oldest first."""

    async def lane_snapshots(
        self, lanes: Mapping[AgentId, RunId | None]
    ) -> dict[AgentId, LaneSnapshot]:
        """What is known of each of these lanes and of a run of its agent; an agent or a run that is
        not there is `NotFound`."""

    async def usage(
        self, *, agent: AgentId | None = None, since: datetime | None = None
    ) -> UsageSum:
        """Totals over the runs created since then."""

    async def usage_by(
        self,
        by: Grouping,
        *,
        agent: AgentId | None = None,
        since: datetime | None = None,
        zone: tzinfo = UTC,
    ) -> dict[str, UsageSum]:
        """The same for each name there is; empty: the runs of no agent, or of no named model. A day
        is a date of the zone."""

    # -- approvals: `append` makes and settles them; the end of a run withdraws what it has asked
    # about tools, and that of an agent the rest

    async def answer(self, approval: ApprovalId, answer: ApprovalAnswer) -> Approval:
        """Answer a question that is open. The same answer again changes nothing; any other, or one
        to a question that is settled, is `ChangeRefused`: whoever is first decides.

        An answer about a budget settles the question, and is an event of the agent; its lane may be
        claimed again if that is allowed."""

    async def approval(self, approval: ApprovalId) -> Approval:
        """The question, else `NotFound`."""

    async def approvals(
        self, agent: AgentId | None = None, *, include_settled: bool = False, limit: int = PAGE
    ) -> list[Approval]:
        """What persons were asked, newest first."""

    async def approvals_like(self, part: str, limit: int = 2) -> list[Approval]:
        """Those whose id begins or ends so, newest first: for ids typed by hand."""

    # -- gates

    async def update_gate(
        self, provider: str, news: GateReport, *, account: str | None = None
    ) -> Gate:
        """Tell the gate of an account, or of the present one, what has happened; `gate_step` says
        what becomes of it. What changes is an event of no agent, in the same transaction. A run
        that begins or ends tells the gate of its own account, in its own transaction."""

    async def gates(self, *, include_others: bool = False) -> list[Gate]:
        """Those of the present accounts that were ever told anything, or of all accounts."""

    # -- what else is to be remembered

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value under a key, in place of the one before."""

    async def get(self, key: str) -> bytes | None: ...

    # -- life

    async def close(self) -> None:
        """Finish what was begun and let go. Closing twice is fine."""


async def follow(
    store: Store,
    after: int = 0,
    *,
    agent: AgentId | None = None,
    run: RunId | None = None,
    poll_seconds: float = FALLBACK_POLL_SECONDS,
) -> AsyncGenerator[StoredEvent, None]:
    """Every event after a cursor, stored ones first, then each as it is committed. Never ends."""
    with store.hints.watch(agent) as watch:
        while True:
            page: Sequence[StoredEvent] = await store.events(after, agent=agent, run=run)
            for event in page:
                yield event
                after = event.cursor
            if not page:
                await watch.wait(poll_seconds)
