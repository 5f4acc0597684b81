"""How does a run look while it goes on? Its text on stdout, its progress on stderr.

A tool call is one line. On a terminal it is finished in place; elsewhere a second line tells its
end. What an agent printed cannot touch the terminal.
"""

import os
import unicodedata
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TextIO, get_args

from steadyrun.cli.output import format as render
from steadyrun.model import event as ev
from steadyrun.model.event import LiveEvent, RunEnded, StoredEvent, ToolCompleted, ToolFailed
from steadyrun.model.event_json import data_of, public
from steadyrun.model.tool_labels import label
from steadyrun.model.usage import Cost, Usage

ShownEvent = StoredEvent | LiveEvent

_COLUMN = 46
_QUOTED = 60
_USUAL_WIDTH = 80
_ENDINGS = {
    "completed": "done in",
    "failed": "failed after",
    "cancelled": "cancelled after",
    "timed_out": "timed out after",
    "rate_limited": "rate limited after",
}


class Output(Protocol):
    """Shows a run to somebody."""

    def show(self, seen: ShownEvent) -> None: ...

    def note(self, line: str) -> None:
        """Say what is not an event."""


class EventLines:
    """Every event as a line of JSON on stdout."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err

    def show(self, seen: ShownEvent) -> None:
        print(render.to_json(public(seen)), file=self._out, flush=True)

    def note(self, line: str) -> None:
        print(render.sanitize(line), file=self._err, flush=True)


class OneDocument(EventLines):
    """Nothing but the terminal data, and the run they belong to."""

    def show(self, seen: ShownEvent) -> None:
        if isinstance(seen.event, get_args(RunEnded)):
            document = {"run": seen.run, **data_of(seen.event)}
            print(render.to_json(document), file=self._out, flush=True)


class LiveText:
    """For people."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._screen = _Screen(out, err)
        self._answer = _AnswerText(self._screen)
        # When each open tool began, and how its line begins.
        self._tools: dict[str, tuple[datetime, str]] = {}

    def show(self, seen: ShownEvent) -> None:
        match seen.event:
            case ev.TextDelta(text):
                self._answer.add(text)
            case ev.TextFinal(text):
                self._answer.finish(text)
            case ev.ToolStarted() as tool:
                self._tools[tool.tool_call_id] = (seen.at, summarize_tool(tool))
                self._screen.begin_line(tool.tool_call_id, f"  > {summarize_tool(tool)}")
            case ToolCompleted() | ToolFailed() as tool:
                self._end_tool(seen.at, tool)
            case ended if isinstance(ended, get_args(RunEnded)):
                self._end_run(seen, ended)
            case other:
                line = format_progress(other)
                if line:
                    self._screen.write_line(line)

    def note(self, line: str) -> None:
        self._screen.write_line(line)

    def _end_tool(self, at: datetime, tool: ToolCompleted | ToolFailed) -> None:
        began, gist = self._tools.pop(tool.tool_call_id, (at, summarize_tool(tool)))
        took = render.format_duration(max(0, round((at - began).total_seconds() * 1000)))
        outcome = ""
        if isinstance(tool, ToolFailed):
            outcome = f"  failed: {tool.error}" if tool.error else "  failed"
        self._screen.end_line(tool.tool_call_id, gist, f"{took:>6}{outcome}")

    def _end_run(self, seen: ShownEvent, ended: RunEnded) -> None:
        self._answer.close(ended.text)
        for line in format_ending(seen.run or "", ended):
            self._screen.write_line(line)


