"""Sums up tokens and costs by agent, provider, model or day.

Known, estimated and unknown costs are kept apart.
"""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Annotated, Literal

from msgspec import Struct

from steadyrun.errors import InvalidUsage
from steadyrun.model.budget import find_window_start
from steadyrun.model.quotation import quote
from steadyrun.model.usage import UsageSum, add_up
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import CostDocument, CostRow
from steadyrun.operations.fields import arg
from steadyrun.operations.lookup import find_agent

CostGrouping = Literal["agent", "provider", "model", "day"]
_DAYS = 30
_AGO = re.compile(r"([0-9]{1,4})([hd])", re.ASCII)
_HOURS = {"h": 1, "d": 24}
_FORMS = "today, month, a date such as 2026-01-31, or a time span: 24h, 7d"


class CostRequest(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, arg("only of this agent", metavar="AGENT", is_word=True)] = None
    by: Annotated[CostGrouping, arg("one row per agent, provider, model or day (agent)")] = "agent"
    since: Annotated[
        str | None, arg(f"{_FORMS} (all; with --by day: {_DAYS}d)", metavar="WHEN")
    ] = None  # fmt: skip


async def show(context: OperationContext, request: CostRequest) -> CostDocument:
    agent = (await find_agent(context, request.agent)).id if request.agent is not None else None
    now, zone = context.clock.now(), context.budgets.zone
    since = None if request.since is None else parse_since(request.since, now, zone)
    if request.by == "day":
        since = find_window_start("day", since or now - timedelta(days=_DAYS - 1), zone)
    found = await context.store.usage(request.by, agent=agent, since=since, zone=zone)
    total = add_up(found.values())
    rows = tuple(_build_row(key or None, each) for key, each in sorted(found.items()))
    prices = context.prices() if context.prices else None
    return CostDocument(request.by, rows, _build_row(None, total), since, str(zone), prices)


def parse_since(text: str, now: datetime, zone: tzinfo) -> datetime:
    """Parse --since. Days begin at midnight in the zone. A time in the future is an error."""
    found = _AGO.fullmatch(text)
    begin: datetime | None = None
    if text in {"today", "month"}:
        begin = find_window_start("day" if text == "today" else "month", now, zone)
    elif found:
        begin = now - timedelta(hours=int(found[1]) * _HOURS[found[2]])
    else:
        begin = _parse_date(text, zone)
    if begin is None or begin > now:
        raise InvalidUsage(f"expected {_FORMS}; found {quote(text)}")
    return begin


def _parse_date(text: str, zone: tzinfo) -> datetime | None:
    try:
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _build_row(key: str | None, total: UsageSum) -> CostRow:
    return CostRow(key, *(getattr(total, name) for name in UsageSum.__struct_fields__))
