"""Shows a run while it is in progress: its text on stdout, its progress on stderr.

A tool call is one line. On a terminal the line is completed in place; otherwise a second line
reports the end of the call. Control characters in the output of an agent are removed.
"""

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TextIO, get_args

from steadyrun.cli.output.format import (
    UNKNOWN,
    ShownEvent,
    format_duration,
    format_money,
    format_tokens,
    measure_width,
    pad,
    sanitize,
    sanitize_text,
    to_json,
    truncate,
)
from steadyrun.model import event as ev
from steadyrun.model.event import RunEnded, ToolCompleted, ToolFailed
from steadyrun.model.event_json import to_data, to_public
from steadyrun.model.tool_labels import format_label

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
    """Shows the events of a run."""

    def show(self, seen: ShownEvent) -> None: ...

    def note(self, line: str) -> None:
        """Show a line that is not an event."""


class EventLines:
    """Prints every event as a line of JSON on stdout."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err

    def show(self, seen: ShownEvent) -> None:
        print(to_json(to_public(seen)), file=self._out, flush=True)

    def note(self, line: str) -> None:
        print(sanitize(line), file=self._err, flush=True)


class OneDocument(EventLines):
    """Prints the final result of a run as one JSON document."""

    def show(self, seen: ShownEvent) -> None:
        if isinstance(seen.event, get_args(RunEnded)):
            document = {"run": seen.run, **to_data(seen.event)}
            print(to_json(document), file=self._out, flush=True)


class LiveText:
    """Shows text and progress for people."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._screen = _Screen(out, err)
        self._answer = _AnswerText(self._screen)
        # The start time and the summary of each open tool call.
        self._tools: dict[str, tuple[datetime, str]] = {}

    def show(self, seen: ShownEvent) -> None:
        match seen.event:
            case ev.TextDelta(text):
                self._answer.add(text)
            case ev.TextFinal(text):
                self._answer.finish(text)
            case ev.ToolStarted() as tool:
                gist = summarize_tool(tool)
                self._tools[tool.tool_call_id] = (seen.at, gist)
                self._screen.begin_line(tool.tool_call_id, f"  > {gist}")
            case ToolCompleted() | ToolFailed() as tool:
                self._end_tool(seen.at, tool)
            case ended if isinstance(ended, get_args(RunEnded)):
                self._end_run(seen, ended)
            case other:
                if format_line := _PROGRESS_FORMATTERS.get(type(other)):
                    self._screen.write_line(format_line(other))

    def note(self, line: str) -> None:
        self._screen.write_line(line)

    def _end_tool(self, at: datetime, tool: ToolCompleted | ToolFailed) -> None:
        began, gist = self._tools.pop(tool.tool_call_id, (at, summarize_tool(tool)))
        took = format_duration(max(0, round((at - began).total_seconds() * 1000)))
        outcome = ""
        if isinstance(tool, ToolFailed):
            outcome = f"  failed: {tool.error}" if tool.error else "  failed"
        self._screen.end_line(tool.tool_call_id, gist, f"{took:>6}{outcome}")

    def _end_run(self, seen: ShownEvent, ended: RunEnded) -> None:
        self._answer.close(ended.text)
        for line in format_ending(seen.run or "", ended):
            self._screen.write_line(line)


