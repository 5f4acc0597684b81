"""Shows how to add a CLI that prints lines of JSON: copy this file. `parrot` is imaginary.

    parrot --jsonl [--resume TOKEN]
    it reads   {"id":"1","prompt":"hello"}
    it prints  {"type":"hello","session":"s1"}
               {"type":"tool","id":"t1","name":"look","input":{}}
               {"type":"tool","id":"t1","name":"look","output":"a cat","done":true}
               {"type":"text","text":"hello"}
               {"type":"done","ok":true,"tokens_in":3,"tokens_out":5}

Record the output of the real CLI before you write code, and replay it in a test: docs/providers.md.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import Struct, ValidationError, json

from steadyrun import dialect as p
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.usage import Usage


# 1. A struct for each frame. Define only the fields you use: others are skipped, so that a newer
#    version of the CLI still works.
class ParrotHello(Struct, frozen=True, tag="hello"):
    session: str


class ParrotText(Struct, frozen=True, tag="text"):
    text: str


class ParrotTool(Struct, frozen=True, tag="tool"):
    id: str
    name: str
    input: Any = None
    output: Any = None
    done: bool = False


class ParrotDone(Struct, frozen=True, tag="done"):
    ok: bool
    tokens_in: int | None = None
    tokens_out: int | None = None


ParrotLine = ParrotHello | ParrotText | ParrotTool | ParrotDone
_decode: Callable[[bytes], ParrotLine] = json.Decoder(ParrotLine).decode


# 2. The settings under `options` in the configuration, and the state between frames.
class ParrotOptions(Struct, frozen=True, forbid_unknown_fields=True): ...


class ParrotState(Struct, frozen=True):
    is_idle: bool = False
    text: str | None = None


class Parrot:
    """The Dialect of an imaginary CLI."""

    name: ClassVar[str] = "parrot"
    # The name, the tested versions and the installation of the CLI, for `providers` and `doctor`.
    program: ClassVar[p.Program | None] = p.Program("parrot", install="pipx install parrot")
    # 3. The abilities. A request for another ability is refused before the process starts.
    abilities: frozenset[p.Ability] = frozenset({"resume", "multi_turn", "interrupt"})
    options_type: ClassVar[type[Struct]] = ParrotOptions
    has_background = takes_parts = False
    wall_seconds: float | None = None

    def __init__(self, options: ParrotOptions | None = None) -> None:
        self.state = ParrotState()

    @property
    def is_ready(self) -> bool:
        return self.state.is_idle

    # A CLI that cannot remove tools must refuse: a read-only agent is then never started.
    enforce = staticmethod(p.enforce_mode_only)

    def launch(self, request: p.LaunchRequest) -> p.Launch:
        resume = ("--resume", request.resume) if request.resume else ()
        argv = (*(request.command or ("parrot",)), "--jsonl", *resume)
        return p.Launch(argv, rungs=(p.Rung("eof", 2.0),))

    # 4. The lines to write. A line with the same key is written only once, also after a crash.
    def open(self, request: p.LaunchRequest) -> list[p.Send]:
        return []

    def begin(self, turn: p.Turn) -> list[p.Send]:
        return [p.Send(f"begin:{turn.key}", json.encode({"id": turn.key, "prompt": turn.text}))]

    def steer(self, offer: p.Offer) -> p.Refused:
        return p.Refused("parrot takes no messages during a turn")

    def recall(self, offer: str) -> None:
        return None

    def interrupt(self) -> p.SendSignal:
        return p.SendSignal(2)  # SIGINT

    def decide(self, approval: str, verdict: p.Verdict) -> list[p.Send]:
        return []

    # 5. The lines that were written and printed. Only here the state changes.
    def on_sent(self, frame: Frame) -> list[p.DialectOutput]:
        self.state = ParrotState()
        return [p.TurnBegan(json.decode(frame.raw)["id"])]

    def receive(self, frame: Frame) -> list[p.DialectOutput]:
        try:
            line = _decode(frame.raw)
        except ValidationError:
            return [ev.Unknown(frame.raw.decode())]
        match line:
            case ParrotHello(session):
                self.state = ParrotState(is_idle=True)
                return [ev.TokenBound(session)]
            case ParrotText(text):
                self.state = ParrotState(text=text)
                return [ev.TextFinal(text)]
            case ParrotTool():
                kind = ev.ToolCompleted if line.done else ev.ToolStarted
                return [kind(line.id, line.name, line.input, line.output)]
            case ParrotDone():
                last, usage = self.state.text, Usage(line.tokens_in, line.tokens_out)
                self.state = ParrotState(is_idle=True)
                return [p.TurnEnded("completed" if line.ok else "failed", last, usage)]

    def on_exit(self, last: p.ProcessExit) -> list[p.DialectOutput]:
        return []
