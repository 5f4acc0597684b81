"""The reference store: the verbs of the contract over plain dictionaries.

Nothing here is durable. Where an engine and this package disagree, this package is right.
"""

from msgspec.structs import replace

from steadyrun.model.approval import UNSETTLED, Approval, ApprovalAnswer, build_resolution
from steadyrun.model.batch import AppendResult, Batch
from steadyrun.model.event import StoredEvent
from steadyrun.model.gate import Gate, GateReport, is_present_account
from steadyrun.model.ids import AgentId, ApprovalId, RunId
from steadyrun.model.item import Lease, build_cancel_fact
from steadyrun.store import PAGE, AnswerEffects
from steadyrun.stores import rules
from steadyrun.stores.memory import approvals
from steadyrun.stores.memory.agents import MemoryAgents
from steadyrun.stores.memory.base import MemoryBase
from steadyrun.stores.memory.maintenance import MemoryMaintenance
from steadyrun.stores.memory.queue import MemoryQueue
from steadyrun.stores.memory.runs import MemoryRuns
from steadyrun.stores.memory.tables import Placed
from steadyrun.stores.memory.views import MemoryViews


class MemoryEvents(MemoryBase):
    """The verbs of `EventStore`."""

    async def append(self, lease: Lease, batch: Batch) -> AppendResult:
        with self._begin_transaction([lease.agent]) as t:
            rules.require_owner(t.lanes.get(lease.agent), lease)
            return self._append(t, lease, batch)

    async def events(
        self,
        after: int = 0,
        *,
        agent: AgentId | None = None,
        run: RunId | None = None,
        limit: int = PAGE,
        newest: bool = False,
    ) -> list[StoredEvent]:
        found = [
            each
            for each in self._tables.events
            if agent in {None, each.agent} and run in {None, each.run} and each.cursor > after
        ]
        page = found[max(0, len(found) - limit) :] if newest else found[:limit]
        return [self._to_stored(each) for each in page]

    def _to_stored(self, placed: Placed) -> StoredEvent:
        emitted = placed.emitted
        return StoredEvent(
            cursor=placed.cursor,
            seq=placed.seq,
            id=placed.id,
            at=emitted.at,
            agent=self._tables.agents[placed.agent].name if placed.agent else None,
            run=placed.run,
            provider=self._tables.runs[placed.run].provider if placed.run else None,
            event=emitted.event,
        )


class MemoryApprovals(MemoryBase):
    """The verbs of `ApprovalStore`."""

    async def answer(
        self, approval: ApprovalId, answer: ApprovalAnswer, effects: AnswerEffects | None = None
    ) -> Approval:
        clean = replace(answer, reason=self._scrubber.clean(answer.reason))
        with self._begin_transaction([]) as t:
            before = t.approvals.get(approval)
            answered = approvals.answer(t, approval, clean)
            if answered.about == "budget" and answered is not before:
                self._place(t, answered.agent, None, None, [build_resolution(answered)])
            if effects and answered is not before:
                why = build_cancel_fact(clean.reason or None)
                approvals.apply_effects(t, effects, why, self._clock.now())
        self.hints.notify([answered.agent])
        return answered

    async def approval(self, approval: ApprovalId) -> Approval:
        return approvals.find_approval(self._tables, approval)

    async def approvals(
        self,
        agent: AgentId | None = None,
        *,
        include_settled: bool = False,
        matching: str | None = None,
        limit: int = PAGE,
    ) -> list[Approval]:
        part = matching or ""
        found = [
            each
            for each in self._tables.approvals.values()
            if agent in {None, each.agent}
            and (include_settled or each.status in UNSETTLED)
            and (each.id.startswith(part) or each.id.endswith(part))
        ]
        return sorted(found, key=lambda a: (a.asked_at, a.id), reverse=True)[:limit]


class MemoryGates(MemoryBase):
    """The verbs of `GateStore`."""

    async def update_gate(
        self, provider: str, report: GateReport, *, account: str | None = None
    ) -> Gate:
        with self._begin_transaction([]) as t:
            gate = self._gates.update(t, provider, account, report, self._clock.now())
        self.hints.notify_all()
        return gate

    async def gates(self, *, include_others: bool = False) -> list[Gate]:
        found = sorted(self._tables.gates.items())
        return [g for key, g in found if include_others or is_present_account(*key, self.accounts)]


class MemoryStore(
    MemoryAgents,
    MemoryQueue,
    MemoryRuns,
    MemoryEvents,
    MemoryApprovals,
    MemoryGates,
    MemoryViews,
    MemoryMaintenance,
):
    """The reference store. It never awaits inside a verb, so each verb is one step."""

    async def put(self, key: str, value: bytes) -> None:
        with self._begin_transaction([]) as t:
            t.kv[key] = value

    async def get(self, key: str) -> bytes | None:
        return self._tables.kv.get(key)

    def take_commit_seconds(self) -> float:
        return 0.0

    async def close(self) -> None:
        """There is nothing to free."""
