"""Defines the state of a Codex process.

The state depends only on the lines that were written and printed. It is saved at the end of each
turn by its field names. A renamed field keeps its old name in the saved state with `name=`.
"""

from msgspec import Struct, field

from steadyrun.lib.jsonrpc import RpcId
from steadyrun.model.event import ErrorFact
from steadyrun.model.policy import Mode
from steadyrun.model.usage import Cost
from steadyrun.providers.codex.frames import CodexTokens, RateLimitWindow
from steadyrun.providers.shared.images import ImageTurn


class CodexTool(Struct):
    """A running tool. `input` stays JSON, because a number in it may be too large to be saved."""

    name: str
    input: bytes
    # The process id of a command, by which it can be terminated.
    process: str | None = None
    # An approval was requested for it.
    is_asked_for: bool = False
    # Late: its turn has ended. Cut off: its failure was reported with the end of the turn.
    is_late: bool = False
    is_cut_off: bool = False


class CodexOffer(Struct):
    """A follow-up whose outcome is not known yet."""

    text: str
    # Our id of the message; a recording may have none.
    client: str | None
    # Codex accepted it. That does not prove that it will be taken.
    is_accepted: bool = False
    # It is part of the conversation. The model may not have answered since.
    is_taken: bool = False
    # It will be a turn of its own. Only recordings have such messages.
    is_queued: bool = False


class CodexApproval(Struct):
    """An open approval."""

    request: RpcId
    method: str
    # The requested permissions, if the answer has to repeat them.
    permissions: bytes | None = None


class CodexPendingRequest(Struct):
    """A request of steadyrun without a reply; `name` is the turn, offer or mode it was sent for."""

    method: str
    name: str


class CodexTurn(ImageTurn):
    """The open turn. `name` is the turn's key or made of the journal's offset, `id` is the id of
    Codex, and `other_id` the id in its `turn/started`."""

    name: str
    id: str | None = None
    other_id: str | None = None
    # The last text, the text marked as the answer, and the last commentary.
    text: str | None = None
    answer: str | None = None
    aside: str | None = None
    # The plan. It is the answer of a turn without any other text.
    plan: str | None = None
    used: CodexTokens | None = None
    cost: Cost = Cost()
    error: ErrorFact | None = None
    # A hook blocked it before the model was asked.
    blocked: ErrorFact | None = None
    # The reason of the last retry, if the model has not answered since.
    retry: ErrorFact | None = None
    retries: int = 0
    # It only compacts the conversation, by request.
    is_compaction: bool = False
    # The size of the conversation before the running compaction.
    compacted_tokens: int | None = None
    is_compacting: bool = False
    # With `exec`: the turn had an item.
    has_steps: bool = False

    def is_called(self, turn: str | None) -> bool:
        return turn is not None and turn in {self.id, self.other_id}

    @property
    def has_answer(self) -> bool:
        """Whether the model used tokens or answered."""
        return self.used is not None or bool(self.text or self.answer or self.aside or self.plan)


class CodexState(Struct):
    """Everything that the Dialect remembers of one process."""

    # It has printed a line of a known type.
    has_spoken: bool = False
    # The conversation; the one whose token was reported; the one to resume.
    thread: str | None = None
    bound_thread: str | None = None
    resumed: str | None = None
    is_resumed: bool = False
    # Why there is no conversation.
    refused: ErrorFact | None = None
    model: str | None = None
    # The mode of the launch, until it was sent with a turn.
    unsent_mode: Mode | None = field(default=None, name="untold_mode")
    context_window: int | None = None
    # The size of the conversation.
    context_tokens: int | None = None
    # The tokens of each conversation so far. The one reported last is at the end.
    totals: dict[str, CodexTokens] = {}
    # The conversations of sub-agents, and those that have a turn beside the open one.
    subagents: set[str] = set()
    beside: set[str] = set()
    turn: CodexTurn | None = None
    has_begun: bool = False
    # The id of the previous turn.
    last_turn: str | None = None
    offers: dict[str, CodexOffer] = {}
    # By the id of the approval.
    asks: dict[str, CodexApproval] = {}
    # By the id of the request, as JSON.
    asked: dict[str, CodexPendingRequest] = {}
    tools: dict[str, CodexTool] = {}
    # The reasoning items that were streamed.
    thoughts: set[str] = set()
    # The windows of the account's limits, by name.
    windows: dict[str, RateLimitWindow] = {}
    # The warnings that were reported. Codex repeats some with each turn.
    warnings: set[str] = set()
    wants_compaction: bool = False

    def begin_turn(self, turn: CodexTurn) -> None:
        """Open a turn in place of the one before."""
        self.turn, self.has_begun = turn, True
        self.thoughts = set()

    def is_other(self, thread: str | None, turn: str | None = None) -> bool:
        """Whether a line belongs to another conversation, or to another turn than the open one."""
        if thread is not None and self.thread is not None and thread != self.thread:
            return True
        if turn is None or self.turn is None:
            return False
        if self.turn.id is None:
            return turn == self.last_turn
        return not self.turn.is_called(turn)
