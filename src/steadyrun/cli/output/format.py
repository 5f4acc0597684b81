"""How do runs and events look, to a person and to a program?"""

import re
from datetime import UTC, datetime

import msgspec

from steadyrun.model import event as ev
from steadyrun.model.event import LiveEvent, RunEnded, StoredEvent, type_of
from steadyrun.model.event_json import data_of
from steadyrun.model.run import Run
from steadyrun.model.usage import Cost, Usage

# What an agent printed may try to move the cursor, rewrite the screen or turn the line around.
_HARMFUL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
_CONTROL = re.compile(rf"[\t\n{_HARMFUL}]+")
_CONTROL_IN_TEXT = re.compile(rf"[{_HARMFUL}]+")
_LONGEST_LINE = 160


def to_json(document: object) -> str:
    return msgspec.json.encode(document).decode()


def format_run_table(runs: list[tuple[Run, str]]) -> list[str]:
    """A line a run, under headings."""
    heading = ("RUN", "STATUS", "AGENT", "PROVIDER", "CREATED", "TOOK", "COST")
    return align_columns([heading, *(_build_run_row(run, agent_name) for run, agent_name in runs)])


def align_columns(rows: list[tuple[str, ...]]) -> list[str]:
    """A line a row, its cells under those of the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_run_page(run: Run, agent_name: str) -> list[str]:
    """Everything about one run that a person asks first."""
    facts = {
        "run": run.id,
        "agent": agent_name,
        "status": run.status + (f" ({run.stop_reason})" if run.stop_reason else ""),
        "provider": run.provider + (f" {run.model}" if run.model else ""),
        "created": format_time(run.created_at),
        "took": format_duration(run.duration_ms),
        "cost": format_money(run.cost),
        "tokens": format_tokens(run.usage),
        "events": f"{run.events} (tool calls: {run.tools})",
    }
    if run.error:
        facts["error"] = f"{run.error.code}: {run.error.message}"
    if run.diagnostic:
        facts["stderr"] = run.diagnostic.stderr_excerpt
    lines = [f"{name:<9} {sanitize(value)}" for name, value in facts.items()]
    return [*lines, "", *sanitize_lines(run.text)] if run.text else lines


def format_event(seen: StoredEvent | LiveEvent) -> str:
    """An event in one line."""
    what = sanitize(_summarize_event(seen), _LONGEST_LINE)
    return f"{seen.at.astimezone(UTC):%H:%M:%S}  {type_of(seen.event):<20} {what}".rstrip()


def sanitize(text: str, limit: int | None = None) -> str:
    """Text without control characters, on one line, cut at `limit`."""
    line = _CONTROL.sub(" ", text)
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def sanitize_lines(text: str) -> list[str]:
    return [sanitize(line) for line in text.splitlines()]


def sanitize_text(text: str) -> str:
    """Text without control characters, its line breaks and tabs as they are."""
    return _CONTROL_IN_TEXT.sub(" ", text.replace("\r\n", "\n"))


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


def format_money(cost: Cost) -> str:
    if cost.usd is None:
        return "unknown"
    return f"{'~' if cost.kind == 'estimated' else ''}${cost.usd:.4f}"


def format_tokens(usage: Usage) -> str:
    if usage.input_tokens is None and usage.output_tokens is None:
        return "unknown"
    cached = f" ({usage.cache_read_tokens} cached)" if usage.cache_read_tokens else ""
    return f"{usage.input_tokens or 0} in{cached} / {usage.output_tokens or 0} out"


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


def _summarize_event(seen: StoredEvent | LiveEvent) -> str:
    match seen.event:
        case ev.TextFinal(text) | ev.Note(text):
            return text
        case ev.ToolStarted() | ev.ToolCompleted() | ev.ToolFailed() as tool:
            shown = tool.tool_input if tool.tool_output is None else tool.tool_output
            return f"{tool.tool_name} {'' if shown is None else _to_text(shown)}"
        case ev.RunStarted(provider, model):
            return f"{provider} {model or ''}"
        case (
            ev.RunCompleted()
            | ev.RunFailed()
            | ev.RunCancelled()
            | ev.RunTimedOut()
            | ev.RunRateLimited() as ended
        ):
            return _format_ending(ended)
        case other:
            known = {k: v for k, v in data_of(other).items() if v not in (None, "", [], {})}
            return to_json(known) if known else ""


def _format_ending(ended: RunEnded) -> str:
    why = f"{ended.error.code}: {ended.error.message} · " if ended.error else ""
    cost, used = format_money(ended.cost), format_tokens(ended.usage)
    spent = (
        format_duration(ended.duration_ms),
        _label_unknown("cost", cost),
        _label_unknown("tokens", used),
    )
    return why + " · ".join(spent)


def _label_unknown(what: str, shown: str) -> str:
    return f"{what} unknown" if shown == "unknown" else shown


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)
