"""The contract of a Dialect: how one CLI speaks.

Everything a provider does happens in a child process. A Dialect knows how that child speaks and
nothing else: no I/O, no clock, one instance for each live process. `drivers/process_driver.py`
runs any of them. What a Dialect remembers is a function of `sent` and `receive` alone; so a run is
rebuilt after a crash by playing both again, in their recorded order.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

from msgspec import Struct

from steadyrun.lib.framing import Frame
from steadyrun.model.event import Diagnostic, ErrorFact, Event, JsonObject
from steadyrun.model.policy import DENIED, Mode, Rights
from steadyrun.model.run import EndStatus, StopReason
from steadyrun.model.usage import Cost, Usage

# What a caller may ask of a provider beyond one prompt. What is not listed is refused by name.
Ability = Literal[
    "resume", "steer", "recall", "interrupt", "multi_turn", "approvals", "change_input", "model",
    "modes", "tools", "system", "images", "schema", "max_turns", "usage",
]  # fmt: skip

# The words for each, also those of the table in docs/providers.md.
ABILITIES: Mapping[Ability, str] = {
    "resume": "go on with an earlier conversation",
    "steer": "take a message into a turn that is running",
    "recall": "give back a message that was not taken yet",
    "interrupt": "end the turn, keep the process",
    "multi_turn": "one process serves many turns; without it, one process is one turn",
    "approvals": "ask us before it uses a tool",
    "change_input": "use a tool with another input than it asked for",
    "model": "use the model it is told",
    "modes": "keep to a mode: what it may do unasked",
    "tools": "have the named tools and no others",
    "system": "take another system prompt",
    "images": "take pictures with a prompt",
    "schema": "answer with JSON that fits a schema",
    "max_turns": "stop after so many steps",
    "usage": "tell what it uses while it works, so that a budget can stop it",
}


class Image(Struct, frozen=True):
    """A picture that goes with a prompt."""

    media_type: str
    data: bytes


class Turn(Struct, frozen=True):
    """All a provider is told for one turn. `key` names it and makes telling it twice harmless.

    `model` and `mode` hold from this turn on, where the process has others; None leaves them.
    """

    key: str
    text: str
    images: tuple[Image, ...] = ()
    schema: JsonObject | None = None
    model: str | None = None
    mode: Mode | None = None


class LaunchRequest(Struct, frozen=True):
    """What a process is started with. `turn` is the first one.

    `directory`, where its files are, and `command`, if another than the usual one is configured,
    are filled in when it is launched. With `adds_system` the provider's own system prompt stays,
    and `system` comes after it; without, it takes its place where the provider can do that.
    `one_shot`: it serves this turn alone, where the provider's program can be started so.
    """

    turn: Turn
    cwd: str
    directory: str = ""
    command: tuple[str, ...] = ()
    resume: str | None = None
    model: str | None = None
    mode: Mode = "default"
    tools: tuple[str, ...] | None = None
    deny: tuple[str, ...] = DENIED
    system: str | None = None
    adds_system: bool = False
    max_turns: int | None = None
    max_cost_usd: float | None = None
    one_shot: bool = False

    @property
    def rights(self) -> Rights:
        return Rights(self.mode, self.tools, self.deny)


class Rung(Struct, frozen=True):
    """One step of asking a process to end; after the last one everything is killed.

    `will` writes the interrupting frame, `eof` closes stdin, `signal` sends one.
    """

    do: Literal["will", "eof", "signal"]
    wait_seconds: float
    number: int | None = None


class Launch(Struct, frozen=True):
    """How to start it. `env` is added to the few variables every child gets; `files` are written
    into the process's directory first."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    files: Mapping[str, bytes] = {}
    stdin: Literal["pipe", "null"] = "pipe"
    rungs: tuple[Rung, ...] = ()


class Send(Struct, frozen=True):
    """Write this line. The same `key` again is the same line, and is written once."""

    key: str
    raw: bytes


class SendSignal(Struct, frozen=True):
    """Send the child this signal."""

    number: int


class Offer(Struct, frozen=True):
    """A message for the turn that is running."""

    id: str
    text: str


class Refused(Struct, frozen=True):
    """Not possible, and why."""

    reason: str


class EnforcedRights(Struct, frozen=True):
    """Rights can be kept: in this `mode`, which may be a stricter one than was asked for.

    `notes` say what is kept otherwise than by its word.
    """

    mode: Mode
    notes: tuple[str, ...] = ()


def enforce_mode_only(rights: Rights) -> EnforcedRights | Refused:
    """`Dialect.enforce` of a CLI whose tools cannot be taken away."""
    if rights.tools is not None or set(rights.deny) - set(DENIED):
        return Refused("none of its tools can be taken away")
    return EnforcedRights(rights.mode)