class _Screen:
    """Writes to both streams, which may share a screen: a new line never starts inside another."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._is_terminal = err.isatty()
        self._shares_screen = self._is_terminal and out.isatty()
        self._is_text_open = False
        # The open tool call whose line is the last one on the terminal.
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
        self._write(sanitize(line) + "\n")

    def begin_line(self, tool: str, line: str) -> None:
        if not self._is_terminal:
            self.write_line(line)
            return
        self._start_line()
        self._write(truncate(sanitize(line), self._measure_terminal()))
        self._open_tool = tool

    def end_line(self, tool: str, gist: str, result: str) -> None:
        is_in_place = self._open_tool == tool
        if is_in_place:
            self._open_tool = None
        else:
            self._start_line()
        start = "\r  > " if is_in_place else "  < "
        self._write(f"{start}{self._align(sanitize(gist), sanitize(result))}\n")

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
        # The last column stays free: a full line would wrap.
        return max(20, columns - 1)


class _AnswerText:
    """Prints the text of the agent as it arrives, and not again when the whole text arrives."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen
        self._streamed: list[str] = []
        self._last = ""

    def add(self, delta: str) -> None:
        self._streamed.append(delta)
        self._screen.write_text(sanitize_text(delta))

    def finish(self, text: str) -> None:
        self._screen.write_text(sanitize_text(self._find_unprinted(text)))
        self._screen.end_text()
        self._last = text.strip()

    def close(self, result: str | None) -> None:
        """Print the result of an ended run, if it is a text that was not printed before."""
        self._screen.end_text()
        if result and result.strip() != self._last:
            self.finish(result)

    def _find_unprinted(self, text: str) -> str:
        """Find the part of the whole text that no delta has printed. Deltas may be missing."""
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
    """Return a short label for a tool call."""
    return format_label(tool.tool_name, tool.tool_input)


# The events that are shown as a line.
_PROGRESS_FORMATTERS: dict[type, Callable[[Any], str]] = {
    ev.RunStarted: lambda e: f"* started ({' '.join(filter(None, (e.provider, e.model)))})",
    ev.FollowupOffered: lambda e: f"  + offered: {_quote(e.text)}",
    ev.FollowupAbsorbed: lambda e: f"  + appended: {_quote(e.text)}",
    ev.FollowupOwnTurn: lambda e: f"  + started its own turn: {_quote(e.text)}",
    ev.FollowupReturned: lambda e: f"  + returned: {_quote(e.text)}{_format_reason(e.reason)}",
    ev.MessageSent: lambda e: f"  ! message -> {e.ref}: {_quote(e.text)}",
    ev.ApprovalResolved: lambda e: f"  ? {e.verdict} (by {e.by})",
    ev.Note: lambda e: f"  . {e.text}",
    ev.StallWarned: lambda e: f"  . silent for {format_duration(e.silent_ms)}",
    ev.ProviderRetrying: lambda e: f"  . retrying (attempt {e.attempt}): {e.reason}",
    ev.ImageProduced: lambda e: (
        f"  . image {e.file or e.name} ({e.media_type}, {e.size_bytes} bytes)"
    ),
    ev.CompactionCompleted: lambda _: "  . the conversation was compacted",
    ev.CompactionFailed: lambda e: (
        f"  ! the conversation was not compacted{_format_reason(e.reason)}"
    ),
    ev.PolicyViolated: lambda e: f"  ! policy violation: {e.rule}{_format_reason(e.tool_name)}",
    ev.BudgetReached: lambda e: (
        f"  ! {e.percent} % of the {e.limit}'s budget: {e.spent:.6g} of {e.allowed:g} {e.unit}"
    ),
    ev.GateSuspect: lambda e: f"  ! {e.provider}: {e.reason}",
    ev.GateClosed: lambda e: f"  ! {e.provider}: {e.reason}",
    ev.RecordFailed: lambda e: f"  ! recording failed ({e.phase}): {e.message}",
}


def format_ending(run: str, ended: RunEnded) -> list[str]:
    """Format how a run ended and what it used. Unknown values are left out."""
    parts = [f"{_ENDINGS.get(ended.status, ended.status)} {format_duration(ended.duration_ms)}"]
    if ended.error:
        parts.append(f"{ended.error.code}: {ended.error.message}")
    elif ended.stop_reason:
        parts.append(ended.stop_reason)
    used = (format_money(ended.cost), format_tokens(ended.usage, is_exact=False), run)
    parts += [each for each in used if each not in {"", UNKNOWN}]
    lines = [f"* {' · '.join(parts)}"]
    if ended.error and ended.error.hint:
        lines.append(f"  {ended.error.hint}")
    if ended.diagnostic and ended.diagnostic.stderr_excerpt:
        lines.append(f"  stderr: {ended.diagnostic.stderr_excerpt}")
    return lines


def _format_reason(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _quote(text: str) -> str:
    return f'"{sanitize(text, _QUOTED)}"'
