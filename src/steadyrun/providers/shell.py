"""Runs one command as a turn: the prompt is the command, its output is the answer.

A command has no protocol. So the process first prints a line of JSON with the command, and then
executes it. With that line the journal is complete, and `tool.started` does not wait for output.
"""

import shlex
from pathlib import PurePath
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from steadyrun.dialect import (
    Ability,
    CutOutput,
    DialectOutput,
    EnforcedRights,
    Launch,
    LaunchRequest,
    Offer,
    ProcessExit,
    Program,
    Refused,
    Rung,
    Send,
    Turn,
    TurnEnded,
    Verdict,
)
from steadyrun.errors import CommandRefused, ConfigInvalid, InvalidUsage
from steadyrun.lib.framing import Frame, PartFrame
from steadyrun.model import event as ev
from steadyrun.model.event import Event
from steadyrun.model.policy import TOOLS, Rights

_SIGTERM = 15
# The longest argument on Linux has this many bytes, and splitting a longer text takes hours.
_LONGEST_COMMAND = 128 * 1024
_CALL, _TOOL = "1", "bash"
# Prints its first argument, then executes the others.
_ANNOUNCE = ("/bin/sh", "-c", 'printf "%s\\n" "$1"; shift; exec "$@"', "sh")
_SHELL = ("/bin/sh", "-c")
_SHELL_OPERATORS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>&1"})

_HINTS = {
    126: "126 usually means that the file is not executable.",
    127: "127 usually means that the command was not found.",
}

_Whole = Annotated[int, Meta(ge=0)]


class ShellOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`allowed` and `denied` are base names of commands; None is no list. `denied` wins.

    A `timeout_seconds` of 0 is no limit. The runtime enforces the limit.
    """

    timeout_seconds: Annotated[float, Meta(ge=0)] = 30.0
    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] | None = None
    success_exit_codes: tuple[_Whole, ...] = (0,)
    output_cap_bytes: _Whole = 1048576
    shell: bool = False


class _Announcement(Struct, frozen=True):
    """The first line of the journal: the command as requested."""

    command: str = msgspec.field(name="steadyrun.command")


class ShellState(Struct, frozen=True):
    """The output so far. `output` grows in place, because a copy for each line would be slow."""

    is_started: bool = False
    command: str | None = None
    output: bytearray = msgspec.field(default_factory=bytearray)
    is_cut: bool = False
    # The offset in the journal. Frames skip empty lines, so a gap in the offsets is empty lines.
    end: int = 0

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace").removesuffix("\n")

    @property
    def tool_input(self) -> dict[str, str] | None:
        return None if self.command is None else {"command": self.command}


class Shell:
    """The Dialect of one command.

    The driver owns one instance for each process. The only turn is open from the start and ends
    with the exit of the command.
    """

    name: ClassVar[str] = "shell"
    program: ClassVar[Program | None] = None
    abilities: frozenset[Ability] = frozenset({"modes"})
    has_background = False
    takes_parts = True
    options_type: ClassVar[type[Struct]] = ShellOptions
    # The launch passes the only turn to the process.
    is_ready = True

    def __init__(self, options: ShellOptions | None = None) -> None:
        self.state = ShellState()
        self._options = options or ShellOptions()
        self.wall_seconds = self._options.timeout_seconds or None

    def enforce(self, rights: Rights) -> EnforcedRights | Refused:
        if "Bash" not in rights.allowed:
            return Refused("it only runs commands: allow Bash")
        if set(TOOLS) & set(rights.deny):
            return Refused("a command may do anything, so nothing but Bash can be denied")
        return EnforcedRights(rights.mode)

    def launch(self, request: LaunchRequest) -> Launch:
        """Return how to run the command, or raise a named error that explains why not."""
        text = request.turn.text.strip()
        if not text or "\0" in text:
            raise InvalidUsage(f"expected a command to run, found {text!r}")
        if request.mode == "plan":
            raise CommandRefused(text, rule="in mode plan nothing is run")
        announced = msgspec.json.encode(_Announcement(text)).decode()
        return Launch(
            argv=(*_ANNOUNCE, announced, *_build_argv(self._options, text, request.command)),
            stdin="null",
            rungs=(Rung("signal", 2.0, _SIGTERM),),
        )

    def open(self, request: LaunchRequest) -> list[Send]:
        return []

    def begin(self, turn: Turn) -> list[Send]:
        return []

    def steer(self, offer: Offer) -> Refused:
        return Refused("a command takes no messages")

    def recall(self, offer: str) -> None:
        return None

    def interrupt(self) -> None:
        return None

    def decide(self, approval: str, verdict: Verdict) -> list[Send]:
        return []

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        return []

    def receive(self, frame: Frame) -> list[DialectOutput]:
        if self.state.is_started:
            return self._on_output(frame)
        announced = _parse_announcement(frame.raw)
        started = self._start(announced)
        if announced is None:
            return [*started, *self._on_output(frame)]
        self.state = replace(self.state, end=frame.end)
        return started

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """End the turn by the exit code. The driver decides the end of a stopped command."""
        started = [] if self.state.is_started else self._start(None)
        if last.reason is not None:
            ended: list[Event | TurnEnded] = [self._build_tool_failure(f"stopped: {last.reason}")]
        elif last.code in self._options.success_exit_codes:
            ended = self._build_completion()
        else:
            ended = self._build_failure(last)
        return [*started, *(map(CutOutput, ended) if self.state.is_cut else ended)]

    def _start(self, command: str | None) -> list[DialectOutput]:
        self.state = replace(self.state, is_started=True, command=command)
        return [ev.ToolStarted(_CALL, _TOOL, self.state.tool_input)]

    def _on_output(self, frame: Frame) -> list[DialectOutput]:
        line_break = b"" if isinstance(frame, PartFrame) else b"\n"
        printed = frame.raw + line_break
        skipped = max(0, frame.end - self.state.end - len(printed))
        self.state = replace(self.state, end=frame.end)
        live = ev.OutputRaw("stdout", printed.decode(errors="replace"))
        return [live, *self._keep_output(b"\n" * skipped + printed)]

    def _keep_output(self, printed: bytes) -> list[DialectOutput]:
        cap = self._options.output_cap_bytes
        room = cap - len(self.state.output)
        self.state.output.extend(printed[: max(0, room)])
        # The last line break is not part of the output, and needs no room.
        if self.state.is_cut or len(printed) <= room + 1:
            return []
        self.state = replace(self.state, is_cut=True)
        return [ev.Note(f"the output is cut at {cap} bytes; the journal has all of it")]

    def _build_completion(self) -> list[Event | TurnEnded]:
        text = self.state.text
        completed = ev.ToolCompleted(_CALL, _TOOL, self.state.tool_input, text)
        return [completed, ev.TextFinal(text), TurnEnded("completed", text)]

    def _build_failure(self, last: ProcessExit) -> list[Event | TurnEnded]:
        how = f"code {last.code}" if last.signal is None else f"signal {last.signal}"
        hint = _HINTS.get(last.code or 0, "")
        error = ev.ErrorFact("exit_nonzero", f"the command ended with {how}", hint)
        diagnostic = ev.Diagnostic(last.code, last.stderr)
        ended = TurnEnded("failed", self.state.text or None, error=error, diagnostic=diagnostic)
        return [self._build_tool_failure(how), ended]

    def _build_tool_failure(self, error: str) -> ev.ToolFailed:
        return ev.ToolFailed(_CALL, _TOOL, self.state.tool_input, self.state.text, error)


def _parse_announcement(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=_Announcement).command
    except ValueError:
        return None


def _build_argv(options: ShellOptions, text: str, command: tuple[str, ...]) -> tuple[str, ...]:
    if options.shell:
        _refuse_lists(options)
        return (*(command or _SHELL), text)
    words = _split_command(text)
    _check_name(options, words[0])
    return (*command, *words)


def _refuse_lists(options: ShellOptions) -> None:
    if options.allowed is not None or options.denied is not None:
        raise ConfigInvalid(
            "providers.shell.options: a shell can run any command by another name, so"
            " shell = true cannot be combined with allowed or denied",
            file=None,
            hint="Remove shell = true, or both lists.",
        )


def _check_name(options: ShellOptions, command: str) -> None:
    name, allowed, denied = _to_base_name(command), options.allowed, options.denied
    if denied is not None and name in map(_to_base_name, denied):
        raise CommandRefused(name, rule="it is in the list of denied commands")
    if allowed is not None and name not in map(_to_base_name, allowed):
        names = ", ".join(allowed) or "none"
        rule = "it is not in the list of allowed commands"
        raise CommandRefused(name, rule=rule, hint=f"Allowed: {names}")


def _split_command(text: str) -> list[str]:
    if len(text) > _LONGEST_COMMAND:
        found = f"expected at most {_LONGEST_COMMAND} characters, found {len(text)}"
        raise InvalidUsage(
            f"the command is too long: {found}", hint="Put it into a file, and run that."
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidUsage(f"the command cannot be read: {error}: {text!r}") from error
    if not words[0] or words[0].startswith("-"):
        raise InvalidUsage(f"expected a command to run, found {text!r}")
    for word in text.split():
        if word in _SHELL_OPERATORS and word in words:
            raise InvalidUsage(
                f"{word!r} works only in a shell, and this command runs without one: {text!r}",
                hint="Quote it, or set shell = true in the options of the provider.",
            )
    return words


def _to_base_name(command: str) -> str:
    return PurePath(command).name
