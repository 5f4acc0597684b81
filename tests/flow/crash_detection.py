"""Finds out which of the writes that were open at the kill happened, from the store, in order.

The writer carries writes out in the order in which they were asked for, so those that happened come
before those that did not. Each that happened is given to the model with the answer it would have
had; whether it happened *entirely* shows when model and store are compared as a whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from steadyrun.model.batch import AppendResult
from steadyrun.model.gate import Gate
from steadyrun.model.ids import AgentId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Item
from steadyrun.model.process import Process
from steadyrun.model.run import Run, step
from steadyrun.store import Accepted, Holder, Lane, Started
from tests.children.crash_writer import (
    Accept,
    Append,
    Cancel,
    CloseGate,
    CloseOffer,
    CreateRun,
    Ended,
    EndRun,
    Join,
    OfferFollowups,
    Op,
    OpenProcess,
    Put,
    ReleaseLane,
    Retry,
    Settle,
    SettleWarm,
    StartDirect,
    StartOne,
    StartUnprompted,
    created_by,
)
from tests.flow.crash_model import Model

replace = msgspec.structs.replace


@dataclass(frozen=True)
class Seen:
    """What the store holds now, of all that was touched since the last comparison."""

    items: dict[ItemId, Item]
    lanes: dict[AgentId, Lane]
    runs: dict[RunId, Run]
    processes: dict[ProcessId, Process]
    holders: dict[HolderId, Holder]
    gates: dict[str, Gate]
    kv: dict[str, bytes | None]

    def by_text(self, text: str) -> Item | None:
        found = [item for item in self.items.values() if item.text == text]
        assert len(found) <= 1, f"accepted twice: {found}"
        return found[0] if found else None


@dataclass(frozen=True)
class Done:
    """It happened, with this answer."""

    result: Any


class Absent:
    """It did not happen."""


class NoTrace:
    """It would change nothing, or nothing that can be told from its not happening."""


Detection = Done | Absent | NoTrace


def apply_open(model: Model, seen: Seen, ops: Iterable[Op]) -> list[Detection]:
    """Apply to the model what happened of `ops`; nothing may follow one that did not."""
    detections: list[Detection] = []
    for op in ops:
        detection = _detect(model, seen, op)
        if isinstance(detection, Done):
            earlier = [type(g).__name__ for g in detections]
            assert "Absent" not in earlier, f"{op} happened, but one before it did not: {earlier}"
            model.apply(op, detection.result)
        detections.append(detection)
    return detections


def _detect(model: Model, seen: Seen, op: Op) -> Detection:  # noqa: C901 (one case for each verb)
    match op:
        case Join():
            new = [holder for id_, holder in seen.holders.items() if id_ not in model.holders]
            return Done(new[0]) if new else Absent()
        case Accept():
            return _detect_accept(model, seen, op)
        case StartDirect():
            return _detect_start_direct(model, seen, op)
        case CloseGate():
            gate = seen.gates.get("codex")
            return Done(gate) if gate and gate.until == op.until else Absent()
        case Put():
            return Done(None) if seen.kv.get(op.key) == op.value else Absent()
        case Cancel():
            return _detect_cancel(model, seen, op)
        case CreateRun():
            run = seen.runs.get(op.created.id)
            # It may have gone on only by writes that were asked for after its answer.
            return Absent() if run is None else Done(run)
        case OpenProcess():
            return Done(None) if op.process.id in seen.processes else Absent()
        case Append():
            is_there = seen.processes[op.stretch.process].offset == op.stretch.to_offset
            return Done(_appended(model, seen, op)) if is_there else Absent()
        case OfferFollowups():
            return _detect_offer(model, seen, op)
        case CloseOffer(outcome="absorbed"):
            return Done(None) if seen.items[op.item].delivery == "absorbed" else Absent()
        case CloseOffer():
            return Done(None) if seen.items[op.item].status != "running" else Absent()
        case StartOne():
            return _detect_start(model, seen, op)
        case StartUnprompted():
            return _detect_start_unprompted(model, seen, op)
        case ReleaseLane():
            return _detect_release(model, seen, op)
        case Retry():
            return _detect_retry(model, seen, op)
        case EndRun():
            is_there = seen.runs[op.run].is_terminal
            return Done(seen.runs[op.run]) if is_there else Absent()
        case Ended():
            item = seen.items[op.claim.item.id]
            return Done(item) if item.status != "running" else Absent()
        case Settle() | SettleWarm():
            is_there = seen.runs[op.stretch.run].is_terminal
            return Done(seen.items[op.claim.item.id]) if is_there else Absent()


def _detect_accept(model: Model, seen: Seen, op: Accept) -> Detection:
    key = op.message.key
    if key is not None and (op.message.agent, key) in model.keys:
        return NoTrace()
    item = seen.by_text(op.message.text)
    if item is None:
        return Absent()
    # Later writes may have touched it: this is how it looked when it was accepted.
    new = Item(item.id, item.agent, item.seq, item.kind, item.text, item.on_lost, item.created_at)
    return Done(Accepted(replace(new, followup=op.message.followup), is_new=True))


def _detect_cancel(model: Model, seen: Seen, op: Cancel) -> Detection:
    item, now = model.items[op.item], seen.items[op.item]
    if item.is_settled or item.cancel_requested:
        return NoTrace()
    if item.status == "running":
        is_there = now.cancel_requested
        return Done(replace(item, cancel_requested=True)) if is_there else Absent()
    if now.status != "cancelled":
        return Absent()
    return Done(replace(item, status="cancelled", settled_at=now.settled_at))


def _detect_start_direct(model: Model, seen: Seen, op: StartDirect) -> Detection:
    accepted = _detect_accept(model, seen, Accept(op.message))
    if not isinstance(accepted, Done):
        return Absent()
    item = accepted.result.item
    at = seen.items[item.id].started_at
    running = replace(model.started(item, at), run=op.run)
    run = step(None, created_by(op, op.agent, running))
    claim = Claim(op.agent.id, op.holder, 1, running)
    return Done(Started(claim, run, op.agent, None, None, None))


def _detect_start(model: Model, seen: Seen, op: StartOne) -> Detection:
    ready = {lane.agent: lane for lane in model.startable(op.holder)}
    run = seen.runs.get(op.run)
    if run is None or run.item is None:
        return Absent() if ready else NoTrace()
    agent, at = model.agents[run.agent], seen.items[run.item].started_at
    claim = model.claim_on(ready[agent.id], op.holder, at)
    claim = replace(claim, item=replace(claim.item, run=op.run))
    processes = [p for p in model.processes.values() if p.agent == agent.id]
    process = max(processes, key=lambda p: p.id, default=None)
    created = step(None, created_by(op, agent, claim.item))
    before = model.runs[claim.item.before] if claim.item.before else None
    return Done([Started(claim, created, agent, None, process, before)])


def _detect_start_unprompted(model: Model, seen: Seen, op: StartUnprompted) -> Detection:
    if not model.is_warm(op.lease):
        return NoTrace()
    item = seen.by_text(op.message.text)
    return Done(Claim(op.lease.agent, op.lease.holder, op.lease.fence, item)) if item else Absent()


def _detect_release(model: Model, seen: Seen, op: ReleaseLane) -> Detection:
    if not model.is_warm(op.lease):
        return NoTrace()
    lane, lease = seen.lanes[op.lease.agent], op.lease
    is_there = (lane.status, lane.holder, lane.fence) == ("warm", lease.holder, lease.fence)
    return Absent() if is_there else Done(True)


def _detect_offer(model: Model, seen: Seen, op: OfferFollowups) -> Detection:
    offered = model.steerable(op.claim.agent)[: op.limit]
    if not offered:
        return NoTrace()
    if seen.items[offered[0].id].status != "running":
        return Absent()
    return Done(
        [
            replace(i, status="running", delivery="offered", started_at=seen.items[i.id].started_at)
            for i in offered
        ]
    )


def _detect_retry(model: Model, seen: Seen, op: Retry) -> Detection:
    before, now = model.items[op.claim.item.id], seen.items[op.claim.item.id]
    if before.cancel_requested:
        return NoTrace()
    if now.attempt == before.attempt:
        return Absent()
    return Done(replace(op.claim, item=model.tried_again(op.claim, spends=op.spends)))


def _appended(model: Model, seen: Seen, op: Append) -> AppendResult:
    """The answer follows from the model alone: the comparison will tell whether it was so."""
    del seen
    count = op.stretch.count + (op.stretch.launched is not None)
    last_seq = model.lanes[op.claim.agent].event_seq + count
    return AppendResult(count, last_seq, len(model.log) + count)
