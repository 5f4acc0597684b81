"""Formats values, runs and events for people, and documents as JSON."""

import re
import unicodedata
from datetime import UTC, datetime
from typing import get_args

import msgspec

from steadyrun.model import event as ev
from steadyrun.model.event import LiveEvent, RunEnded, StoredEvent, get_type
from steadyrun.model.event_json import to_data
from steadyrun.model.run import Run
from steadyrun.model.usage import Cost, Usage

ShownEvent = StoredEvent | LiveEvent

UNKNOWN = "unknown"
# Characters that move the cursor, rewrite the screen or change the direction of the text. The
# output of an agent may have them.
_HARMFUL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
_CONTROL = re.compile(rf"[\t\n{_HARMFUL}]+")
_CONTROL_IN_TEXT = re.compile(rf"[{_HARMFUL}]+")
_LONGEST_LINE = 160


def to_json(document: object) -> str:
    return msgspec.json.encode(document).decode()


# -- text


def sanitize(text: str, limit: int | None = None) -> str:
    """Replace control characters and line breaks by spaces; cut the text at `limit`."""
    line = _CONTROL.sub(" ", text)
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def sanitize_lines(text: str) -> list[str]:
    return [sanitize(line) for line in text.splitlines()]


def sanitize_text(text: str) -> str:
    """Replace control characters by spaces; keep line breaks and tabs."""
    return _CONTROL_IN_TEXT.sub(" ", text.replace("\r\n", "\n"))


def measure_width(text: str) -> int:
    """Return how many columns of a terminal the text needs, or slightly more."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def truncate(text: str, columns: int) -> str:
    """Cut the text so that it fits into `columns` columns."""
    if measure_width(text) <= columns:
        return text
    while text and measure_width(text) >= columns:
        text = text[: -max(1, (measure_width(text) - columns) // 2)]
    return f"{text}…"


def pad(text: str, columns: int) -> str:
    return text + " " * max(0, columns - measure_width(text))


def align_columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Return one line per row, with aligned cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


# -- values


def format_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def format_duration(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"


def format_age(since: datetime, now: datetime) -> str:
    """Format a time span in its largest unit: 12s, 5m, 3h, 2d."""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def format_usd(amount: float, *, is_estimated: bool = False) -> str:
    """Format dollars with two digits, or with four if the amount is below one cent."""
    digits = 4 if 0 < amount < 0.01 else 2
    return f"{'~' if is_estimated else ''}${amount:.{digits}f}"


def format_money(cost: Cost) -> str:
    if cost.usd is None:
        return UNKNOWN
    return format_usd(cost.usd, is_estimated=cost.kind == "estimated")


def format_tokens(usage: Usage, *, is_exact: bool = True) -> str:
    """Format the token counts that are known; with `is_exact` off as 850, 2.1k, 41k, 1.2M."""
    to_text = str if is_exact else format_count
    into, out, cached = usage.input_tokens, usage.output_tokens, usage.cache_read_tokens
    parts = []
    if into is not None:
        parts.append(f"{to_text(into)} in{f' ({to_text(cached)} cached)' if cached else ''}")
    if out is not None:
        parts.append(f"{to_text(out)} out")
    return " / ".join(parts) or UNKNOWN


def format_count(number: int) -> str:
    """Format a number in at most four characters: 850, 2.1k, 41k, 1.2M."""
    if number < 1000:
        return str(number)
    # From 999,500 on, the rounded number would be 1000k.
    unit, size = ("k", 1000) if number < 999_500 else ("M", 1_000_000)
    scaled = number / size
    return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"


def format_runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


# -- runs


def format_run_table(runs: list[tuple[Run, str]]) -> list[str]:
    """Return a heading and one line per run."""
    heading = ("RUN", "STATUS", "AGENT", "PROVIDER", "CREATED", "TOOK", "COST")
    return align_columns([heading, *(_build_run_row(run, agent_name) for run, agent_name in runs)])


def format_run_page(run: Run, agent_name: str) -> list[str]:
    """Return the lines of `steadyrun show`: the main facts of a run and its text."""
    facts = {
        "run": run.id,
        "agent": agent_name,
        "status": run.status + (f" ({run.stop_reason})" if run.stop_reason else ""),
        "provider": run.provider + (f" {run.model}" if run.model else ""),
        "created": format_time(run.created_at),
        "took": format_duration(run.duration_ms),
        "cost": format_money(run.cost),
        "tokens": format_tokens(run.usage),
        "events": f"{run.events} (tool calls: {run.tools})"
        + ("; they were pruned" if run.events_pruned else ""),
    }
    if run.text_pruned:
        facts["text"] = "was pruned"
    if run.error:
        facts["error"] = f"{run.error.code}: {run.error.message}"
    if run.diagnostic:
        facts["stderr"] = run.diagnostic.stderr_excerpt
    lines = [f"{name:<9} {sanitize(value)}" for name, value in facts.items()]
    return [*lines, "", *sanitize_lines(run.text)] if run.text else lines


def _build_run_row(run: Run, agent_name: str) -> tuple[str, ...]:
    return (
        run.id,
        run.status,
        "-" if agent_name == run.id else sanitize(agent_name),
        sanitize(run.provider),
        format_time(run.created_at),
        format_duration(run.duration_ms),
        format_money(run.cost),
    )


# -- events


def format_event(seen: ShownEvent) -> str:
    """Format an event as one line."""
    summary = sanitize(_summarize_event(seen), _LONGEST_LINE)
    return f"{seen.at.astimezone(UTC):%H:%M:%S}  {get_type(seen.event):<20} {summary}".rstrip()


def _summarize_event(seen: ShownEvent) -> str:
    match seen.event:
        case ev.TextFinal(text) | ev.Note(text):
            return text
        case ev.ToolStarted() | ev.ToolCompleted() | ev.ToolFailed() as tool:
            shown = tool.tool_input if tool.tool_output is None else tool.tool_output
            return f"{tool.tool_name} {'' if shown is None else _to_text(shown)}"
        case ev.ApprovalRequested() | ev.ApprovalResolved() as approval:
            return _format_approval(seen, approval)
        case ended if isinstance(ended, get_args(RunEnded)):
            return _format_ending(ended)
        case other:
            return _format_other(other)


def _format_other(event: ev.Event | ev.Foreign) -> str:
    match event:
        case ev.RunStarted(provider, model):
            return f"{provider} {model or ''}"
        case other:
            data = {k: v for k, v in to_data(other).items() if v not in (None, "", [], {})}
            return to_json(data) if data else ""


def _format_approval(seen: ShownEvent, event: ev.ApprovalRequested | ev.ApprovalResolved) -> str:
    """Begin with the id, as `steadyrun approve` accepts it."""
    process = seen.id.partition(":")[0]
    name = f"{process if process.startswith('prc_') else ''}:{event.approval}"
    if isinstance(event, ev.ApprovalResolved):
        return f"{name} {event.verdict} by {event.by}"
    shown = "" if event.tool_input is None else to_json(event.tool_input)
    return f"{name} {event.tool_name} {shown}"


def _format_ending(ended: RunEnded) -> str:
    error = f"{ended.error.code}: {ended.error.message} · " if ended.error else ""
    cost, tokens = format_money(ended.cost), format_tokens(ended.usage)
    spent = (
        format_duration(ended.duration_ms),
        _label_unknown("cost", cost),
        _label_unknown("tokens", tokens),
    )
    return error + " · ".join(spent)


def _label_unknown(what: str, shown: str) -> str:
    return f"{what} {UNKNOWN}" if shown == UNKNOWN else shown


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)
