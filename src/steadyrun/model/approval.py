"""What was a person asked, and what did they say? One row for each question of a run."""

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from steadyrun.model.event import ApprovalRequested, Emitted, JsonObject
from steadyrun.model.ids import AgentId, ApprovalId, ProcessId, RunId

# An answer that was given is on its way until the one who asked has it. One that nobody waits for
# any more was withdrawn: the agent has asked for something else, or its run is over.
ApprovalStatus = Literal["open", "answered", "resolved", "withdrawn"]
UNSETTLED: tuple[ApprovalStatus, ...] = ("open", "answered")

# How an event says that the provider took its question back.
BY_PROVIDER = "provider"
# Who denies what nobody has answered.
BY_TIMEOUT = "timeout"


class Answer(Struct, frozen=True):
    """Whether it may, and who says so. `input` is what the tool is to be called with instead, and a
    denial that `ends_turn` interrupts it; `always`: nor need it ask again for the same."""

    is_allowed: bool
    by: str
    at: datetime
    reason: str = ""
    always: bool = False
    input: JsonObject | None = None
    ends_turn: bool = False

    def says(self) -> tuple[object, ...]:
        """All but the time: the same said again is the same answer."""
        return (
            self.is_allowed, self.by, self.reason, self.always, self.input, self.ends_turn,
        )  # fmt: skip


class Approval(Struct, frozen=True):
    """A question of a run: may it use this tool?"""

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
    answer: Answer | None = None

    @property
    def name(self) -> str:
        """What its process calls it."""
        return self.id.partition(":")[2]

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.id.partition(":")[0])


def approval_id(process: ProcessId, name: str) -> ApprovalId:
    """Names are those of one process only."""
    return ApprovalId(f"{process}:{name}")


def asked(emitted: Emitted, process: ProcessId, agent: AgentId, run: RunId) -> Approval:
    """The question that an event tells of."""
    event = emitted.event
    assert isinstance(event, ApprovalRequested)
    return Approval(
        approval_id(process, event.approval),
        agent,
        run,
        emitted.at,
        event.tool_name,
        event.tool_input,
        event.tool_call_id,
        event.offers_always,
    )


def status_by(by: str) -> ApprovalStatus:
    """What a question becomes when its end is told."""
    return "withdrawn" if by == BY_PROVIDER else "resolved"
