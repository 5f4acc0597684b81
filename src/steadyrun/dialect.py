"""Defines the contract of a Dialect: the translation between one CLI and steadyrun.

Every provider works in a child process. A Dialect translates between the lines of that process and
the events of steadyrun. It does no I/O and reads no clock, and each live process has an instance of
its own. `drivers/process_driver.py` runs any Dialect.

The state of a Dialect depends only on the calls of `on_sent`, `receive` and `on_exit`. After a
crash, the driver rebuilds the state by repeating these calls in their recorded order.

To add a provider, copy `providers/template.py`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

from msgspec import Struct

from steadyrun.lib.framing import Frame
from steadyrun.model.event import Diagnostic, ErrorFact, Event, JsonObject
from steadyrun.model.policy import DENIED, Mode, Rights
from steadyrun.model.run import EndStatus, StopReason
from steadyrun.model.usage import Cost, Usage

# What a caller may request beyond one prompt. A request for a missing ability is refused, and the
# error names the ability.
Ability = Literal[
    "resume", "steer", "recall", "interrupt", "multi_turn", "approvals", "change_input", "model",
    "modes", "tools", "system", "images", "schema", "max_turns", "usage",
]  # fmt: skip

# The description of each ability. The table in docs/providers.md is made of it.
ABILITIES: Mapping[Ability, str] = {
    "resume": "continue an earlier conversation",
    "steer": "accept a message during a turn",
    "recall": "withdraw a message that the turn has not read yet",
    "interrupt": "end a turn without ending the process",
    "multi_turn": "run many turns in one process; without it, each turn starts a process",
    "approvals": "request approval before a tool runs",
    "change_input": "run a tool with a changed input when it is approved",
    "model": "select the model",
    "modes": "select a mode: what the agent may do without approval",
    "tools": "limit the agent to the listed tools",
    "system": "set the system prompt",
    "images": "attach images to a prompt",
    "schema": "answer with JSON that matches a schema",
    "max_turns": "limit the number of steps",
    "usage": "report usage during a turn, so that a budget can stop it",
}


class Image(Struct, frozen=True):
    """An image that is attached to a prompt."""

    media_type: str
    data: bytes


class Turn(Struct, frozen=True):
    """The input of one turn. `key` identifies the turn, so that sending it twice is harmless.

    `model` and `mode` apply from this turn on. None keeps the present value.
    """

    key: str
    text: str
    images: tuple[Image, ...] = ()
    schema: JsonObject | None = None
    model: str | None = None
    mode: Mode | None = None


class LaunchRequest(Struct, frozen=True):
    """The parameters a process is started with. `turn` is its first turn.

    The launcher fills in `directory`, the directory of the process's files, and `command`, the
    configured command if there is one. With `adds_system`, `system` is appended to the provider's
    own system prompt. Without it, `system` replaces that prompt where the provider supports it.
    With `one_shot`, the process runs this turn only, where the provider's program supports it.
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
    """One step of stopping a process. After the last step, all its processes are killed.

    `will` writes the frame that interrupts the turn, `eof` closes stdin, `signal` sends the signal
    `number`. The next step follows if the process still runs after `wait_seconds`.
    """

    do: Literal["will", "eof", "signal"]
    wait_seconds: float
    number: int | None = None


class Launch(Struct, frozen=True):
    """How a process is started.

    `env` is added to the few variables that every child gets. `files` are written into the
    directory of the process before it starts. `rungs` are the steps that stop it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    files: Mapping[str, bytes] = {}
    stdin: Literal["pipe", "null"] = "pipe"
    rungs: tuple[Rung, ...] = ()


class Send(Struct, frozen=True):
    """A line to write to the process. A line with a `key` that was written before is skipped."""

    key: str
    raw: bytes


class SendSignal(Struct, frozen=True):
    """A signal to send to the process."""

    number: int


class Offer(Struct, frozen=True):
    """A follow-up: a message for the running turn."""

    id: str
    text: str


class Refused(Struct, frozen=True):
    """The request is not possible, for this reason."""

    reason: str


class EnforcedRights(Struct, frozen=True):
    """The CLI can keep to the rights, in this `mode`. It may be stricter than the requested mode.

    `notes` describe where the CLI enforces a right in another way than the policy states it.
    """

    mode: Mode
    notes: tuple[str, ...] = ()


def enforce_mode_only(rights: Rights) -> EnforcedRights | Refused:
    """Implement `Dialect.enforce` for a CLI that cannot remove any of its tools."""
    if rights.tools is not None or set(rights.deny) - set(DENIED):
        return Refused("none of its tools can be removed")
    return EnforcedRights(rights.mode)


class Verdict(Struct, frozen=True):
    """The answer to an approval. `message` gives the agent the reason of a denial.

    `input` replaces the input of the tool. A denial with `ends_turn` also interrupts the turn.
    With `always`, the same tool needs no approval for the rest of the conversation, if the request
    offered that.
    """

    is_allowed: bool
    message: str = ""
    input: JsonObject | None = None
    ends_turn: bool = False
    always: bool = False


class TurnBegan(Struct, frozen=True):
    """A turn began. `input` is the turn or offer that it provably took.

    `input` is None for a turn that the CLI began without a request.
    """

    input: str | None


# The error of a tool that is still open when its turn ends.
STILL_RUNNING = "still_running"
# The error code of a turn whose conversation, requested by `resume`, does not exist.
RESUME_NOT_FOUND = "resume_not_found"


class TurnEnded(Struct, frozen=True):
    """The open turn ended with this status and result."""

    status: EndStatus
    text: str | None = None
    usage: Usage | None = None
    cost: Cost | None = None
    error: ErrorFact | None = None
    diagnostic: Diagnostic | None = None
    exit_code: int | None = None
    stop_reason: StopReason | None = None


# The error code of a turn whose process the kernel has killed for lack of memory.
OUT_OF_MEMORY = "out_of_memory"


class ProcessExit(Struct, frozen=True):
    """How the process ended: its exit code or signal, and the end of its stderr.

    `reason` is why steadyrun stopped the process. It is None if the process ended by itself. `oom`:
    the kernel has killed it for lack of memory.
    """

    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    stderr: str = ""
    oom: bool = False


class Program(Struct, frozen=True):
    """The CLI of a provider, as `steadyrun providers` and `steadyrun doctor` describe it.

    `name` is searched on PATH if no command is configured. `tested` is the oldest and the newest
    tested version. The user counts as logged in if one of the variables `login_env` is set or
    `login_file` exists; the file is never opened. `login_folder` is the variable that names the
    folder of that file, and its default below HOME. `login` explains how to log in.
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
    """An image that the CLI produced. The driver saves it and reports an `image.produced`."""

    name: str
    media_type: str
    data: bytes


