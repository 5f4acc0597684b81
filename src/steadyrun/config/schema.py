"""Defines the settings and checks their values.

The structs are the schema: names, types and defaults come only from them. Checks beyond types are
in `validators`, by pattern; `*` stands for a name that the user chose.
"""

import functools
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct

from steadyrun.config.toml_source import ConfigSource, KeyPath, Table, format_path
from steadyrun.config.validators import (
    CHECKS,
    NAMES,
    check_kind,
    check_provider,
    check_seconds,
    describe_unknown,
)
from steadyrun.model.agent import OnLimited
from steadyrun.model.budget import Budget, UnknownCostRule
from steadyrun.model.health import HealthLimits
from steadyrun.model.item import Followup, OnLost
from steadyrun.model.policy import Mode, Tier, check_tools
from steadyrun.model.text import Problem, suggest
from steadyrun.runtime.run.timeouts import Timeouts

# The settings of a project's file that need no trust: none of them can start a command or send
# data to another place.
UNTRUSTED_SETTINGS = frozenset({"providers.*.model", "agents.*.model"})


class DaemonSettings(Struct, frozen=True):
    """The address of the daemon, and its limits.

    `processes` and `idle_seconds` are limits of idle processes. The files of a process are kept for
    `keep_days` after its end, the events of runs for `keep_events_days`, and the texts of runs and
    items for `keep_texts_days`; 0: for ever. `line_bytes` limits the memory for one line of a CLI's
    output.
    """

    listen: str = "127.0.0.1:7717"
    runs: int = 5
    processes: int = 5
    idle_seconds: float = 300.0
    drain_seconds: float = 60.0
    keep_days: float = 7.0
    keep_events_days: float = 0.0
    keep_texts_days: float = 0.0
    line_bytes: int = 64 * 1024 * 1024


class GateSettings(Struct, frozen=True):
    """How long a gate is closed if the provider does not report a time: `factor` times longer after
    each refusal. After `attempts` refusals it must be opened by hand."""

    initial_seconds: int = 900
    max_seconds: int = 3600
    factor: float = 2.0
    attempts: int = 10


class BudgetSettings(Struct, frozen=True):
    """The time zone of days, and how an unknown cost counts: by its tokens, at
    `unknown_usd_per_million`; or it stops the run (`refuse`), or does not count (`allow`)."""

    timezone: str = "UTC"
    unknown: UnknownCostRule = "tokens"
    unknown_usd_per_million: float = 25.0


class ProviderSettings(Struct, frozen=True):
    """How a provider is started. `kind` names its Dialect; without it the table's name does.

    `env` holds templates: `${VAR}` is filled in at launch.
    """

    kind: str | None = None
    command: tuple[str, ...] | None = None
    model: str | None = None
    env: dict[str, str] = {}
    options: dict[str, Any] = {}
    runs: int | None = None


class AgentSettings(Struct, frozen=True):
    """An agent of the configuration."""

    provider: str
    home: str
    fallback: tuple[str, ...] = ()
    model: str | None = None
    mode: Mode = "default"
    tier: Tier | None = None
    tools: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    budget: Budget = Budget()
    role: str | None = None
    system: str | None = None
    followup: Followup = "steer"
    on_lost: OnLost = "resume"
    on_limited: OnLimited = "wait"
    approvers: tuple[str, ...] = ()
    wall_seconds: float | None = None


class TelemetrySettings(Struct, frozen=True):
    """The export of traces, which is off without an `endpoint`.

    `headers` are templates like `env`, and secret. `content` adds texts and tool calls.
    """

    endpoint: str = ""
    headers: dict[str, str] = {}
    content: bool = False


class Settings(Struct, frozen=True):
    """All settings."""

    store: str = "sqlite"
    daemon: DaemonSettings = DaemonSettings()
    clocks: Timeouts = Timeouts()
    gate: GateSettings = GateSettings()
    budgets: BudgetSettings = BudgetSettings()
    providers: dict[str, ProviderSettings] = {}
    agents: dict[str, AgentSettings] = {}
    telemetry: TelemetrySettings = TelemetrySettings()
    watch: HealthLimits = HealthLimits()


