"""What is remembered of a Claude Code process? A function of the lines told and printed alone."""

from msgspec import Struct, field

from steadyrun.dialect import TurnEnded
from steadyrun.providers.claude.frames import CallUsage


class ClaudeTool(Struct):
    """A tool that is used. `input` is JSON: a number in it may be too large to be saved."""

    name: str
    input: bytes
    # It was told as the answer that it is: so there is no tool to end.
    is_answer: bool = False


class ClaudeOffer(Struct):
    """A follow-up of which it is not known yet what became of it."""

    text: str
    uuid: str | None
    # It may not be taken into the turn that is running.
    is_later: bool = False
    # A tool has ended or a turn begun since, and then the model was heard: without echoes this is
    # all there is.
    is_ripe: bool = False
    is_taken: bool = False
    # It was to be taken back and is in no queue any more.
    is_gone: bool = False


class ClaudeApproval(Struct):
    """A question that waits for our answer; a sub-agent's may outlive the turn."""

    request: str
    input: bytes
    # The tool that is to be used.
    tool: str | None = None
    is_sub_agent: bool = False
    # The rules that would allow it for good, as JSON.
    rules: bytes | None = None


class ClaudePendingRequest(Struct):
    """What we have asked; `offer` is the one that is to be taken back, `mode` the one wanted."""

    subtype: str
    offer: str | None = None
    mode: str | None = None


class ClaudeTotals(Struct):
    """Tokens that were used, by one model or in one turn."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class ClaudeTurn(Struct):
    """The turn that is open. `name` is our key, the offer's id or made of the place it began."""

    name: str
    uuid: str | None = None
    # Somebody asked for it; others are begun by Claude Code itself.
    is_told: bool = False
    # The model is not asked: a command of Claude Code, which no text of ours ever is.
    is_command: bool = False
    has_init: bool = False
    has_spoken: bool = False
    is_echoed: bool = False
    is_interrupted: bool = False
    # A hook of the user's does not let it go on.
    is_stopped: bool = False
    has_failed_compaction: bool = False
    text: str | None = None
    # The first error that came in the place of an answer.
    error: str | None = None
    # Why the model was asked again, if it has not answered since.
    retry: str | None = None
    # How it has ended, if nothing more comes of it.
    doubtful_end: TurnEnded | None = None
    # The names of the images so far by what tells them apart.
    images: dict[str, str] = {}
    has_left_out_images: bool = False
    # What the calls of the model have used; the call that is open only tells its input.
    used: ClaudeTotals = field(default_factory=ClaudeTotals)
    opening: CallUsage = CallUsage()
    # The model of that call, and what all calls would cost; None: of one of them nobody knows.
    called_model: str | None = None
    estimated_usd: float | None = 0.0


class ClaudeState(Struct):
    """What was told and printed so far, as far as it matters for what comes."""

    # It has printed something that we know.
    has_spoken: bool = False
    is_ready: bool = False
    # It said that it is busy; one that never says so is as ready after a result.
    is_running: bool = False
    # The name of the first turn, which no other process has.
    first_turn: str | None = None
    has_init: bool = False
    has_echoes: bool = False
    turn: ClaudeTurn | None = None
    # An end that came before any turn: why it cannot start.
    held: TurnEnded | None = None
    token: str | None = None
    model: str | None = None
    # The model it was told to use last.
    wanted_model: str | None = None
    mode: str | None = None
    # The turn that was never told: it would have needed a mode that was turned down.
    refused_turn: str | None = None
    offers: dict[str, ClaudeOffer] = {}
    # By the approval that was made of each.
    asks: dict[str, ClaudeApproval] = {}
    asked: dict[str, ClaudePendingRequest] = {}
    tools: dict[str, ClaudeTool] = {}
    # What runs in the background, with the tool that has started it.
    tasks: dict[str, str | None] = {}
    # Something has ended in the background since the last turn: the next one may be about that.
    is_woken: bool = False
    # The message that is streamed: its words are told as they come.
    streaming: str | None = None
    cost_usd: float = 0.0
    totals: dict[str, ClaudeTotals] = {}
    # When a limit that was hit ends, in seconds since 1970.
    resets_at: float | None = None

    def begin_turn(self, turn: ClaudeTurn) -> None:
        """Nothing of the turn before is left."""
        self.turn = turn
        self.first_turn = self.first_turn or turn.name
