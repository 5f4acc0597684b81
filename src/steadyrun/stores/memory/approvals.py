"""How do approvals change in the reference store? In the same step as what is the reason."""

from collections.abc import Iterable

from steadyrun.errors import ChangeRefused, NotFound
from steadyrun.model.approval import (
    UNSETTLED,
    Approval,
    ApprovalAnswer,
    build_approval,
    build_approval_id,
    choose_status,
)
from steadyrun.model.batch import Batch
from steadyrun.model.event import ApprovalRequested, ApprovalResolved
from steadyrun.model.ids import AgentId, ApprovalId, RunId
from steadyrun.stores.memory.tables import Placed, Tables, altered, lane_of, set_paused


def heard(t: Tables, agent: AgentId, batch: Batch, placed: Iterable[Placed]) -> None:
    """A question was asked, or has come to its end."""
    for each in placed:
        match each.emitted.event:
            case ApprovalRequested() if batch.run is not None:
                _ask(t, build_approval(each.emitted, batch.process, agent, batch.run))
            case ApprovalResolved(name, _, by):
                known = t.approvals.get(build_approval_id(batch.process, name))
                if known and known.status in UNSETTLED:
                    t.approvals[known.id] = altered(known, status=choose_status(by))
            case _:
                pass


def _ask(t: Tables, approval: Approval) -> None:
    if approval.about == "budget":
        agent = approval.agent
        is_besides = lane_of(t, agent).is_paused and not _about_budget(t, agent)
        approval = altered(approval, is_paused_besides=is_besides)
        set_paused(t, agent, is_paused=True)
    t.approvals.setdefault(approval.id, approval)


def pause(t: Tables, agent: AgentId) -> None:
    """Somebody wants it: whoever allows it to spend more does not end that."""
    set_paused(t, agent, is_paused=True)
    for known in _about_budget(t, agent):
        t.approvals[known.id] = altered(known, is_paused_besides=True)


def _about_budget(t: Tables, agent: AgentId) -> list[Approval]:
    found = [each for each in t.approvals.values() if each.agent == agent]
    return [each for each in found if each.about == "budget" and each.status in UNSETTLED]


def withdraw(t: Tables, run: RunId) -> None:
    """Nobody waits for what is not settled by now."""
    _withdraw(t, [a for a in t.approvals.values() if a.run == run and a.about == "tool"])


def forget(t: Tables, agent: AgentId) -> None:
    """Nobody needs to know any more how an agent shall go on."""
    _withdraw(t, [a for a in t.approvals.values() if a.agent == agent])


def _withdraw(t: Tables, some: Iterable[Approval]) -> None:
    for each in some:
        if each.status in UNSETTLED:
            t.approvals[each.id] = altered(each, status="withdrawn")


def answer(t: Tables, approval: ApprovalId, given: ApprovalAnswer) -> Approval:
    known = t.approvals.get(approval)
    if known is None:
        raise NotFound("approval", approval)
    if known.answer and known.answer.to_key() == given.to_key():
        return known
    if known.status != "open":
        raise ChangeRefused("answer", found=f"{known.id} is {known.status}")
    t.approvals[known.id] = known.with_answer(given)
    if known.about == "budget" and given.is_allowed and not known.is_paused_besides:
        set_paused(t, known.agent, is_paused=False)
    return t.approvals[known.id]
