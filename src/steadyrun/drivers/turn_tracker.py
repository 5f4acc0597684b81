"""Translates frames into events and turns, for live, adopted and recorded traffic.

The tracker guarantees what no dialect may break: turns do not overlap, every turn that begins ends,
a tool that is open at the end of its turn is closed, and an offer or an approval that is open when
the process ends is returned or withdrawn.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import (
    OUT_OF_MEMORY,
    STILL_RUNNING,
    CutOutput,
    Dialect,
    DialectOutput,
    ProcessExit,
    ProducedImage,
    Send,
    TurnBegan,
    TurnEnded,
)
from steadyrun.lib.framing import CutFrame, Frame
from steadyrun.model import event as ev
from steadyrun.model.event import Diagnostic, Emitted, ErrorFact, Event, make_place
from steadyrun.model.event_json import from_ext, spell_out
from steadyrun.model.run import STOPPED, StopReason
from steadyrun.model.secret import Scrubber
from steadyrun.model.usage import USAGE_REFUSED, Cost, is_plausible_cost, is_plausible_usage

# File endings are chosen here: a CLI may send any text as the type of an image.
_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
}


TrackedOutput = Emitted | TurnBegan | TurnEnded | Send


class _TrackerState(Struct, frozen=True):
    """The saved state: that of the dialect, and what is open."""

    dialect: msgspec.Raw
    is_open: bool
    input: str | None
    tools: dict[str, ev.ToolStarted]
    offers: dict[str, ev.FollowupOffered]
    asks: frozenset[str]
    given_up: frozenset[str]


class TurnTracker:
    """The turns of one process. The only turn of a one-shot process is open from the start.

    Used by `FrameExchange` and by the replay. Invariants: at most one turn is open; `_tools`,
    `_offers` and `_asks` hold what is open; `_given_up` holds tools that were closed with their
    turn, whose later end is only a note.
    """

    def __init__(self, dialect: Dialect, scrubber: Scrubber | None = None) -> None:
        self.dialect = dialect
        self._scrubber = scrubber or Scrubber()
        self.is_open = "multi_turn" not in dialect.abilities
        # What the open turn took: see `TurnBegan`.
        self.input: str | None = None
        self._tools: dict[str, ev.ToolStarted] = {}
        self._offers: dict[str, ev.FollowupOffered] = {}
        # The open approvals, in order.
        self._asks: dict[str, None] = {}
        self._given_up: set[str] = set()
        # Images that are not stored yet, by the names of their files.
        self.pictures: dict[str, bytes] = {}

    @property
    def has_open_tools(self) -> bool:
        return bool(self._tools)

    def on_sent(self, frame: Frame, now: datetime) -> list[TrackedOutput]:
        """Handle a frame that was written to the CLI."""
        return self._track(self.dialect.on_sent(frame), make_place("s", frame.number), now)

    def on_received(self, frame: Frame, now: datetime) -> list[TrackedOutput]:
        """Handle a line of the CLI. A line that the dialect cannot read is kept whole."""
        if isinstance(frame, CutFrame):
            note = _describe_cut(frame)
            readable = self._receive(frame) if frame.is_document else [_keep_line(frame)]
            return self._track([note, *readable], frame.end, now)
        outputs = self._receive(frame)
        if len(outputs) == 1 and type(outputs[0]) not in self._HANDLERS:
            # Nearly every line is one plain event: the fast path.
            return [Emitted(frame.end, 0, now, outputs[0])]  # type: ignore[arg-type]
        return self._track(outputs, frame.end, now)

    def _receive(self, frame: Frame) -> Sequence[DialectOutput]:
        try:
            return self.dialect.receive(frame)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [_keep_line(frame)]

    def on_exited(
        self, last: ProcessExit, now: datetime, *, is_awaited: bool = False
    ) -> list[TrackedOutput]:
        """Handle the end of the process. An open turn has failed, and so has an awaited turn that
        never began."""
        outputs = self.dialect.on_exit(last)
        is_over = any(isinstance(each, TurnEnded) for each in outputs)
        if (self.is_open or is_awaited) and not is_over:
            outputs = [*outputs, end_from_exit(last, has_begun=self.is_open)]
        if last.oom:
            outputs = [_explain_oom(each) for each in outputs]
        place = make_place("x", 1)
        tracked = self._track(outputs, place, now)
        back: list[Event] = [
            ev.FollowupReturned(o.item, o.text, "the process ended") for o in self._offers.values()
        ]
        back += [ev.ApprovalResolved(name, "cancelled", by="provider") for name in self._asks]
        # The last event of an open turn is its end: what is returned comes before.
        first = len(tracked)
        return [*(Emitted(place, n, now, each) for n, each in enumerate(back, first)), *tracked]

    def save(self) -> bytes:
        """The state for a later driver; `OverflowError` if a number in it is too large."""
        state = msgspec.Raw(_encode(self.dialect.state))
        memory = _TrackerState(
            state,
            self.is_open,
            self.input,
            self._tools,
            self._offers,
            frozenset(self._asks),
            frozenset(self._given_up),
        )
        return _encode(memory)

    def restore(self, saved: bytes) -> None:
        memory = msgspec.msgpack.decode(saved, type=_TrackerState, ext_hook=from_ext)
        kind = type(self.dialect.state)
        self.dialect.state = msgspec.msgpack.decode(memory.dialect, type=kind, ext_hook=from_ext)
        self.is_open, self.input, self._tools = memory.is_open, memory.input, memory.tools
        self._offers, self._given_up = memory.offers, set(memory.given_up)
        self._asks = dict.fromkeys(sorted(memory.asks))

    def _track(
        self, outputs: Iterable[DialectOutput], place: int | str, now: datetime
    ) -> list[TrackedOutput]:
        tracked: list[TrackedOutput] = []
        events = 0
        for each in outputs:
            follows = self._HANDLERS.get(type(each))
            for more in follows(self, each) if follows else (each,):
                tracked.append(_emit(more, place, events, now))
                events += type(tracked[-1]) is Emitted
        return tracked

    def _begin(self, began: TurnBegan) -> list[DialectOutput]:
        error = ErrorFact("no_end", "the next turn began before this one had ended")
        before = self._end(TurnEnded("failed", error=error)) if self.is_open else []
        self.is_open, self.input = True, began.input
        return [*before, began]

    def _end(self, ended: TurnEnded) -> list[DialectOutput]:
        """Close what is open. An end without a beginning is a separate turn."""
        before: list[DialectOutput] = [] if self.is_open else [TurnBegan(None)]
        before += [_fail_tool(tool) for tool in self._tools.values()]
        self._given_up |= self._tools.keys()
        self._tools, self.is_open = {}, False
        return [*before, *_check_end(ended)]

    def _open_tool(self, tool: ev.ToolStarted) -> list[DialectOutput]:
        self._tools[tool.tool_call_id] = tool
        self._given_up.discard(tool.tool_call_id)
        return [tool]

    def _close_tool(self, tool: ev.ToolCompleted | ev.ToolFailed) -> list[DialectOutput]:
        if tool.tool_call_id in self._given_up:
            self._given_up.discard(tool.tool_call_id)
            name = str(tool.__struct_config__.tag)
            return [ev.Note(f"{tool.tool_name} {tool.tool_call_id} ended after its turn: {name}")]
        self._tools.pop(tool.tool_call_id, None)
        return [tool]

    def _open_offer(self, offered: ev.FollowupOffered) -> list[DialectOutput]:
        self._offers[offered.item] = offered
        return [offered]

    def _close_offer(
        self, settled: ev.FollowupAbsorbed | ev.FollowupOwnTurn | ev.FollowupReturned
    ) -> list[DialectOutput]:
        self._offers.pop(settled.item, None)
        return [settled]

    def _open_approval(self, asked: ev.ApprovalRequested) -> list[DialectOutput]:
        self._asks[asked.approval] = None
        return [asked]

    def _close_approval(self, resolved: ev.ApprovalResolved) -> list[DialectOutput]:
        self._asks.pop(resolved.approval, None)
        return [resolved]

    def _add_image(self, picture: ProducedImage) -> list[DialectOutput]:
        """Name the file by its content: a replay gives the same name."""
        kind = _ENDINGS.get(picture.media_type, "bin")
        file = f"{hashlib.sha256(picture.data).hexdigest()[:32]}.{kind}"
        self.pictures[file] = picture.data
        size = len(picture.data)
        return [ev.ImageProduced(picture.name, picture.media_type, size, file)]

    def _clean_cut(self, cut: CutOutput) -> list[DialectOutput]:
        output: Any = cut.output
        texts = {name: getattr(output, name, None) for name in ("text", "tool_output")}
        clean = {
            name: self._scrubber.clean_beginning(text)
            for name, text in texts.items()
            if isinstance(text, str)
        }
        output = replace(output, **clean)
        follows = self._HANDLERS.get(type(output))
        return follows(self, output) if follows else [output]

    # The handlers of output that is not just passed on.
    _HANDLERS: ClassVar[dict[type, Callable[["TurnTracker", Any], list[DialectOutput]]]] = {
        TurnBegan: _begin,
        TurnEnded: _end,
        Send: lambda _, send: [send],
        ev.UsageUpdated: lambda _, updated: _check_usage(updated),
        ev.ToolStarted: _open_tool,
        ev.ToolCompleted: _close_tool,
        ev.ToolFailed: _close_tool,
        ev.FollowupOffered: _open_offer,
        ev.FollowupAbsorbed: _close_offer,
        ev.FollowupOwnTurn: _close_offer,
        ev.FollowupReturned: _close_offer,
        ev.ApprovalRequested: _open_approval,
        ev.ApprovalResolved: _close_approval,
        ProducedImage: _add_image,
        CutOutput: _clean_cut,
    }


def _encode(state: Any) -> bytes:
    """Encode a state; the input of a tool may contain integers of any size."""
    try:
        return msgspec.msgpack.encode(state)
    except OverflowError as error:
        plain = msgspec.to_builtins(state, builtin_types=(bytes, datetime, msgspec.Raw))
        encoded = msgspec.msgpack.encode(spell_out(plain))
        try:
            msgspec.msgpack.decode(encoded, type=type(state), ext_hook=from_ext)
        except msgspec.ValidationError:
            # A field for integers accepts no others.
            raise error from None
        return encoded


def _emit(outputs: DialectOutput, place: int | str, n: int, now: datetime) -> TrackedOutput:
    if type(outputs) in _NO_EVENTS:
        return outputs  # type: ignore[return-value]
    return Emitted(place, n, now, outputs)  # type: ignore[arg-type]


_NO_EVENTS = frozenset({TurnBegan, TurnEnded, Send})


def _check_usage(updated: ev.UsageUpdated) -> list[DialectOutput]:
    """Whatever a CLI prints, the store can save the usage, and add it up."""
    is_plausible = is_plausible_usage(updated.usage) and is_plausible_cost(updated.cost)
    return [updated if is_plausible else ev.Note(USAGE_REFUSED)]


def _check_end(ended: TurnEnded) -> list[DialectOutput]:
    usage, cost = ended.usage, ended.cost
    if usage and not is_plausible_usage(usage):
        usage = None
    if cost and not is_plausible_cost(cost):
        cost = Cost()
    if usage is ended.usage and cost is ended.cost:
        return [ended]
    return [ev.Note(USAGE_REFUSED), replace(ended, usage=usage, cost=cost)]


def _fail_tool(tool: ev.ToolStarted) -> ev.ToolFailed:
    return ev.ToolFailed(tool.tool_call_id, tool.tool_name, tool.tool_input, error=STILL_RUNNING)


def end_from_exit(last: ProcessExit, *, has_begun: bool = True) -> TurnEnded:
    """The end of a turn whose process ended before the turn did, or before it began."""
    reason = _REASONS.get(last.reason or "")
    if reason is not None:
        error = ErrorFact(
            reason, _STOP_MESSAGES.get(reason, "the process was stopped"), retryable=True
        )
        return TurnEnded(STOPPED[reason], error=error, exit_code=last.code, stop_reason=reason)
    when = "during the turn" if has_begun else "before the turn had begun"
    why = f"the process ended {when}{_describe_exit(last)}"
    error = ErrorFact(last.reason or "exited", why, retryable=True)
    diagnostic = Diagnostic(last.code, last.stderr)
    return TurnEnded("failed", error=error, diagnostic=diagnostic, exit_code=last.code)


def _explain_oom(output: DialectOutput) -> DialectOutput:
    """A turn that failed with its process has failed for lack of memory."""
    if not isinstance(output, TurnEnded) or output.status != "failed":
        return output
    why = "the kernel killed the process: the machine had no memory left"
    return replace(output, error=ErrorFact(OUT_OF_MEMORY, why, retryable=True))


def _describe_exit(last: ProcessExit) -> str:
    if last.signal is not None:
        return f" with signal {last.signal}"
    return "" if last.code is None else f" with code {last.code}"


# An unclaimed process was silent for too long.
_REASONS: dict[str, StopReason] = {**{name: name for name in STOPPED}, "unclaimed": "idle_timeout"}
_STOP_MESSAGES: dict[StopReason, str] = {
    "disk_full": "the disk is nearly full, and output would have been lost",
    "journal_full": "the process has printed more than its journal may hold",
    "keeper_lost": "the keeper of the process was killed, and the process was ended with it",
}


def _keep_line(frame: Frame) -> ev.Unknown:
    return ev.Unknown.from_line(frame.raw)


def _describe_cut(frame: CutFrame) -> ev.Note:
    what = "its long texts are cut" if frame.is_document else "only its beginning is kept"
    return ev.Note(
        f"a line of {frame.length} bytes at offset {frame.start} of the journal is too long:"
        f" {what}; the journal has all of it"
    )
