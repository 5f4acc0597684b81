"""Which settings are there, and which values may they have?

The structs are the schema: names, types and defaults come from them alone. What a type cannot
say stands in `_CHECKS`, by pattern; `*` is a name that the user chose.
"""

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Struct

from steadyrun.config.source import KeyPath, Source, Table, dotted, shorten
from steadyrun.config.template import is_malformed
from steadyrun.model.policy import Budget, Mode

# The registry of providers will take its place.
PROVIDERS = (
    "claude", "codex", "kimi", "gemini", "amp", "opencode", "acp", "openai", "openrouter",
    "shell", "scripted",
)  # fmt: skip
# What a project's file may set before anybody has trusted it: nothing that could start a command
# or send data elsewhere.
HARMLESS = frozenset({"providers.*.model", "agents.*.model"})

_AGENT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LISTEN = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")


class Daemon(Struct, frozen=True):
    """Where the daemon answers."""

    listen: str = "127.0.0.1:7717"


class Clocks(Struct, frozen=True):
    """How long may what take? In seconds; 0 is without limit."""

    idle_seconds: float = 1800.0
    stall_seconds: float = 120.0
    hang_seconds: float = 60.0
    warning_seconds: float = 60.0
    interrupt_seconds: float = 10.0
    close_seconds: float = 10.0
    offer_seconds: float = 30.0
    approval_seconds: float = 600.0


class ProviderSettings(Struct, frozen=True):
    """How a provider is started. `env` holds templates: `${VAR}` is filled in at launch."""

    command: tuple[str, ...] | None = None
    model: str | None = None
    env: dict[str, str] = {}
    options: dict[str, Any] = {}


class AgentSettings(Struct, frozen=True):
    """An agent that lives in the configuration."""

    provider: str
    home: str
    fallback: tuple[str, ...] = ()
    model: str | None = None
    mode: Mode = "default"
    budget: Budget = Budget()


class Settings(Struct, frozen=True):
    """Everything that can be set."""

    store: str = "sqlite"
    daemon: Daemon = Daemon()
    clocks: Clocks = Clocks()
    providers: dict[str, ProviderSettings] = {}
    agents: dict[str, AgentSettings] = {}


class Flaw(NamedTuple):
    """What is wrong with a name or a value, and what would be right."""

    problem: str
    hint: str = ""


def leaves(
    source: Source, *, kind: Any = Settings, table: Table | None = None, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, Any]]:
    """Give every value that `source` sets, checked; an empty table counts as a value."""
    table = source.data if table is None else table
    if path and not table:
        yield path, {}
    for key, value in table.items():
        here = (*path, key)
        inner = _kind_of(source, kind, here)
        if value is None:
            continue  # TOML has no null: this is a default that says "there is none"
        if not _is_table(inner):
            yield here, _checked(source, inner, here, value)
        elif isinstance(value, dict):
            yield from leaves(source, kind=inner, table=value, path=here)
        else:
            raise _flawed(source, here, Flaw(f"expected a table, found {_name_type(value)}"))


def pattern_of(path: KeyPath) -> str:
    """Replace the names a user chose by `*`."""
    kind: Any = Settings
    parts = []
    for key in path:
        parts.append("*" if get_origin(kind) is dict else key)
        kind = _members(kind).get(parts[-1])
    return ".".join(parts)