class Verdict(Struct, frozen=True):
    """The answer to an approval. `message` tells the agent why not.

    `input` is what the tool is to be called with instead; a denial that `ends_turn` interrupts it.
    What is allowed `always` is not asked again in this conversation, where that was offered.
    """

    is_allowed: bool
    message: str = ""
    input: JsonObject | None = None
    ends_turn: bool = False
    always: bool = False


class TurnBegan(Struct, frozen=True):
    """A turn began. `input` is the turn or offer it provably took; None: nobody asked for it."""

    input: str | None


# The error of a tool that is still open when its turn ends.
STILL_RUNNING = "still_running"
# The code of the error of a turn whose conversation, asked for by `resume`, is not there.
RESUME_NOT_FOUND = "resume_not_found"


class TurnEnded(Struct, frozen=True):
    """The turn that was open ended, and how."""

    status: EndStatus
    text: str | None = None
    usage: Usage | None = None
    cost: Cost | None = None
    error: ErrorFact | None = None
    diagnostic: Diagnostic | None = None
    exit_code: int | None = None
    stop_reason: StopReason | None = None


class ProcessExit(Struct, frozen=True):
    """How the process ended: its own code or signal, why it was stopped, its last words."""

    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    stderr: str = ""


class Program(Struct, frozen=True):
    """The CLI behind a provider, for whoever asks what is installed here.

    `name` is looked for on PATH where no command is configured. `tested` are the oldest and the
    newest version that were tried. Somebody is logged in if one of the variables `login_env` is
    set, or `login_file` exists, which is never opened; it is in the folder that a variable names,
    or in the usual one below HOME. `login` says how to log in.
    """

    name: str
    version_args: tuple[str, ...] = ("--version",)
    tested: tuple[str, str] | None = None
    install: str = ""
    login: str = ""
    login_env: tuple[str, ...] = ()
    login_file: str | None = None
    login_folder: tuple[str, str] = ("", "")


class ProducedImage(Struct, frozen=True):
    """The CLI has produced an image: it is kept in a file, and told by an `image.produced`."""

    name: str
    media_type: str
    data: bytes


DialectOutput = Event | TurnBegan | TurnEnded | Send | ProducedImage


class Dialect(Protocol):
    """How one CLI speaks.

    Raise `msgspec.DecodeError` from `receive` for a line that cannot be read: it is kept as an
    `unknown` event. A frame that can be read but is not known is an `Unknown` event, no error.
    """

    # Also the key of stored resume tokens.
    name: ClassVar[str]
    # The CLI it needs; None for one that comes with us.
    program: ClassVar[Program | None]
    # The provider's own options in the configuration: a struct that forbids unknown fields.
    options_type: ClassVar[type[Struct]]
    # May depend on the options: a CLI may be started for one turn or for many.
    abilities: frozenset[Ability]
    # How long a turn may take where nobody says otherwise; None is without limit.
    wall_seconds: float | None
    # Everything it remembers. It is saved at each turn's end and put back on adoption.
    state: Any

    @property
    def is_ready(self) -> bool:
        """Whether a turn may begin."""

    @property
    def has_background(self) -> bool:
        """Whether something that a turn has started goes on without one, so that another turn may
        follow by itself."""

    def enforce(self, rights: Rights) -> EnforcedRights | Refused:
        """Whether its CLI, started with these rights, will keep to them. It looks at nothing but
        them and the options; names that are no tool's do not come here."""

    def launch(self, request: LaunchRequest) -> Launch: ...

    # These look at the state and answer; they do not change it.

    def open(self, request: LaunchRequest) -> list[Send]:
        """The handshake, sent as soon as the process runs; `request` is what it was started with,
        also for whoever has taken it over."""

    def begin(self, turn: Turn) -> list[Send]:
        """Tell the turn. Called once `is_ready`; without `multi_turn`, `launch` has told it.

        The key of the line that tells it is `begin:` and the turn's. Where something must be asked
        first, only that is sent, and this is called again once it `is_ready` again. Nothing to send
        means that the turn cannot be told, and that its end has been said.
        """

    def steer(self, offer: Offer) -> Send | Refused | None:
        """Say it to the turn that is open; None if it has not quite begun: ask again then."""

    def recall(self, offer: str) -> Send | None:
        """Take back what has not been consumed; None where that cannot be done."""

    def interrupt(self) -> Send | SendSignal | None:
        """End the turn that is open; None when there is no way but to end the process."""

    def decide(self, approval: str, verdict: Verdict) -> list[Send]: ...

    # The state changes only here.

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        """This was written to the CLI."""

    def receive(self, frame: Frame) -> list[DialectOutput]:
        """The CLI printed this."""

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """The process is gone. A turn that is open after this has failed."""