class _Screen:
    """Both streams, which may be one screen: a line is begun only where none is open."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._is_terminal = err.isatty()
        self._shares_screen = self._is_terminal and out.isatty()
        self._is_text_open = False
        # The tool whose line is the last one on the terminal and has not ended.
        self._open_tool: str | None = None

    def write_text(self, text: str) -> None:
        if text:
            self._close_tool()
            self._out.write(text)
            self._out.flush()
            self._is_text_open = not text.endswith("\n")

    def end_text(self) -> None:
        if self._is_text_open:
            self.write_text("\n")

    def write_line(self, line: str) -> None:
        self._start_line()
        self._write(render.sanitize(line) + "\n")

    def begin_line(self, tool: str, line: str) -> None:
        if not self._is_terminal:
            self.write_line(line)
            return
        self._start_line()
        self._write(truncate(render.sanitize(line), self._measure_terminal()))
        self._open_tool = tool

    def end_line(self, tool: str, gist: str, result: str) -> None:
        is_in_place = self._open_tool == tool
        if is_in_place:
            self._open_tool = None
        else:
            self._start_line()
        start = "\r  > " if is_in_place else "  < "
        self._write(f"{start}{self._align(render.sanitize(gist), render.sanitize(result))}\n")

    def _align(self, gist: str, result: str) -> str:
        if not self._is_terminal:
            return f"{gist:<{_COLUMN}} {result}"
        result = truncate(result, self._measure_terminal() // 2)
        room = max(8, self._measure_terminal() - measure_width(result) - 5)
        return f"{pad(truncate(gist, room), min(_COLUMN, room))} {result}"

    def _start_line(self) -> None:
        self._close_tool()
        if self._is_text_open and self._shares_screen:
            self.write_text("\n")

    def _close_tool(self) -> None:
        if self._open_tool is not None:
            self._open_tool = None
            self._write("\n")

    def _write(self, text: str) -> None:
        self._err.write(text)
        self._err.flush()

    def _measure_terminal(self) -> int:
        try:
            columns = os.get_terminal_size(self._err.fileno()).columns or _USUAL_WIDTH
        except (OSError, ValueError):
            columns = _USUAL_WIDTH
        # The last column stays free: a full line would begin the next one.
        return max(20, columns - 1)


class _AnswerText:
    """The text of the agent: printed as it comes, and not again when it is whole."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen
        self._streamed: list[str] = []
        self._last = ""

    def add(self, delta: str) -> None:
        self._streamed.append(delta)
        self._screen.write_text(render.sanitize_text(delta))

    def finish(self, text: str) -> None:
        self._screen.write_text(render.sanitize_text(self._find_unprinted(text)))
        self._screen.end_text()
        self._last = text.strip()

    def close(self, result: str | None) -> None:
        """The run ended: what it calls its result may be a text that was not said before."""
        self._screen.end_text()
        if result and result.strip() != self._last:
            self.finish(result)

    def _find_unprinted(self, text: str) -> str:
        """What of a whole text has not been printed by deltas; some may have been lost."""
        streamed, whole = "".join(self._streamed), text.strip()
        self._streamed.clear()
        if whole and whole in streamed:
            self._streamed.append(streamed[streamed.index(whole) + len(whole) :].lstrip())
            return ""
        if streamed and text.startswith(streamed):
            return text[len(streamed) :]
        self._screen.end_text()
        return text


def summarize_tool(tool: Any) -> str:
    """A tool call in a few words."""
    return label(tool.tool_name, tool.tool_input)


def format_progress(event: object) -> str | None:
    """What is worth a line while a run goes on; most is not."""
    line = _PROGRESS_FORMATTERS.get(type(event))
    return line(event) if line else None


