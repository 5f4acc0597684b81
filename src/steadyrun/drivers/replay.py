"""Replays recorded traffic through a dialect, without a process.

A recording is a file of lines `{"t","dir","msg"}`: `in` was sent to the CLI, `out` was printed,
`err` was written to stderr; `msg` is an object or the line itself. A replay writes nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import Dialect, ProcessExit, Send, TurnBegan, TurnEnded
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker
from steadyrun.errors import RecordingInvalid
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.event import AnyEvent, Emitted, LiveEvent, StoredEvent, make_event_id
from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.model.run import (
    Created,
    Finished,
    Launched,
    Run,
    RunChange,
    build_status_events,
    scrub_run,
    step,
)
from steadyrun.model.secret import Scrubber

_AGENT = "replay"
_PROCESS = ProcessId("prc_replay")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_LINES = 20


class RecordedLine(Struct, frozen=True):
    """One line of a recording."""

    dir: Literal["in", "out", "err"]
    msg: dict[str, Any] | str
    t: float = 0.0


def read_recording(path: Path) -> Iterator[RecordedLine]:
    """The lines of a recording; an invalid line raises `RecordingInvalid`."""
    decode = msgspec.json.Decoder(RecordedLine).decode
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                if raw.strip():
                    yield decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise RecordingInvalid(path, line=number, problem=str(error)) from error


def replay(
    dialect: Dialect,
    lines: Iterable[RecordedLine | Frame],
    last: ProcessExit | None = None,
    scrubber: Scrubber | None = None,
) -> Iterator[AnyEvent]:
    """The events of the lines, with their runs. A `Frame` is a line that was printed. After the
    last line the process ends. A recording has no cursors: `StoredEvent.cursor` is 0."""
    player = _Player(dialect, scrubber)
    for line in lines:
        yield from player.receive(line) if isinstance(line, Frame) else player.play(line)
    yield from player.end(last or ProcessExit())


class _Player:
    def __init__(self, dialect: Dialect, scrubber: Scrubber | None) -> None:
        self._turns = TurnTracker(dialect, scrubber)
        self._scrubber = scrubber or Scrubber()
        self._provider = dialect.name
        self._now = _EPOCH
        self._offset, self._sent, self._errors = 0, 0, 0
        self._seq, self._runs = 0, 0
        self._run: Run | None = None
        self._token: str | None = None
        # The last lines of stderr, for a recording without an exit.
        self._stderr_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def receive(self, frame: Frame) -> Iterator[AnyEvent]:
        """Play a line that was printed."""
        yield from self._begin_open()
        self._turns.pictures.clear()
        self._offset = frame.end
        yield from self._play_output(self._turns.on_received(frame, self._now))

    def play(self, line: RecordedLine) -> Iterator[AnyEvent]:
        self._now = _EPOCH + timedelta(seconds=line.t)
        raw = line.msg.encode() if isinstance(line.msg, str) else msgspec.json.encode(line.msg)
        if line.dir == "out":
            yield from self.receive(Frame(raw, self._offset + len(raw) + 1))
            return
        yield from self._begin_open()
        self._turns.pictures.clear()
        match line.dir:
            case "in":
                self._sent += 1
                frame = Frame(raw, self._offset, "", self._sent)
                yield from self._play_output(self._turns.on_sent(frame, self._now))
            case "err":
                self._stderr_lines.append(raw.decode(errors="replace"))
                event = ev.OutputRaw("stderr", self._stderr_lines[-1])
                self._errors += 1
                yield self._build_event(Emitted(0, self._errors, self._now, event))

    def end(self, last: ProcessExit) -> Iterator[AnyEvent]:
        """End what is open at the end of the recording."""
        yield from self._begin_open()
        if not last.stderr:
            last = replace(last, stderr="\n".join(self._stderr_lines))
        yield from self._play_output(self._turns.on_exited(last, self._now))

    def _play_output(self, output: Iterable[TrackedOutput]) -> Iterator[AnyEvent]:
        for each in output:
            match each:
                case Emitted(event=ev.ImageProduced() as image):
                    # A replay writes no file.
                    yield self._build_event(replace(each, event=replace(image, file=None)))
                case Emitted():
                    self._note_token(each.event)
                    yield self._build_event(each)
                case TurnBegan():
                    yield from self._begin()
                case TurnEnded():
                    yield from self._change(_build_finished(each, self._now, self._token))
                    self._run = None
                case Send():
                    # What the dialect sends is in the recording already, or was never sent.
                    continue

    def _note_token(self, event: ev.Event | ev.Foreign) -> None:
        if isinstance(event, ev.TokenBound | ev.TokenRotated):
            self._token = event.token

    def _begin_open(self) -> Iterator[AnyEvent]:
        """A one-shot process has its turn open from the start."""
        if self._turns.is_open and self._run is None:
            yield from self._begin()

    def _begin(self) -> Iterator[AnyEvent]:
        self._runs += 1
        run = RunId(f"run_{self._runs}")
        self._run = step(None, Created(run, AgentId(_AGENT), None, self._provider, self._now))
        yield from self._change(Launched(self._now))

    def _change(self, change: RunChange) -> Iterator[AnyEvent]:
        # As a store does: secrets are removed, then the excerpt of stderr is cut.
        before, self._run = self._run, scrub_run(step(self._run, change), self._scrubber)
        for emitted in build_status_events(before, self._run):
            yield self._build_event(emitted)

    def _build_event(self, emitted: Emitted) -> AnyEvent:
        name = make_event_id(_PROCESS, emitted.place, emitted.n)
        at, event, provider = emitted.at, emitted.event, self._provider
        run = self._run.id if self._run else None
        if isinstance(event, ev.TextDelta | ev.ThinkingDelta | ev.OutputRaw):
            return LiveEvent(name, at, _AGENT, run, provider, event)
        self._seq += 1
        return StoredEvent(0, self._seq, name, at, _AGENT, run, provider, event)


def _build_finished(ended: TurnEnded, now: datetime, token: str | None) -> Finished:
    return Finished(
        now,
        ended.status,
        ended.stop_reason,
        text=ended.text,
        usage=ended.usage,
        cost=ended.cost,
        resume_token=token,
        exit_code=ended.exit_code,
        error=ended.error,
        diagnostic=ended.diagnostic,
    )
