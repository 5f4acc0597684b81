"""How do I add a CLI that prints lines of JSON? Copy this file; `parrot` is an imaginary one.

    parrot --jsonl [--resume TOKEN]
    we say     {"id":"1","prompt":"hello"}
    it prints  {"type":"hello","session":"s1"}
               {"type":"tool","id":"t1","name":"look","input":{}}
               {"type":"tool","id":"t1","name":"look","output":"a cat","done":true}
               {"type":"said","text":"hello"}
               {"type":"done","ok":true,"tokens_in":3,"tokens_out":5}

Record what the real CLI prints before you write a line, and play it in a test: docs/providers.md.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import Struct, ValidationError, json

from steadyrun import dialect as p
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.usage import Usage


# 1. A struct for each frame. Name only the fields you use: the others are skipped, so that a newer
#    CLI goes on working.
class ParrotHello(Struct, frozen=True, tag="hello"):
    session: str


class ParrotText(Struct, frozen=True, tag="said"):
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


# 2. What a user may set under `options`, and what must be remembered from frame to frame.
class ParrotOptions(Struct, frozen=True, forbid_unknown_fields=True): ...


class ParrotState(Struct, frozen=True):
    is_idle: bool = False
    text: str | None = None


class Parrot:
    """The Dialect of an imaginary CLI."""

    name: ClassVar[str] = "parrot"
    # The CLI behind it: what it is called, which versions were tried. None: it comes with us.
    program: ClassVar[p.Program | None] = None
    # 3. What it can do. What is missing here is refused by name before it is started.
    abilities: frozenset[p.Ability] = frozenset({"resume", "multi_turn", "interrupt"})
    options_type: ClassVar[type[Struct]] = ParrotOptions
    has_background = False
    wall_seconds: float | None = None

    def __init__(self, options: ParrotOptions | None = None) -> None:
        self.state = ParrotState()

    @property
    def is_ready(self) -> bool:
        return self.state.is_idle

    # Who cannot take a tool away must say so: an agent that may only read is then never started.
    enforce = staticmethod(p.enforce_mode_only)

    def launch(self, request: p.LaunchRequest) -> p.Launch:
        resume = ("--resume", request.resume) if request.resume else ()
        argv = (*(request.command or ("parrot",)), "--jsonl", *resume)
        return p.Launch(argv, rungs=(p.Rung("eof", 2.0),))

    # 4. What we may say. A key names a line: said again after a crash, it is written only once.
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

    # 5. What was said. Only here the state changes, and only by what is in the line.
    def on_sent(self, frame: Frame) -> list[p.DialectOutput]:
        self.state = ParrotState()
        return [p.TurnBegan(json.decode(frame.raw)["id"])]

    def receive(self, frame: Frame) -> list[p.DialectOutput]:
        try:
            said = _decode(frame.raw)
        except ValidationError:
            return [ev.Unknown(frame.raw.decode())]
        match said:
            case ParrotHello(session):
                self.state = ParrotState(is_idle=True)
                return [ev.TokenBound(session)]
            case ParrotText(text):
                self.state = ParrotState(text=text)
                return [ev.TextFinal(text)]
            case ParrotTool():
                kind = ev.ToolCompleted if said.done else ev.ToolStarted
                return [kind(said.id, said.name, said.input, said.output)]
            case ParrotDone():
                last, usage = self.state.text, Usage(said.tokens_in, said.tokens_out)
                self.state = ParrotState(is_idle=True)
                return [p.TurnEnded("completed" if said.ok else "failed", last, usage)]

    def on_exit(self, last: p.ProcessExit) -> list[p.DialectOutput]:
        return []
