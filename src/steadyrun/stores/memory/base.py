"""The state of a reference store and the steps that its verbs share."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from steadyrun.lib.clock import Clock
from steadyrun.lib.notifier import Notifier
from steadyrun.model.batch import AppendResult, Batch, StoredRow, select_new
from steadyrun.model.event import Emitted, ToolStarted, count_kinds, make_event_id
from steadyrun.model.event_codec import decode_events, encode_events
from steadyrun.model.gate import Accounts, GateRules, set_account
from steadyrun.model.ids import AgentId, Ids, ProcessId, RunId
from steadyrun.model.item import Lease
from steadyrun.model.process import Marks, Process, SavedState
from steadyrun.model.run import (
    Launched,
    Run,
    RunChange,
    add_counts,
    build_status_events,
    scrub_run,
    step,
)
from steadyrun.model.secret import Scrubber
from steadyrun.stores import rules
from steadyrun.stores.memory import approvals, tables
from steadyrun.stores.memory.gates import MemoryGateUpdater
from steadyrun.stores.memory.tables import Placed, Tables


class MemoryBase:
    """What every group of verbs of the reference store needs."""

    def __init__(  # noqa: PLR0913 (each has a default but the clock)
        self,
        clock: Clock,
        *,
        ids: Ids | None = None,
        tables: Tables | None = None,
        hints: Notifier | None = None,
        scrubber: Scrubber | None = None,
        rules: GateRules | None = None,
        accounts: Accounts | None = None,
        machine: str = "here",
    ) -> None:
        self.accounts = {} if accounts is None else accounts
        self.hints = hints or Notifier()
        self._tables = tables or Tables()
        self._clock = clock
        self._ids = ids or Ids(clock.now)
        self._scrubber = scrubber or Scrubber()
        self._gates = MemoryGateUpdater(self._scrubber, rules or GateRules(), self.accounts)
        self._machine = machine

    @contextmanager
    def _begin_transaction(self, agents: Iterable[AgentId]) -> Iterator[Tables]:
        copy = self._tables.copy()
        yield copy
        self._tables.replace_by(copy)
        self.hints.notify(agents)

    def _change(self, t: Tables, run: RunId, change: RunChange) -> Run:
        """Take one step of the reducer; row, events and their effects."""
        before = t.runs.get(run)
        after = step(before, set_account(change, self.accounts))
        if after is not before:
            after = scrub_run(after, self._scrubber)
            events = build_status_events(before, after)
            after = add_counts(after, len(events), 0)
            t.runs[after.id] = after
            self._place(t, after.agent, after.id, None, events)
            if before is None:
                self._gates.on_run_started(t, after)
            elif after.is_terminal:
                self._end(t, after)
        return after

    def _end(self, t: Tables, run: Run) -> None:
        approvals.withdraw_for_run(t, run.id)
        if run.stop_reason == "budget":
            tables.set_paused(t, run.agent, is_paused=True)
        self._gates.on_run_ended(t, run)

    def _append(self, t: Tables, lease: Lease, batch: Batch) -> AppendResult:
        process = tables.find_process(t, batch.process)
        rules.require_own(process.agent, lease, "process", batch.process)
        fresh, marks = select_new(
            batch, count_kinds(batch.events), offset=process.offset, marks=process.marks
        )
        run = tables.find_run(t, fresh.run) if fresh.run else None
        if run:
            rules.require_own(run.agent, lease, "run", run.id)
            if fresh.events:
                rules.require_open_run(run.id, run.status)
        count = len(t.events)
        if run and isinstance(fresh.change, Launched):
            self._change(t, run.id, fresh.change)
        first = len(t.events)
        self._add(t, lease.agent, fresh)
        approvals.record(t, lease.agent, fresh, t.events[first:])
        if run and fresh.change and not isinstance(fresh.change, Launched):
            self._change(t, run.id, fresh.change)
        t.processes[process.id] = _advance(process, fresh, marks)
        if fresh.token:
            key = lease.agent, process.provider
            t.sessions[key] = rules.bind_token(t.sessions.get(key), process.provider, fresh.token)
        # The event of a gate belongs to no agent and is not published with the others.
        new = [each for each in t.events[count:] if each.agent is not None]
        last_seq = t.lanes[lease.agent].event_seq
        return AppendResult(len(new), last_seq, tables.find_next_cursor(t) - 1, self._to_rows(new))

    def _to_rows(self, placed: Sequence[Placed]) -> tuple[StoredRow, ...]:
        """One row for consecutive events of one run."""
        return tuple(
            StoredRow(
                row[0].cursor,
                row[0].seq or 0,
                run,
                encode_events([each.emitted for each in row], self._scrubber),
            )
            for run, group in itertools.groupby(placed, key=lambda each: each.run)
            if (row := list(group))
        )

    def _add(self, t: Tables, agent: AgentId, fresh: Batch) -> None:
        run, events = fresh.run, fresh.events
        if run and events:
            tools = sum(isinstance(e.event, ToolStarted) for e in events)
            t.runs[run] = add_counts(t.runs[run], len(events), tools)
        self._place(t, agent, run, fresh.process, events)

    def _place(
        self,
        t: Tables,
        agent: AgentId,
        run: RunId | None,
        process: ProcessId | None,
        events: Sequence[Emitted],
    ) -> None:
        """Put events at the end of the record, without secrets."""
        lane = t.lanes[agent]
        for emitted in decode_events(encode_events(events, self._scrubber)):
            lane = replace(lane, event_seq=lane.event_seq + 1)
            name = make_event_id(process, emitted.place, emitted.n)
            cursor = tables.find_next_cursor(t)
            t.events.append(Placed(cursor, lane.event_seq, agent, run, name, emitted))
        t.lanes[agent] = lane


def _advance(process: Process, batch: Batch, marks: Marks) -> Process:
    saved = process.saved
    if batch.checkpoint:
        saved = SavedState(batch.checkpoint.state, batch.checkpoint.sent, batch.to_offset)
    return replace(process, offset=batch.to_offset, marks=marks, saved=saved)