def iterate_values(
    source: ConfigSource, *, kind: Any = Settings, table: Table | None = None, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every value of `source` after its check; an empty table counts as a value."""
    table = source.data if table is None else table
    if path and not table:
        yield path, {}
    for key, value in table.items():
        here = (*path, key)
        inner = _find_type(source, kind, here)
        if value is None:
            continue  # TOML has no null: this is a default of None
        if not _is_table(inner):
            yield here, _check_value(source, inner, here, value)
        elif isinstance(value, dict):
            yield from iterate_values(source, kind=inner, table=value, path=here)
        else:
            raise _build_error(
                source, here, Problem(f"expected a table, found {_name_type(value)}")
            )


def to_pattern(path: KeyPath) -> str:
    """Replace the names that the user chose by `*`."""
    kind: Any = Settings
    parts = []
    for key in path:
        parts.append("*" if get_origin(kind) is dict else key)
        kind = _list_members(kind).get(parts[-1])
    return ".".join(parts)


def list_patterns(kind: Any = Settings, prefix: str = "") -> Iterator[str]:
    """List all settings as patterns."""
    for name, inner in _list_members(kind).items():
        if _is_table(inner):
            yield from list_patterns(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def list_values(settings: Settings) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every setting that has a value, including defaults, in plain types."""
    patterns = set(list_patterns())
    for path, value in iterate_values(ConfigSource("default", msgspec.to_builtins(settings))):
        if to_pattern(path) in patterns:
            yield path, value


def build(values: dict[KeyPath, Any], sources: dict[KeyPath, ConfigSource]) -> Settings:
    """Build the typed settings from merged values, and check those that depend on each other."""
    data = _nest(values)
    for name, provider in data.get("providers", {}).items():
        _check_kind(("providers", name), provider, sources)
    for name, agent in data.get("agents", {}).items():
        _check_agent_providers(("agents", name), agent, data.get("providers", {}), sources)
        _check_agent(("agents", name), agent, sources)
    settings = msgspec.convert(data, Settings)
    _check_gate(settings.gate, sources)
    return settings


@functools.cache
def _list_members(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is dict:
        return {"*": get_args(kind)[1]}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {}


def _is_table(kind: Any) -> bool:
    return bool(_list_members(kind))


def _find_type(source: ConfigSource, kind: Any, path: KeyPath) -> Any:
    members = _list_members(kind)
    if "*" in members:
        check = NAMES.get(to_pattern(path))
        flaw = check(path[-1]) if check else None
        if flaw:
            raise _build_error(source, path, flaw)
        return members["*"]
    if path[-1] not in members:
        hint = suggest(path[-1], members)
        raise source.build_error(path, f"unknown setting {format_path(path)}", hint=hint)
    return members[path[-1]]


def _check_value(source: ConfigSource, kind: Any, path: KeyPath, value: Any) -> Any:
    try:
        value = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise _build_error(source, path, _describe_type_error(path[-1], kind, value)) from None
    check = _CHECKS.get(to_pattern(path))
    flaw = check(value) if check else None
    if flaw:
        raise _build_error(source, path, flaw)
    return value


def _build_error(source: ConfigSource, path: KeyPath, flaw: Problem) -> Exception:
    return source.build_error(path, f"{format_path(path)}: {flaw.problem}", hint=flaw.hint)


def _describe_type_error(name: str, kind: Any, value: object) -> Problem:
    words = next((part for part in (kind, *get_args(kind)) if get_origin(part) is Literal), None)
    if words is not None and isinstance(value, str):
        return describe_unknown(name, value, get_args(words))
    expected = _EXPECTED.get(kind, "a string")
    found = "a list with other values" if isinstance(value, list) else _name_type(value)
    return Problem(f"expected {expected}, found {found}")


def _name_type(value: object) -> str:
    """Name a type, never the value: it may be a secret in the wrong place."""
    return _TYPE_NAMES.get(type(value), "a date or time")


def _check_kind(path: KeyPath, provider: Table, sources: dict[KeyPath, ConfigSource]) -> None:
    """Check the kind of a provider, which may be in another file than the rest of its table."""
    if flaw := check_kind(path[-1], provider.get("kind")):
        here = (*path, "kind") if "kind" in provider else path
        source = next(source for found, source in sources.items() if found[: len(here)] == here)
        raise _build_error(source, here, flaw)


def _check_agent_providers(
    path: KeyPath, agent: Table, providers: Table, sources: dict[KeyPath, ConfigSource]
) -> None:
    for key, names in (("provider", [agent.get("provider")]), ("fallback", agent.get("fallback"))):
        for name in names or ():
            if name is not None and (flaw := check_provider(name, providers)):
                here = (*path, key)
                raise _build_error(sources[here], here, flaw)


def _check_agent(path: KeyPath, agent: Table, sources: dict[KeyPath, ConfigSource]) -> None:
    for field in msgspec.structs.fields(AgentSettings):
        if field.required and field.name not in agent:
            source = next(s for p, s in sources.items() if p[:2] == path)
            raise source.build_error(path, f"{format_path(path)} requires {field.name}")
    if agent["provider"] in agent.get("fallback", ()):
        here = (*path, "fallback")
        twice = Problem(f"names {agent['provider']!r}, which is already its provider")
        raise _build_error(sources[here], here, twice)
    if flaw := check_tools(agent.get("tier"), agent.get("tools")):
        here = next(found for key in ("tools", "tier") if (found := (*path, key)) in sources)
        raise _build_error(sources[here], here, flaw)


def _check_gate(gate: GateSettings, sources: dict[KeyPath, ConfigSource]) -> None:
    if gate.max_seconds < gate.initial_seconds:
        names = [("gate", "max_seconds"), ("gate", "initial_seconds")]
        here = next(name for name in names if name in sources)
        problem = f"gate.max_seconds: {gate.max_seconds} is less than gate.initial_seconds"
        raise sources[here].build_error(here, f"{problem}, {gate.initial_seconds}")


def _nest(values: dict[KeyPath, Any]) -> Table:
    data: Table = {}
    for path, value in values.items():
        table = data
        for part in path[:-1]:
            table = table.setdefault(part, {})
        # An empty table of one layer must not hide the content of it in another layer.
        if value != {} or path[-1] not in table:
            table[path[-1]] = value
    return data


_TYPE_NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
}
_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    float | None: "a number",
    tuple[str, ...]: "a list of strings",
    tuple[str, ...] | None: "a list of strings",
}
_CHECKS = {
    **CHECKS,
    **{f"clocks.{field.name}": check_seconds for field in msgspec.structs.fields(Timeouts)},
}