_PROGRESS_FORMATTERS: dict[type, Callable[[Any], str]] = {
    ev.RunStarted: lambda e: f"* started ({' '.join(filter(None, (e.provider, e.model)))})",
    ev.FollowupOffered: lambda e: f"  + offered: {_quote(e.text)}",
    ev.FollowupAbsorbed: lambda e: f"  + appended: {_quote(e.text)}",
    ev.FollowupOwnTurn: lambda e: f"  + became a turn of its own: {_quote(e.text)}",
    ev.FollowupReturned: lambda e: f"  + given back: {_quote(e.text)}{_format_reason(e.reason)}",
    ev.MessageSent: lambda e: f"  ! message -> {e.ref}: {_quote(e.text)}",
    ev.ApprovalResolved: lambda e: f"  ? {e.verdict} (by {e.by})",
    ev.Note: lambda e: f"  . {e.text}",
    ev.StallWarned: lambda e: f"  . silent for {render.format_duration(e.silent_ms)}",
    ev.ProviderRetrying: lambda e: f"  . retrying (attempt {e.attempt}): {e.reason}",
    ev.ImageProduced: lambda e: (
        f"  . image {e.file or e.name} ({e.media_type}, {e.size_bytes} bytes)"
    ),
    ev.CompactionCompleted: lambda _: "  . the conversation was compacted",
    ev.CompactionFailed: lambda e: (
        f"  ! the conversation was not compacted{_format_reason(e.reason)}"
    ),
    ev.PolicyViolated: lambda e: f"  ! against the policy: {e.rule}{_format_reason(e.tool_name)}",
    ev.BudgetReached: lambda e: (
        f"  ! {e.percent} % of the {e.limit}'s budget: {e.spent:.6g} of {e.allowed:g} {e.unit}"
    ),
    ev.GateSuspect: lambda e: f"  ! {e.provider}: {e.reason}",
    ev.GateClosed: lambda e: f"  ! {e.provider}: {e.reason}",
    ev.RecordFailed: lambda e: f"  ! the record failed ({e.phase}): {e.message}",
}


def format_ending(run: str, ended: RunEnded) -> list[str]:
    """How it ended and what it took; what is not known is not there."""
    parts = [
        f"{_ENDINGS.get(ended.status, ended.status)} {render.format_duration(ended.duration_ms)}"
    ]
    if ended.error:
        parts.append(f"{ended.error.code}: {ended.error.message}")
    elif ended.stop_reason:
        parts.append(ended.stop_reason)
    parts += [part for part in (money(ended.cost), tokens(ended.usage), run) if part]
    lines = [f"* {' · '.join(parts)}"]
    if ended.error and ended.error.hint:
        lines.append(f"  {ended.error.hint}")
    if ended.diagnostic and ended.diagnostic.stderr_excerpt:
        lines.append(f"  stderr: {ended.diagnostic.stderr_excerpt}")
    return lines


def money(cost: Cost) -> str:
    if cost.usd is None:
        return ""
    digits = 4 if 0 < cost.usd < 0.01 else 2
    return f"{'~' if cost.kind == 'estimated' else ''}${cost.usd:.{digits}f}"


def tokens(usage: Usage) -> str:
    into, out, cached = usage.input_tokens, usage.output_tokens, usage.cache_read_tokens
    parts = []
    if into is not None:
        parts.append(
            f"{format_count(into)} in{f' ({format_count(cached)} cached)' if cached else ''}"
        )
    if out is not None:
        parts.append(f"{format_count(out)} out")
    return " / ".join(parts)


def format_count(number: int) -> str:
    """A number in four characters: 850, 2.1k, 41k, 1.2M."""
    if number < 1000:
        return str(number)
    # 999,600 would be shown as 1000k.
    unit, size = ("k", 1000) if number < 999_500 else ("M", 1_000_000)
    scaled = number / size
    return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"


def truncate(text: str, columns: int) -> str:
    """Cut to what fits into so many columns."""
    if measure_width(text) <= columns:
        return text
    while text and measure_width(text) >= columns:
        text = text[: -max(1, (measure_width(text) - columns) // 2)]
    return f"{text}…"


def pad(text: str, columns: int) -> str:
    return text + " " * max(0, columns - measure_width(text))


def measure_width(text: str) -> int:
    """How many columns it takes, or one or two more."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _format_reason(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _quote(text: str) -> str:
    return f'"{render.sanitize(text, _QUOTED)}"'
