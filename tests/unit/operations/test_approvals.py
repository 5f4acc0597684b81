"""An invalid answer to an approval is refused before anything is written."""

from pathlib import Path

import pytest

from steadyrun.dialect import EnforcedRights
from steadyrun.errors import InvalidUsage
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval, ApprovalAnswer
from steadyrun.model.ids import AgentId, ApprovalId, Ids, RunId
from steadyrun.operations.approvals import answer_approval
from steadyrun.operations.context import OperationContext
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.stores.memory.tables import Tables
from steadyrun.testing.clock import START, FakeClock

ADA = Agent(AgentId("agt_1"), "ada", ("scripted",), "/home/ada")
ALWAYS = ApprovalAnswer(True, "eve", START, always=True)
ELSEWHERE = ApprovalAnswer(True, "eve", START, provider="codex")


def a_desk(store: MemoryStore) -> OperationContext:
    clock = FakeClock()
    return OperationContext(
        store,
        clock,
        Ids(clock.now),
        Path("/home"),
        lambda _: None,
        lambda _, __: EnforcedRights("default"),
    )


async def test_always_is_refused_for_a_request_that_does_not_offer_it() -> None:
    asked = Approval(ApprovalId("prc_1:1"), ADA.id, RunId("run_1"), START, "Bash")
    tables = Tables(agents={ADA.id: ADA}, approvals={asked.id: asked})

    context = a_desk(MemoryStore(FakeClock(), tables=tables))
    with pytest.raises(InvalidUsage, match="prc_1:1 does not offer --always"):
        await answer_approval(context, asked, ALWAYS)
    with pytest.raises(InvalidUsage, match="prc_1:1 is about a tool"):
        await answer_approval(context, asked, ELSEWHERE)
    assert await context.store.approval(asked.id) == asked
