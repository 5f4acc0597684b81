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
    Absorb,
    Accept,
    Again,
    Append,
    Begin,
    Cancel,
    CloseGate,
    Ended,
    EndRun,
    GiveBack,
    Hire,
    Join,
    LetGo,
    Op,
    OpenProcess,
    Remember,
    Rest,
    Settle,
    StartOne,
    Take,
    Wake,
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


Guess = Done | Absent | NoTrace


def apply_open(model: Model, seen: Seen, ops: Iterable[Op]) -> list[Guess]:
    """Apply to the model what happened of `ops`; nothing may follow one that did not."""
    guesses: list[Guess] = []
    for op in ops:
        guess = _guess(model, seen, op)
        if isinstance(guess, Done):
            earlier = [type(g).__name__ for g in guesses]
            assert "Absent" not in earlier, f"{op} happened, but one before it did not: {earlier}"
            model.apply(op, guess.result)
        guesses.append(guess)
    return guesses


def _guess(model: Model, seen: Seen, op: Op) -> Guess:  # noqa: C901 (one case for each verb)
    match op:
        case Join():
            new = [holder for id_, holder in seen.holders.items() if id_ not in model.holders]
            return Done(new[0]) if new else Absent()
        case Accept():
            return _of_accept(model, seen, op)
        case Hire():
            return _of_hire(model, seen, op)
        case CloseGate():
            gate = seen.gates.get("codex")
            return Done(gate) if gate and gate.until == op.until else Absent()
        case Remember():
            return Done(None) if seen.kv.get(op.key) == op.value else Absent()
        case Cancel():
            return _of_cancel(model, seen, op)
        case Begin():
            run = seen.runs.get(op.created.id)
            # It may have gone on only by writes that were asked for after its answer.
            return Absent() if run is None else Done(run)
        case OpenProcess():
            return Done(None) if op.process.id in seen.processes else Absent()
        case Append():
            is_there = seen.processes[op.stretch.process].offset == op.stretch.to_offset
            return Done(_appended(model, seen, op)) if is_there else Absent()
        case Take():
            return _of_take(model, seen, op)
        case Absorb():
            return Done(None) if seen.items[op.item].delivery == "absorbed" else Absent()
        case GiveBack():
            return Done(None) if seen.items[op.item].status != "running" else Absent()
        case StartOne():
            return _of_start(model, seen, op)
        case Wake():
            return _of_wake(model, seen, op)
        case LetGo():
            return _of_letting_go(model, seen, op)
        case Again():
            return _of_trying_again(model, seen, op)
        case EndRun():
            is_there = seen.runs[op.run].is_terminal
            return Done(seen.runs[op.run]) if is_there else Absent()
        case Ended():
            item = seen.items[op.claim.item.id]
            return Done(item) if item.status != "running" else Absent()
        case Settle() | Rest():
            is_there = seen.runs[op.stretch.run].is_terminal
            return Done(seen.items[op.claim.item.id]) if is_there else Absent()


def _of_accept(model: Model, seen: Seen, op: Accept) -> Guess:
    key = op.message.key
    if key is not None and (op.message.agent, key) in model.keys:
        return NoTrace()
    item = seen.by_text(op.message.text)
    if item is None:
        return Absent()
    # Later writes may have touched it: this is how it looked when it was accepted.
    new = Item(item.id, item.agent, item.seq, item.kind, item.text, item.on_lost, item.created_at)
    return Done(Accepted(replace(new, followup=op.message.followup), is_new=True))


def _of_cancel(model: Model, seen: Seen, op: Cancel) -> Guess:
    item, now = model.items[op.item], seen.items[op.item]
    if item.is_settled or item.cancel_requested:
        return NoTrace()
    if item.status == "running":
        is_there = now.cancel_requested
        return Done(replace(item, cancel_requested=True)) if is_there else Absent()
    if now.status != "cancelled":
        return Absent()
    return Done(replace(item, status="cancelled", settled_at=now.settled_at))


def _of_hire(model: Model, seen: Seen, op: Hire) -> Guess:
    accepted = _of_accept(model, seen, Accept(op.message))
    if not isinstance(accepted, Done):
        return Absent()
    item = accepted.result.item
    at = seen.items[item.id].started_at
    running = replace(model.started(item, at), run=op.run)
    run = step(None, created_by(op, op.agent, running))
    claim = Claim(op.agent.id, op.holder, 1, running)
    return Done(Started(claim, run, op.agent, None, None, None))


def _of_start(model: Model, seen: Seen, op: StartOne) -> Guess:
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


def _of_wake(model: Model, seen: Seen, op: Wake) -> Guess:
    if not model.is_warm(op.hold):
        return NoTrace()
    item = seen.by_text(op.message.text)
    return Done(Claim(op.hold.agent, op.hold.holder, op.hold.fence, item)) if item else Absent()


def _of_letting_go(model: Model, seen: Seen, op: LetGo) -> Guess:
    if not model.is_warm(op.hold):
        return NoTrace()
    lane, hold = seen.lanes[op.hold.agent], op.hold
    is_there = (lane.status, lane.holder, lane.fence) == ("warm", hold.holder, hold.fence)
    return Absent() if is_there else Done(True)


def _of_take(model: Model, seen: Seen, op: Take) -> Guess:
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


def _of_trying_again(model: Model, seen: Seen, op: Again) -> Guess:
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
