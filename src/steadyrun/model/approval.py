"""Defines approvals: the requests of runs to users, and the answers.

A run waits for the approval of a tool, and withdraws its request when it ends. A request about a
budget is the last event of a run: its agent is paused until it is answered.
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

# `answered`: the run does not have the answer yet. `withdrawn`: no run waits for it any more; the
# agent has requested something else, or its run has ended.
ApprovalStatus = Literal["open", "answered", "resolved", "withdrawn"]
UNSETTLED: tuple[ApprovalStatus, ...] = ("open", "answered")

# The author in an event if the provider has withdrawn its request.
BY_PROVIDER = "provider"
# The author of the denial of a request without an answer.
BY_TIMEOUT = "timeout"


class ApprovalAnswer(Struct, frozen=True):
    """The answer of a user. `input` replaces the input of the tool; a denial with `ends_turn`
    interrupts the turn; with `always` the same tool needs no further approval.

    For a budget, `extended` are the new limits, and `provider` the provider to continue with."""

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
        """The content without time and effects: a repeated answer is the same answer."""
        return (
            self.is_allowed, self.by, self.reason, self.always, self.input, self.ends_turn,
            self.provider,
        )  # fmt: skip

    @property
    def verdict(self) -> Literal["allow", "deny"]:
        return "allow" if self.is_allowed else "deny"


class Approval(Struct, frozen=True):
    """A request of a run: to use a tool, or to continue after a budget was spent."""

    id: ApprovalId
    agent: AgentId
    run: RunId
    asked_at: datetime
    tool_name: str
    tool_input: Any = None
    tool_call_id: str | None = None
    # Whether it can be allowed for the whole conversation.
    offers_always: bool = False
    status: ApprovalStatus = "open"
    answer: ApprovalAnswer | None = None
    about: ApprovalTopic = "tool"
    # For a budget: the agent was paused by a user as well, and stays paused.
    is_paused_besides: bool = False

    def with_answer(self, answer: ApprovalAnswer) -> "Approval":
        """The approval with an answer; `answered` if a run waits for it."""
        return replace(
            self, status="answered" if self.about == "tool" else "resolved", answer=answer
        )

    @property
    def name(self) -> str:
        """Its name in its process."""
        return self.id.partition(":")[2]

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.id.partition(":")[0])


def build_approval_id(process: ProcessId, name: str) -> ApprovalId:
    """The id of an approval; its name is unique only in its process."""
    return ApprovalId(f"{process}:{name}")


def build_approval(emitted: Emitted, process: ProcessId, agent: AgentId, run: RunId) -> Approval:
    """The approval of an event."""
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
    """The event for an answered approval whose run has ended."""
    answer = approval.answer
    assert answer
    event = ApprovalResolved(approval.name, answer.verdict, answer.by)
    return Emitted(f"{approval.id}:resolved", 0, answer.at, event)


def choose_status(by: str) -> ApprovalStatus:
    """The status of an approval that was resolved by `by`."""
    return "withdrawn" if by == BY_PROVIDER else "resolved"
