"""How do approvals change in the reference store? In the same step as what is the reason."""

from collections.abc import Iterable

from steadyrun.errors import ChangeRefused, NotFound
from steadyrun.model.approval import UNSETTLED, Answer, Approval, approval_id, asked, status_by
from steadyrun.model.batch import Batch
from steadyrun.model.event import ApprovalRequested, ApprovalResolved
from steadyrun.model.ids import AgentId, ApprovalId, RunId
from steadyrun.testing.tables import Placed, Tables, altered, set_paused


def heard(t: Tables, agent: AgentId, batch: Batch, placed: Iterable[Placed]) -> None:
    """A question was asked, or has come to its end."""
    for each in placed:
        match each.emitted.event:
            case ApprovalRequested() if batch.run is not None:
                approval = asked(each.emitted, batch.process, agent, batch.run)
                t.approvals.setdefault(approval.id, approval)
                if approval.about == "budget":
                    set_paused(t, agent, is_paused=True)
            case ApprovalResolved(name, _, by):
                known = t.approvals.get(approval_id(batch.process, name))
                if known and known.status in UNSETTLED:
                    t.approvals[known.id] = altered(known, status=status_by(by))
            case _:
                pass


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


def answer(t: Tables, approval: ApprovalId, given: Answer) -> Approval:
    known = t.approvals.get(approval)
    if known is None:
        raise NotFound("approval", approval)
    if known.answer and known.answer.says() == given.says():
        return known
    if known.status != "open":
        raise ChangeRefused("answer", found=f"{known.id} is {known.status}")
    t.approvals[known.id] = known.answered(given)
    if known.about == "budget" and given.is_allowed:
        set_paused(t, known.agent, is_paused=False)
    return t.approvals[known.id]