class CutOutput(Struct, frozen=True):
    """Output whose text was cut at a limit. The cut may have left a part of a secret, so the driver
    removes the end of `text` and of `tool_output` that may be one. A Dialect knows no secrets."""

    output: Event | TurnEnded


DialectOutput = Event | TurnBegan | TurnEnded | Send | ProducedImage | CutOutput


class Dialect(Protocol):
    """Translates between one CLI and steadyrun.

    The driver calls `launch`, then `open`, then `begin` for each turn. `steer`, `recall`,
    `interrupt` and `decide` may come during a turn. These methods return what to write and do not
    change the state. The driver reports what happened by `on_sent`, `receive` and `on_exit`; only
    these change the state, and they return the events that follow from it.

    `receive` raises `msgspec.DecodeError` for a line that it cannot decode; the driver then keeps
    the line as an `unknown` event. For a line that it can decode but does not know, `receive`
    returns an `Unknown` event.
    """

    # The name in the configuration, and the key of stored resume tokens.
    name: ClassVar[str]
    # The CLI that must be installed; None if it is part of steadyrun.
    program: ClassVar[Program | None]
    # The provider's own options in the configuration: a struct that forbids unknown fields.
    options_type: ClassVar[type[Struct]]
    # They may depend on the options, for example on `one_shot`.
    abilities: frozenset[Ability]
    # The default time limit of a turn; None is no limit.
    wall_seconds: float | None
    # The whole state of the Dialect, as a Struct. It is saved at the end of each turn and
    # restored when another process takes over the CLI.
    state: Any

    @property
    def is_ready(self) -> bool:
        """Whether the process can begin a turn."""

    @property
    def takes_parts(self) -> bool:
        """Whether `receive` takes a `PartFrame`. Without it, a line that is too long comes as a
        `CutFrame`, whose raw bytes are shortened JSON."""

    @property
    def has_background(self) -> bool:
        """Whether work of an earlier turn still runs, so that the CLI may begin a turn itself."""

    def enforce(self, rights: Rights) -> EnforcedRights | Refused:
        """Report whether the CLI can keep to these rights, or why not.

        The result depends only on the rights and the options. Unknown tool names were refused
        before this call.
        """

    def launch(self, request: LaunchRequest) -> Launch:
        """Return how to start the process, or raise a named error that explains why not."""

    # The next methods read the state and do not change it.

    def open(self, request: LaunchRequest) -> list[Send]:
        """Return the handshake, which is written as soon as the process runs.

        `request` is what the process was started with, also after a takeover.
        """

    def begin(self, turn: Turn) -> list[Send]:
        """Return the lines that begin a turn. The process `is_ready` when this is called.

        The key of the line that begins it is `begin:` and the key of the turn. If the CLI needs
        another request first, return only that request; the driver calls `begin` again when the
        process `is_ready` again. An empty list means that the turn cannot begin and that its end
        was already reported. Without `multi_turn`, `launch` has passed the turn to the process.
        """

    def steer(self, offer: Offer) -> Send | Refused | None:
        """Return the line that offers a message to the open turn.

        None means that the turn is about to begin; the driver then asks again later.
        """

    def recall(self, offer: str) -> Send | None:
        """Return the line that withdraws an offer; None if that is not possible."""

    def interrupt(self) -> Send | SendSignal | None:
        """Return what ends the open turn; None if only ending the process does."""

    def decide(self, approval: str, verdict: Verdict) -> list[Send]:
        """Return the answer to an approval; nothing if the approval is not open."""

    # Only the next methods change the state.

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        """Handle a line that was written to the CLI."""

    def receive(self, frame: Frame) -> list[DialectOutput]:
        """Handle a line that the CLI printed."""

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """Handle the end of the process. A turn that is open afterwards has failed."""
