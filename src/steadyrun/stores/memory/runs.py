"""Runs, processes and follow-ups of the reference store."""

from collections.abc import Collection
from datetime import datetime

from msgspec.structs import replace

from steadyrun.model.batch import Batch
from steadyrun.model.ids import AgentId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Run, RunChange
from steadyrun.store import MAX_OFFER_BYTES, OfferOutcome, PendingRequests
from steadyrun.stores import rules
from steadyrun.stores.memory import tables
from steadyrun.stores.memory.base import MemoryBase
from steadyrun.stores.memory.tables import Tables


class MemoryRuns(MemoryBase):
    """The verbs of `RunStore`."""

    async def change(self, claim: Claim, run: RunId, change: RunChange) -> Run:
        with self._begin_transaction([claim.agent]) as t:
            rules.require_held(t.lanes.get(claim.agent), claim)
            if run in t.runs:
                rules.require_own(t.runs[run].agent, claim, "run", run)
            elif isinstance(change, Created):
                tables.bind_run(t, claim, run, change)
            return self._change(t, run, change)

    async def run(self, run: RunId) -> Run:
        return tables.find_run(self._tables, run)

    async def runs(
        self, agent: AgentId | None = None, *, before: RunId | None = None, limit: int = 50
    ) -> list[Run]:
        found = [
            run
            for run in self._tables.runs.values()
            if agent in {None, run.agent} and (before is None or run.id < before)
        ]
        return sorted(found, key=lambda r: r.id, reverse=True)[:limit]

    async def open_process(self, lease: Lease, process: Process) -> None:
        with self._begin_transaction([lease.agent]) as t:
            rules.require_owner(t.lanes.get(lease.agent), lease)
            is_stored = process.id in t.processes
            rules.require_own_process(process, lease, is_stored=is_stored)
            t.processes[process.id] = process

    async def close_process(self, lease: Lease, process: ProcessId) -> None:
        with self._begin_transaction([lease.agent]) as t:
            rules.require_owner(t.lanes.get(lease.agent), lease)
            found = tables.find_process(t, process)
            rules.require_own(found.agent, lease, "process", process)
            closed_at = found.closed_at or self._clock.now()
            t.processes[process] = replace(found, closed_at=closed_at)

    async def processes(self, ids: Collection[ProcessId] | None = None) -> list[Process]:
        if ids is None:
            return tables.list_open_processes(self._tables)
        stored = self._tables.processes
        return [stored[process] for process in sorted(set(ids)) if process in stored]

    async def pending_requests(self, holder: HolderId) -> list[PendingRequests]:
        lanes = [lane for lane in self._tables.lanes.values() if lane.status == "held"]
        found = [
            tables.build_requests(self._tables, each) for each in lanes if each.holder == holder
        ]
        pending = [each for each in found if each.cancelled or each.has_steerable or each.answers]
        return sorted(pending, key=lambda each: each.agent)

    async def offer_followups(
        self, claim: Claim, limit: int = 1, *, max_bytes: int = MAX_OFFER_BYTES
    ) -> list[Item]:
        now = self._clock.now()
        with self._begin_transaction([claim.agent]) as t:
            lane = rules.require_held(t.lanes.get(claim.agent), claim)
            found = tables.list_steerable(t, lane.agent)[:limit]
            count = rules.count_fitting((len(item.text.encode()) for item in found), max_bytes)
            offers = [rules.offer_item(item, now) for item in found[:count]]
            tables.save_items(t, offers)
            tables.save_lane(t, rules.count_started(lane, len(offers)))
            return offers

    async def close_offer(self, claim: Claim, item: ItemId, outcome: OfferOutcome) -> None:
        with self._begin_transaction([claim.agent]) as t:
            lane = rules.require_held(t.lanes.get(claim.agent), claim)
            offer = rules.require_offer(tables.find_item(t, item), claim)
            if outcome == "absorbed":
                closed = rules.absorb_item(offer, _find_main(t, claim, "close_offer"))
            else:
                closed = rules.requeue_item(offer, self._clock.now())
            tables.save_items(t, [closed])
            tables.save_lane(t, rules.count_requeued(lane, [closed]))

    async def continue_with(self, lease: Lease, to: ItemId | Message) -> Claim:
        now, new = self._clock.now(), self._ids.make_item()
        with self._begin_transaction([lease.agent]) as t:
            ended = self._end_for_next(t, lease, now)
            if isinstance(to, Message):
                started = tables.accept_unprompted(t, lease, to, new, now)
            else:
                offer = rules.require_offer(tables.find_item(t, to), lease)
                started = rules.start_item(offer, "own_turn", now)
            tables.save_items(t, [*ended, started])
            tables.save_lane(t, rules.count_requeued(t.lanes[lease.agent], ended))
            return Claim(lease.agent, lease.holder, lease.fence, started)

    def _end_for_next(self, t: Tables, lease: Lease, now: datetime) -> list[Item]:
        """The items that the run of the claim leaves behind, settled; none in a warm lane."""
        lane = t.lanes.get(lease.agent)
        if not isinstance(lease, Claim):
            rules.require_warm(lane, lease, "continue_with")
            return []
        rules.require_held(lane, lease)
        run = _find_ended_run(t, _find_main(t, lease, "continue_with"), "continue_with")
        running = tables.list_items(t, lease.agent, "running")
        return [rules.settle_after_run(i, run, now) for i in running if i.delivery != "offered"]

    async def retry(self, claim: Claim, *, spends: bool) -> Claim:
        now = self._clock.now()
        with self._begin_transaction([claim.agent]) as t:
            lane = rules.require_held(t.lanes.get(claim.agent), claim)
            item = _find_main(t, claim, "retry")
            prepared = rules.retry_item(item, _find_ended_run(t, item, "retry"), spends=spends)
            running = tables.list_items(t, claim.agent, "running")
            others = [rules.requeue_item(each, now) for each in running if each.id != item.id]
            tables.save_items(t, [prepared, *others])
            tables.save_lane(t, rules.count_requeued(lane, others))
            return replace(claim, item=prepared)

    async def settle(
        self,
        claim: Claim,
        change: RunChange | None = None,
        batch: Batch | None = None,
        *,
        keep_warm: bool = False,
    ) -> Item:
        now = self._clock.now()
        with self._begin_transaction([claim.agent]) as t:
            rules.require_held(t.lanes.get(claim.agent), claim)
            item = _find_main(t, claim, "settle")
            if batch:
                self._append(t, claim, batch)
            if change and item.run:
                self._change(t, item.run, change)
            run = _find_ended_run(t, item, "settle")
            running = tables.list_items(t, claim.agent, "running")
            ended = [rules.settle_after_run(each, run, now) for each in running]
            tables.save_items(t, ended)
            lane = rules.count_requeued(t.lanes[claim.agent], ended)
            tables.save_lane(t, rules.end_claim(lane, now, keep_warm=keep_warm))
            return t.items[item.id]


def _find_main(t: Tables, claim: Claim, verb: str) -> Item:
    return rules.require_running(tables.find_item(t, claim.item.id), claim, verb)


def _find_ended_run(t: Tables, item: Item, verb: str) -> Run:
    return rules.require_ended(t.runs[item.run] if item.run else None, verb)
