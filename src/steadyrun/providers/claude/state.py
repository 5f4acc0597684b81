"""Defines the state of a Claude Code process.

The state depends only on the lines that were written and printed. It is saved at the end of each
turn by its field names. A renamed field keeps its old name in the saved state with `name=`.
"""

from msgspec import Struct, field

from steadyrun.dialect import TurnEnded
from steadyrun.model.usage import Usage
from steadyrun.providers.claude.frames import CallUsage
from steadyrun.providers.shared.images import ImageTurn


class ClaudeTool(Struct):
    """A running tool. `input` stays JSON, because a number in it may be too large to be saved."""

    name: str
    input: bytes
    # The call carries the answer of the turn. It was reported as text, so no tool has to end.
    is_answer: bool = False


class ClaudeOffer(Struct):
    """A follow-up whose outcome is not known yet."""

    text: str
    uuid: str | None
    # It must not become part of the running turn.
    is_later: bool = False
    # Ripe: a tool ended or a turn began since the offer. Taken: after that, the model answered.
    # Without echoes this is the only evidence.
    is_ripe: bool = False
    is_taken: bool = False
    # A recall was requested, and the message is in no queue any more.
    is_gone: bool = False


class ClaudeApproval(Struct):
    """An open approval. The approval of a sub-agent may outlive the turn."""

    request: str
    input: bytes
    # The id of the tool call.
    tool: str | None = None
    is_sub_agent: bool = False
    # The rules that would always allow it, as JSON.
    rules: bytes | None = None


class ClaudePendingRequest(Struct):
    """A request of steadyrun without a reply; `offer` is to be recalled, `mode` is the requested
    mode.
    """

    subtype: str
    offer: str | None = None
    mode: str | None = None


class ClaudeTurn(ImageTurn):
    """The open turn. `name` is the turn's key, the offer's id, or made of the journal's offset."""

    name: str
    uuid: str | None = None
    # Steadyrun sent it. Claude Code begins the other turns itself.
    is_requested: bool = field(default=False, name="is_told")
    # A command of Claude Code, which asks no model. A text from steadyrun is never a command.
    is_command: bool = False
    has_init: bool = False
    has_spoken: bool = False
    is_echoed: bool = False
    is_interrupted: bool = False
    # A hook of the user stopped it.
    is_stopped: bool = False
    has_failed_compaction: bool = False
    text: str | None = None
    # The first error that was printed in place of an answer.
    error: str | None = None
    # The reason of the last retry, if the model has not answered since.
    retry: str | None = None
    # The end of the turn, if no further line of it follows.
    doubtful_end: TurnEnded | None = None
    # The tokens of the finished model calls; `opening` has the input of the open call.
    used: Usage = Usage(0, 0, 0, 0)
    opening: CallUsage = CallUsage()
    # The model of the open call, and the list price of all calls; None if one has no price.
    called_model: str | None = None
    estimated_usd: float | None = 0.0


class ClaudeState(Struct):
    """Everything that the Dialect remembers of one process."""

    # It has printed a line of a known type.
    has_spoken: bool = False
    is_ready: bool = False
    # It reported that it is busy. A version that never does is ready after each result.
    is_running: bool = False
    # The name of the first turn. It is unique to this process.
    first_turn: str | None = None
    has_init: bool = False
    has_echoes: bool = False
    turn: ClaudeTurn | None = None
    # A failed result before any turn. It explains why the process cannot start.
    held: TurnEnded | None = None
    token: str | None = None
    model: str | None = None
    # The model that was requested last.
    wanted_model: str | None = None
    mode: str | None = None
    # The turn that was never sent, because Claude Code refused its mode.
    refused_turn: str | None = None
    offers: dict[str, ClaudeOffer] = {}
    # By the id of the approval.
    asks: dict[str, ClaudeApproval] = {}
    asked: dict[str, ClaudePendingRequest] = {}
    tools: dict[str, ClaudeTool] = {}
    # The background tasks, with the tool call that started each.
    tasks: dict[str, str | None] = {}
    # A background task ended since the last turn, so the next turn may be about that.
    has_ended_task: bool = field(default=False, name="is_woken")
    # The message that is being streamed.
    streaming: str | None = None
    cost_usd: float = 0.0
    totals: dict[str, Usage] = {}
    # The end of a reached limit, in seconds since 1970.
    resets_at: float | None = None

    def begin_turn(self, turn: ClaudeTurn) -> None:
        """Open a turn in place of the one before."""
        self.turn = turn
        self.first_turn = self.first_turn or turn.name
