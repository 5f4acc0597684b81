"""Deletes what is old from the reference store."""

from datetime import datetime

from msgspec.structs import replace

from steadyrun.model.approval import UNSETTLED
from steadyrun.model.event_codec import encode_events
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Item
from steadyrun.model.retention import PruneCounts, PrunePosition, PruneStep, RetentionLimits
from steadyrun.model.run import Run
from steadyrun.stores.memory.base import MemoryBase
from steadyrun.stores.memory.tables import Placed, Tables


class MemoryMaintenance(MemoryBase):
    """The verbs of `Maintenance`. A pruning is one step here."""

    async def prune(
        self,
        limits: RetentionLimits,
        position: PrunePosition | None = None,
        *,
        is_dry: bool = False,
    ) -> PruneStep:
        t = self._tables.copy()
        counts = PruneCounts()
        if limits.events_before:
            counts += self._prune_events(t, limits.agent, limits.events_before)
        if limits.texts_before:
            counts += _prune_texts(t, limits.agent, limits.texts_before)
        if not is_dry:
            self._tables.replace_by(t)
        return PruneStep(counts)

    async def pruned_to(self, agent: AgentId | None = None) -> int:
        pruned = self._tables.pruned
        return max(pruned.values(), default=0) if agent is None else pruned.get(agent, 0)

    async def release_space(self) -> int:
        return 0

    def _prune_events(self, t: Tables, agent: AgentId | None, before: datetime) -> PruneCounts:
        old = _select_old_events(t, agent, before)
        cursors = {each.cursor for each in old}
        t.events = [each for each in t.events if each.cursor not in cursors]
        runs = {each.run for each in old if each.run}
        for run in runs:
            t.runs[run] = replace(t.runs[run], events_pruned=True)
        t.pruned |= {each.agent or "": each.cursor for each in old}
        size = len(encode_events([each.emitted for each in old], self._scrubber)) if old else 0
        return PruneCounts(len(old), size, len(runs))


def _select_old_events(t: Tables, agent: AgentId | None, before: datetime) -> list[Placed]:
    young = [each.cursor for each in t.events if each.emitted.at >= before]
    until = min([*young, *[each.cursor for each in t.events[-1:]]], default=0)
    late = {each.run for each in t.events if each.cursor >= until}
    kept: set[AgentId | None] = set()
    chosen = []
    for each in t.events:
        run = t.runs[each.run] if each.run else None
        if run and (run.created_at >= before or run.id in late or not _is_over(t, run)):
            kept.add(each.agent)
        if each.cursor < until and agent in {None, each.agent} and each.agent not in kept:
            chosen.append(each)
    return chosen


def _is_over(t: Tables, run: Run) -> bool:
    """Whether no later step can need the run."""
    asked = {each.run for each in t.approvals.values() if each.status in UNSETTLED}
    return run.is_terminal and run.id not in asked and run.id not in _find_runs_in_use(t)


def _find_runs_in_use(t: Tables) -> set[RunId | None]:
    unsettled = [item for item in t.items.values() if not item.is_settled]
    return {run for item in unsettled for run in (item.run, item.before)}


def _prune_texts(t: Tables, agent: AgentId | None, before: datetime) -> PruneCounts:
    runs = [
        run
        for run in t.runs.values()
        if agent in {None, run.agent} and run.text is not None and _is_over(t, run)
        if run.ended_at and run.ended_at < before
    ]
    items = [
        item
        for item in t.items.values()
        if agent in {None, item.agent} and item.is_settled and (item.text or item.reply is not None)
        if item.settled_at and item.settled_at < before
    ]
    for run in runs:
        t.runs[run.id] = replace(run, text=None, text_pruned=True)
    for item in items:
        payload = replace(item.payload, text_pruned=True)
        t.items[item.id] = replace(item, text="", reply=None, payload=payload)
    size = sum(len((run.text or "").encode()) for run in runs)
    return PruneCounts(texts=len(runs) + len(items), text_bytes=size + sum(map(_measure, items)))


def _measure(item: Item) -> int:
    return len(item.text.encode()) + len((item.reply or "").encode())
