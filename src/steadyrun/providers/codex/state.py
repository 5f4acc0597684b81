"""What is remembered of a Codex process? A function of the lines told and printed alone."""

from msgspec import Struct

from steadyrun.lib.jsonrpc import RpcId
from steadyrun.model.event import ErrorFact
from steadyrun.model.policy import Mode
from steadyrun.model.usage import Cost
from steadyrun.providers.codex.frames import CodexTokens, RateLimitWindow


class CodexTool(Struct):
    """A tool that is used. `input` is JSON: a number in it may be too large to be saved."""

    name: str
    input: bytes
    # A command's, by which it can be ended.
    process: str | None = None
    # It was asked whether it may be used.
    is_asked_for: bool = False
    # Its turn is over; it may have been told that it has ended with it.
    is_late: bool = False
    is_cut_off: bool = False


class CodexOffer(Struct):
    """A follow-up that was not taken yet."""

    text: str
    # The name we gave to it; a recording may have none.
    client: str | None
    # It was accepted, which does not mean that it will be taken.
    is_accepted: bool = False
    # It is part of the conversation; the model may not have been asked since.
    is_taken: bool = False
    # It will be a turn of its own: what is never said by us.
    is_queued: bool = False


class CodexApproval(Struct):
    """A question that waits for our answer."""

    request: RpcId
    method: str
    # What is asked for, where the answer has to say it again.
    permissions: bytes | None = None


class CodexPendingRequest(Struct):
    """What we have asked, and for whom."""

    method: str
    name: str


class CodexTurn(Struct):
    """The turn that is open. `name` is our key or made of the place it began, `id` is Codex's, and
    `other_id` what its beginning calls it."""

    name: str
    id: str | None = None
    other_id: str | None = None
    # What was said last, what was said to be the answer, and what is none.
    text: str | None = None
    answer: str | None = None
    aside: str | None = None
    # What is to be done: the answer of a turn that says nothing else.
    plan: str | None = None
    used: CodexTokens | None = None
    cost: Cost = Cost()
    error: ErrorFact | None = None
    # A hook was against it before the model was asked.
    blocked: ErrorFact | None = None
    # Why the model was asked again, if it has not answered since.
    retry: ErrorFact | None = None
    retries: int = 0
    # Nothing but a compaction, which somebody has asked for.
    is_compaction: bool = False
    # The size of the conversation before the compaction that is going on.
    compacted_tokens: int | None = None
    is_compacting: bool = False
    # The names of the images so far by what tells them apart.
    images: dict[str, str] = {}
    has_left_out_images: bool = False
    # Of `exec`: anything was done in it.
    has_steps: bool = False

    def is_called(self, turn: str | None) -> bool:
        return turn is not None and turn in {self.id, self.other_id}

    @property
    def has_answer(self) -> bool:
        """Whether the model was asked, and has said anything."""
        return self.used is not None or bool(self.text or self.answer or self.aside or self.plan)


class CodexState(Struct):
    """What was told and printed so far, as far as it matters for what comes."""

    # It has printed something.
    has_spoken: bool = False
    # The conversation, and the one that was to be gone on with.
    thread: str | None = None
    # The one that was told of.
    bound_thread: str | None = None
    resumed: str | None = None
    is_resumed: bool = False
    # Why there is no conversation.
    refused: ErrorFact | None = None
    model: str | None = None
    # The mode that the process was started in, until a turn was told of it.
    untold_mode: Mode | None = None
    context_window: int | None = None
    # The size of the conversation.
    context_tokens: int | None = None
    # What each conversation has used so far; the one that was told of last is the last.
    totals: dict[str, CodexTokens] = {}
    # The conversations of sub-agents, and those that somebody goes on with beside the open turn.
    subagents: set[str] = set()
    beside: set[str] = set()
    turn: CodexTurn | None = None
    has_begun: bool = False
    # The id of the turn before.
    last_turn: str | None = None
    offers: dict[str, CodexOffer] = {}
    # By the approval that was made of each.
    asks: dict[str, CodexApproval] = {}
    # By the id of the request, as JSON.
    asked: dict[str, CodexPendingRequest] = {}
    tools: dict[str, CodexTool] = {}
    # Thoughts that were told as they came.
    thoughts: set[str] = set()
    # What may be used in some time, by its name.
    windows: dict[str, RateLimitWindow] = {}
    # What was warned of: some warnings come with each turn.
    warnings: set[str] = set()
    wants_compaction: bool = False

    def begin_turn(self, turn: CodexTurn) -> None:
        """Nothing of the turn before is left."""
        self.turn, self.has_begun = turn, True
        self.thoughts = set()

    def is_other(self, thread: str | None, turn: str | None = None) -> bool:
        """Whether something belongs to another conversation, or to another turn than the open."""
        if thread is not None and self.thread is not None and thread != self.thread:
            return True
        if turn is None or self.turn is None:
            return False
        if self.turn.id is None:
            return turn == self.last_turn
        return not self.turn.is_called(turn)