def setting_patterns(kind: Any = Settings, prefix: str = "") -> Iterator[str]:
    """List every setting there is, as patterns."""
    for name, inner in _members(kind).items():
        if _is_table(inner):
            yield from setting_patterns(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def set_values(settings: Settings) -> Iterator[tuple[KeyPath, Any]]:
    """Give every setting that has a value, defaults included, in plain types."""
    patterns = set(setting_patterns())
    for path, value in leaves(Source("default", msgspec.to_builtins(settings))):
        if pattern_of(path) in patterns:
            yield path, value


def build(values: dict[KeyPath, Any], sources: dict[KeyPath, Source]) -> Settings:
    """Make the typed settings of merged values, and check what only the whole can show."""
    data = _nest(values)
    for name, agent in data.get("agents", {}).items():
        _check_agent(("agents", name), agent, sources)
    return msgspec.convert(data, Settings)


def suggest(word: str, valid: Iterable[str]) -> str:
    """Name the nearest valid word, else all of them."""
    valid = sorted(valid)
    near = difflib.get_close_matches(word[:100], valid, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Valid here: {', '.join(valid)}."


@functools.cache
def _members(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is dict:
        return {"*": get_args(kind)[1]}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {}


def _is_table(kind: Any) -> bool:
    return bool(_members(kind))


def _kind_of(source: Source, kind: Any, path: KeyPath) -> Any:
    members = _members(kind)
    if "*" in members:
        check = _NAMES.get(pattern_of(path))
        flaw = check(path[-1]) if check else None
        if flaw:
            raise source.invalid(path, f"{dotted(path)}: {flaw.problem}", hint=flaw.hint)
        return members["*"]
    if path[-1] not in members:
        hint = suggest(path[-1], members)
        raise source.invalid(path, f"unknown setting {dotted(path)}", hint=hint)
    return members[path[-1]]


def _checked(source: Source, kind: Any, path: KeyPath, value: Any) -> Any:
    try:
        value = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise _flawed(source, path, _wrong_type(kind, value)) from None
    check = _CHECKS.get(pattern_of(path))
    flaw = check(value) if check else None
    if flaw:
        raise _flawed(source, path, flaw)
    return value


def _flawed(source: Source, path: KeyPath, flaw: Flaw) -> Exception:
    return source.invalid(path, f"{dotted(path)}: {flaw.problem}", hint=flaw.hint)


def _wrong_type(kind: Any, value: object) -> Flaw:
    if get_origin(kind) is Literal and isinstance(value, str):
        return _unknown("mode", value, get_args(kind))
    expected = _EXPECTED.get(kind, "a string")
    found = "something else in it" if isinstance(value, list) else _name_type(value)
    return Flaw(f"expected {expected}, found {found}")


def _name_type(value: object) -> str:
    """Name a type, never the value: it may be a secret in the wrong place."""
    return _TYPE_NAMES.get(type(value), "a date or time")


def _unknown(what: str, word: str, valid: Iterable[str]) -> Flaw:
    return Flaw(f"unknown {what} {shorten(repr(word))}", hint=suggest(word, valid))


def _check_provider(name: str) -> Flaw | None:
    return None if name in PROVIDERS else _unknown("provider", name, PROVIDERS)


def _check_agent_name(name: str) -> Flaw | None:
    if _AGENT_NAME.fullmatch(name):
        return None
    rule = "An agent's name is a small letter, then up to 62 of a-z, 0-9, _ and -."
    return Flaw("cannot be the name of an agent", hint=rule)


def _check_variable(name: str) -> Flaw | None:
    if _VARIABLE.fullmatch(name):
        return None
    return Flaw("cannot be the name of a variable", hint="Use letters, digits and _.")


def _check_store(value: str) -> Flaw | None:
    # The value is never repeated: an address may hold a password.
    if value == "sqlite":
        return None
    if value.startswith("postgresql://"):
        problem = "PostgreSQL is not available in this version"
        return Flaw(problem, hint='Use store = "sqlite".')
    return Flaw('expected "sqlite" or "postgresql://…"', hint='Use store = "sqlite".')


def _check_listen(value: str) -> Flaw | None:
    found = _LISTEN.fullmatch(value)
    if found is None:
        return Flaw(f"expected HOST:PORT, found {shorten(repr(value))}")
    if not 1 <= int(found[1]) <= 65535:
        return Flaw(f"expected a port from 1 to 65535, found {found[1]}")
    return None


def _check_text(value: str) -> Flaw | None:
    if not value:
        return Flaw("must not be empty")
    return Flaw("must not contain a NUL character") if "\0" in value else None


def _check_command(value: tuple[str, ...]) -> Flaw | None:
    if not value or not value[0]:
        return Flaw("expected a program and its arguments, found none")
    return next(filter(None, (_check_text(part) for part in value if part)), None)


def _check_env(value: str) -> Flaw | None:
    if is_malformed(value):
        return Flaw("has a ${ that does not begin a ${NAME}", hint="Write $$ for a dollar sign.")
    return _check_text(value) if value else None


def _check_fallback(value: tuple[str, ...]) -> Flaw | None:
    if len(set(value)) < len(value):
        return Flaw("names a provider twice")
    return next(filter(None, map(_check_provider, value)), None)


def _check_home(value: str) -> Flaw | None:
    if value.startswith(("/", "~/")):
        return _check_text(value)
    return Flaw(f"expected a path from / or ~/, found {shorten(repr(value))}")


def _check_amount(value: float) -> Flaw | None:
    if value > 0 and math.isfinite(value):
        return None
    return Flaw(f"expected a number of dollars above 0, found {value}")


def _check_seconds(value: float) -> Flaw | None:
    if value >= 0 and math.isfinite(value):
        return None
    return Flaw(f"expected a number of seconds, 0 or more, found {value}")


def _check_agent(path: KeyPath, agent: Table, sources: dict[KeyPath, Source]) -> None:
    for field in msgspec.structs.fields(AgentSettings):
        if field.required and field.name not in agent:
            source = next(s for p, s in sources.items() if p[:2] == path)
            raise source.invalid(path, f"{dotted(path)} has no {field.name}, which it needs")
    if agent["provider"] in agent.get("fallback", ()):
        here = (*path, "fallback")
        problem = f"{dotted(here)}: names {agent['provider']!r}, which is the provider already"
        raise sources[here].invalid(here, problem)


def _nest(values: dict[KeyPath, Any]) -> Table:
    data: Table = {}
    for path, value in values.items():
        table = data
        for part in path[:-1]:
            table = table.setdefault(part, {})
        # An empty table of one layer must not hide what another layer put into it.
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
    float: "a number",
    float | None: "a number",
    tuple[str, ...]: "a list of strings",
    tuple[str, ...] | None: "a list of strings",
}
_NAMES: dict[str, Callable[[str], Flaw | None]] = {
    "providers.*": _check_provider,
    "agents.*": _check_agent_name,
    "providers.*.env.*": _check_variable,
}
_CHECKS: dict[str, Callable[[Any], Flaw | None]] = {
    "store": _check_store,
    "daemon.listen": _check_listen,
    "providers.*.command": _check_command,
    "providers.*.model": _check_text,
    "providers.*.env.*": _check_env,
    "agents.*.provider": _check_provider,
    "agents.*.fallback": _check_fallback,
    "agents.*.home": _check_home,
    "agents.*.model": _check_text,
    "agents.*.budget.run": _check_amount,
    "agents.*.budget.day": _check_amount,
    "agents.*.budget.month": _check_amount,
    **{f"clocks.{field.name}": _check_seconds for field in msgspec.structs.fields(Clocks)},
}
