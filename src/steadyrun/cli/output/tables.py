"""Formats the answers of operations as lines of text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from steadyrun.cli.output.format import (
    align_columns,
    format_age,
    format_money,
    format_runs,
    format_time,
    format_usd,
    sanitize,
    to_json,
)
from steadyrun.model.budget import format_budget
from steadyrun.model.health import HealthMeasure, HealthReading
from steadyrun.model.usage import Cost
from steadyrun.operations.documents import (
    AgentDocument,
    AgentPage,
    AgentsDocument,
    ApprovalDocument,
    ApprovalsDocument,
    CancelledDocument,
    CostDocument,
    CostRow,
    CostSum,
    GateDocument,
    GatesDocument,
    ItemDocument,
    ItemsDocument,
    RemovedDocument,
    StatusDocument,
    StoppedDocument,
)

_LONGEST_TEXT = 60
_MEASURES: dict[HealthMeasure, str] = {
    "loop_seconds": "the delay of the event loop",
    "commit_seconds": "the time of a commit",
    "queue_seconds": "the wait of the oldest item that could run",
    "memory_bytes": "the memory of the daemon",
}
# Reasons to wait that do not end soon, or not without a command.
BLOCKING_REASONS = frozenset({"paused", "budget", "gate"})


def format_answer(name: str, request: Struct, answer: Struct) -> list[str]:
    """Return the lines for standard output."""
    return list(FORMATTERS[name](request, answer))


def format_agent_table(agents: Iterable[AgentDocument]) -> list[str]:
    rows = [
        (
            agent.name,
            agent.state,
            agent.provider,
            _describe_activity(agent),
            str(agent.queued),
            format_cost_sum(agent.cost_today),
        )
        for agent in agents
    ]
    if not rows:
        return ["There are no agents yet."]
    return align_columns([("NAME", "STATE", "PROVIDER", "NOW", "QUEUE", "TODAY"), *rows])


def format_cost_sum(cost: CostSum) -> str:
    unknown = (
        f" + {cost.unknown_runs} unknown" if cost.unknown_runs and cost.usd is not None else ""
    )
    return format_money(Cost(cost.usd, cost.kind)) + unknown


def _format_added(_: Any, agent: AgentDocument) -> Iterator[str]:
    yield f"added {agent.name}"


def _format_changed(request: Any, agent: AgentDocument) -> Iterator[str]:
    changed = [field for field in request.__struct_fields__ if getattr(request, field) is not None]
    named = [field.replace("_", "-") for field in changed if field not in {"name", "clear"}]
    yield f"set {agent.name}: {', '.join([*named, *(request.clear or ())])}"


def _format_removed(_: Any, agent: RemovedDocument) -> Iterator[str]:
    yield f"removed {agent.name}"


def _format_agents(_: Any, found: AgentsDocument) -> Sequence[str]:
    return format_agent_table(found.agents)


def _format_agent(_: Any, agent: AgentPage) -> Iterator[str]:
    facts = {
        "agent": agent.name,
        "state": agent.state + (f" until {format_time(agent.until)}" if agent.until else ""),
        "why": agent.reason,
        "budget": ", ".join(format_budget(agent.budget)),
        "process": agent.process,
        "now": agent.now and f"{agent.item}: {agent.now}",
        "run": agent.run,
        "queue": str(agent.queued),
        "today": format_cost_sum(agent.cost_today),
        "provider": " ".join(filter(None, (agent.provider, agent.model))),
        "fallback": ", ".join(agent.fallback),
        "home": agent.home,
        "role": agent.role,
        "mode": agent.mode,
        "tier": agent.tier,
        "tools": "none" if agent.tools == () else ", ".join(agent.tools or ()),
        "deny": ", ".join(agent.deny),
        "followup": agent.followup,
        "on lost": agent.on_lost,
        "on limit": agent.on_limited,
        "approvers": ", ".join(agent.approvers),
        "timeout": f"{agent.timeout_seconds:g}s" if agent.timeout_seconds else None,
        "system": agent.system,
        "origin": agent.origin,
    }
    yield from (f"{name:<9} {sanitize(fact)}" for name, fact in facts.items() if fact)
    for token in agent.tokens:
        ended = f" ({token.ended})" if token.ended else ""
        line = f"{token.provider} {token.token} since {format_time(token.bound_at)}{ended}"
        yield f"{'token':<9} {sanitize(line)}"


def _format_paused(request: Any, found: AgentsDocument) -> Iterator[str]:
    if request.provider:
        command = f"steadyrun resume --provider {request.provider}"
        yield f"closed the gate of {request.provider}; open it with: {command}"
    for agent in found.agents:
        what = "paused" if agent.state == "paused" else "waits for its gate:"
        if request.provider and agent.fallback and agent.state not in {"paused", "gated"}:
            what = "continues with a fallback:"
        yield f"{what} {agent.name}" + ("; 1 run continues" if agent.run else "")


def _format_resumed(request: Any, found: AgentsDocument) -> Iterator[str]:
    if request.provider:
        yield f"opened the gate of {request.provider}"
    for agent in found.agents:
        if agent.state == "paused":
            yield sanitize(f"{agent.name} is paused: {agent.reason or 'by a user'}")
        else:
            yield f"resumed {agent.name}"


def describe_status(item: ItemDocument) -> str:
    """Return the status of an item, what it waits for, and until when if that is known."""
    until = f" until {format_time(item.until)}" if item.until else ""
    return item.status + (f" ({item.waiting}{until})" if item.waiting else "")


def describe_blocked(item: ItemDocument) -> str:
    """Return the status of an item, with what it waits for only if that blocks it for long."""
    return describe_status(item) if item.waiting in BLOCKING_REASONS else item.status


def explain_blocked(item: ItemDocument) -> str:
    """Return the end of a line about an item: why the gate that it waits for is closed."""
    return f": {sanitize(item.reason)}" if item.reason else ""


def _format_sent(_: Any, item: ItemDocument) -> Iterator[str]:
    yield f"* {item.id} {describe_blocked(item)} for {item.agent}{explain_blocked(item)}"


def _format_retried(request: Any, item: ItemDocument) -> Iterator[str]:
    yield f"{item.id}: retry of {item.retry_of}"


def format_retried_items(found: ItemsDocument) -> Sequence[str]:
    lines = [f"{item.id}: retry of {item.retry_of}, for {item.agent}" for item in found.items]
    return lines or ["No failed items."]


def _format_inbox(request: Any, found: ItemsDocument) -> Sequence[str]:
    now = datetime.now(UTC)
    if not found.items:
        return ["No items." if request.all else "No open items."]
    rows = [
        (
            item.id,
            item.agent,
            describe_status(item),
            "-" if item.delivery == "none" else item.delivery,
            format_age(item.created_at, now),
            sanitize(item.text, _LONGEST_TEXT),
        )
        for item in found.items
    ]
    table = align_columns([("ITEM", "AGENT", "STATUS", "DELIVERY", "AGE", "TEXT"), *rows])
    reasons = {item.reason: None for item in found.items if item.reason}
    return [*table, *(f"gate: {sanitize(reason)}" for reason in reasons)]


def _format_approvals(request: Any, found: ApprovalsDocument) -> Iterator[str]:
    """Each request is shown whole: a part that is cut off could be the dangerous one."""
    now = datetime.now(UTC)
    if not found.approvals:
        yield "No approvals." if request.all else "No approvals are pending."
    for each in found.approvals:
        verdict = f", {each.verdict} by {each.by}" if each.verdict else ""
        yield sanitize(
            f"{each.id}  {each.agent}  {each.status}{verdict}  {format_age(each.asked_at, now)}"
        )
        if each.about == "budget":
            yield sanitize(f"  {each.tool_input['why']}: continue?")
            continue
        asked = "" if each.tool_input is None else to_json(each.tool_input)
        yield sanitize(f"  {each.tool_name} {asked}".rstrip())


def _format_answered(_: Any, found: ApprovalDocument) -> Iterator[str]:
    word = "allowed" if found.verdict == "allow" else "denied"
    yield sanitize(f"{word}: {found.tool_name} for {found.agent} ({found.id})")
    if found.provider:
        yield sanitize(f"continues with {found.provider}")
    for each in found.extended:
        amount = f"${each.allowed:.2f}" if each.unit == "usd" else f"{each.allowed:.0f} tokens"
        yield f"{found.agent} may spend {amount} now: its {each.limit} limit is extended"
    if found.about == "budget" and found.verdict == "allow" and not found.extended:
        yield "no limit is extended: the next run has a new limit, or a new day has begun"


def _format_cancelled(_: Any, found: CancelledDocument) -> Iterator[str]:
    yield f"{found.status}: {found.run or found.item}"


def _format_status(_: Any, found: StatusDocument) -> Iterator[str]:
    daemon = found.daemon
    draining = ", draining" if daemon.is_draining else ""
    yield (
        f"* up since {format_time(daemon.started_at)} (pid {daemon.pid}, {daemon.version}): "
        f"{daemon.runs.live} of {daemon.runs.most} runs, "
        f"{daemon.processes.live} of {daemon.processes.most} processes{draining}"
    )
    yield from map(_format_breach, (each for each in daemon.health if each.since))
    yield from format_agent_table(found.agents)
    shut = [gate for gate in found.gates if gate.is_present and not gate.dispatchable]
    yield from map(_format_gate, shut)
    for aside in found.set_aside:
        yield sanitize(f"set aside {aside.process}: {aside.reason}")


def _format_breach(found: HealthReading) -> str:
    unit = " MiB" if found.measure == "memory_bytes" else " s"
    part = 1 << 20 if found.measure == "memory_bytes" else 1
    value, limit = f"{found.value / part:.1f}{unit}", f"{found.limit / part:.1f}{unit}"
    since = f" since {format_time(found.since)}" if found.since else ""
    return f"! {_MEASURES[found.measure]} is {value}, above {limit}{since}"


def _format_gate(gate: GateDocument) -> str:
    until = f" until {format_time(gate.until)}" if gate.until else ""
    return sanitize(f"gate {gate.provider}: {gate.state}{until} ({gate.reason or 'no reason'})")


def _format_gates(_: Any, found: GatesDocument) -> Sequence[str]:
    rows = [
        (
            gate.provider,
            (gate.account or "-") + ("" if gate.is_present else " (not in use)"),
            gate.state,
            format_time(gate.until) if gate.until else "-",
            str(gate.level),
            format_time(gate.hit_at) if gate.hit_at else "-",
            sanitize(gate.reason or "-", _LONGEST_TEXT),
        )
        for gate in found.gates
    ]
    heading = ("PROVIDER", "ACCOUNT", "STATE", "UNTIL", "LEVEL", "LAST REFUSAL", "WHY")
    return align_columns([heading, *rows]) if rows else ["No provider is in use yet."]


def _format_cost(_: Any, found: CostDocument) -> Iterator[str]:
    heading = (found.by.upper(), "RUNS", "TOKENS", "KNOWN", "ESTIMATED", "UNKNOWN")
    rows = [_build_cost_row(row, row.key or "-") for row in found.rows]
    yield from align_columns([heading, *rows, _build_cost_row(found.total, "total")])
    since = f"since {format_time(found.since)}, " if found.since else ""
    prices = found.prices
    listed = f"; estimates by {prices.source} of {prices.published}" if prices else ""
    yield f"({since}days of {found.timezone}{listed})"


def _build_cost_row(row: CostRow, name: str) -> tuple[str, ...]:
    tokens = row.input_tokens + row.output_tokens + row.cache_read_tokens + row.cache_write_tokens
    runs = format_runs(row.unknown_runs)
    unknown = f"{runs}, {row.unknown_tokens} tokens" if row.unknown_runs else "-"
    money = (format_usd(row.known_usd), format_usd(row.estimated_usd, is_estimated=True))
    return (sanitize(name, _LONGEST_TEXT), str(row.runs), str(tokens), *money, unknown)


def _format_stopped(_: Any, found: StoppedDocument) -> Iterator[str]:
    counts = [
        f"{count} {what}"
        for count, what in (
            (found.stopped, "stopped"), (found.kept, "kept"), (found.queued, "queued")
        )
        if count
    ]  # fmt: skip
    yield f"* down{': ' if counts else ''}{', '.join(counts)}"


def _describe_activity(agent: AgentDocument) -> str:
    if agent.state == "gated" and agent.until:
        return f"until {format_time(agent.until)}"
    if agent.reason and not agent.run:
        return sanitize(agent.reason, _LONGEST_TEXT)
    return sanitize(agent.now or "-", _LONGEST_TEXT)


FORMATTERS: dict[str, Callable[[Any, Any], Iterable[str]]] = {
    "agent.add": _format_added,
    "agent.show": _format_agent,
    "agent.set": _format_changed,
    "agent.rm": _format_removed,
    "agent.list": _format_agents,
    "agent.pause": _format_paused,
    "agent.resume": _format_resumed,
    "gate.list": _format_gates,
    "gate.open": _format_gates,
    "gate.close": _format_gates,
    "item.send": _format_sent,
    "item.list": _format_inbox,
    "item.cancel": _format_cancelled,
    "item.retry": _format_retried,
    "approval.list": _format_approvals,
    "approval.approve": _format_answered,
    "approval.deny": _format_answered,
    "cost.show": _format_cost,
    "status": _format_status,
    "daemon.stop": _format_stopped,
}
