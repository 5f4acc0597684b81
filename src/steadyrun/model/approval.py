"""What was a person asked, and what did they say? One row for each question of a run.

A run waits for the answer about a tool, and withdraws its question when it ends. A question about
a budget is the last thing a run does: its agent is paused until it is answered.
"""

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.model.budget import BudgetExtension
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalTopic,
    Emitted,
    JsonObject,
)
from steadyrun.model.ids import AgentId, ApprovalId, ProcessId, RunId

# An answer that was given is on its way until the one who asked has it. One that nobody waits for
# any more was withdrawn: the agent has asked for something else, or its run is over.
ApprovalStatus = Literal["open", "answered", "resolved", "withdrawn"]
UNSETTLED: tuple[ApprovalStatus, ...] = ("open", "answered")

# How an event says that the provider took its question back.
BY_PROVIDER = "provider"
# Who denies what nobody has answered.
BY_TIMEOUT = "timeout"


class ApprovalAnswer(Struct, frozen=True):
    """Whether it may, and who says so. `input` is what the tool is to be called with instead, and a
    denial that `ends_turn` interrupts it; `always`: nor need it ask again for the same.

    Of a budget: `extended` is what may be spent now, and `provider` who is to go on."""

    is_allowed: bool
    by: str
    at: datetime
    reason: str = ""
    always: bool = False
    input: JsonObject | None = None
    ends_turn: bool = False
    provider: str | None = None
    extended: tuple[BudgetExtension, ...] = ()

    def to_key(self) -> tuple[object, ...]:
        """What was meant, not when or what it led to: the same said again is the same answer."""
        return (
            self.is_allowed, self.by, self.reason, self.always, self.input, self.ends_turn,
            self.provider,
        )  # fmt: skip

    @property
    def verdict(self) -> Literal["allow", "deny"]:
        return "allow" if self.is_allowed else "deny"


class Approval(Struct, frozen=True):
    """A question of a run: may it use this tool, may its agent go on?"""

    id: ApprovalId
    agent: AgentId
    run: RunId
    asked_at: datetime
    tool_name: str
    tool_input: Any = None
    tool_call_id: str | None = None
    # It may be allowed for good.
    offers_always: bool = False
    status: ApprovalStatus = "open"
    answer: ApprovalAnswer | None = None
    about: ApprovalTopic = "tool"
    # Of a budget: its agent was paused besides, and stays so.
    is_paused_besides: bool = False

    def with_answer(self, answer: ApprovalAnswer) -> "Approval":
        """With an answer, which is on its way if anybody waits for it."""
        return replace(
            self, status="answered" if self.about == "tool" else "resolved", answer=answer
        )

    @property
    def name(self) -> str:
        """What its process calls it."""
        return self.id.partition(":")[2]

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.id.partition(":")[0])


def build_approval_id(process: ProcessId, name: str) -> ApprovalId:
    """Names are those of one process only."""
    return ApprovalId(f"{process}:{name}")


def build_approval(emitted: Emitted, process: ProcessId, agent: AgentId, run: RunId) -> Approval:
    """The question that an event tells of."""
    event = emitted.event
    assert isinstance(event, ApprovalRequested)
    return Approval(
        build_approval_id(process, event.approval),
        agent,
        run,
        emitted.at,
        event.tool_name,
        event.tool_input,
        event.tool_call_id,
        event.offers_always,
        about=event.about,
    )


def build_resolution(approval: Approval) -> Emitted:
    """What the record says of a question whose run is over, and that was answered."""
    answer = approval.answer
    assert answer
    event = ApprovalResolved(approval.name, answer.verdict, answer.by)
    return Emitted(f"{approval.id}:resolved", 0, answer.at, event)


def choose_status(by: str) -> ApprovalStatus:
    """What a question becomes when its end is told."""
    return "withdrawn" if by == BY_PROVIDER else "resolved"
