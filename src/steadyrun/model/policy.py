"""Computes the rights of an agent from its policy and the file in its home.

The rights are what both allow: the file can only remove rights. A provider enforces them with its
own means (`Dialect.enforce`), or refuses.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from steadyrun.model.budget import Budget
from steadyrun.model.quotation import quote
from steadyrun.model.text import Problem, suggest

Mode = Literal["default", "accept_edits", "plan", "full_auto", "dangerously_skip_permissions"]
Tier = Literal["readonly", "standard", "full", "custom"]

# The tools that every provider has, under its own names.
TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep", "WebSearch", "WebFetch")
_READONLY = ("Read", "Glob", "Grep", "WebSearch", "WebFetch")
# The tools of a tier; `custom` has its own list.
TIERS: Mapping[Tier, tuple[str, ...]] = {
    "readonly": _READONLY,
    "standard": (*_READONLY, "Edit"),
    "full": TOOLS,
}
# Denied to all agents: they wait for a user who is absent, or start work without a request.
DENIED = (
    "AskUserQuestion",
    "CronCreate",
    "CronDelete",
    "CronList",
    "ScheduleWakeup",
    "RemoteTrigger",
    "PushNotification",
)
# Further tools of some providers.
MORE_TOOLS = (
    "Agent", "EnterPlanMode", "EnterWorktree", "ExitPlanMode", "ExitWorktree", "NotebookEdit",
    "ReportFindings", "SendMessage", "Skill", "TaskCreate", "TaskGet", "TaskList", "TaskOutput",
    "TaskStop", "TaskUpdate", "Workflow",
)  # fmt: skip
# Tools with other names: such a tool is allowed if one of the named tools is. Commands are not
# among them: where they cannot be removed, a sandbox replaces the list.
_BY_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "fileChange": ("Edit", "Write"),
    "webSearch": ("WebSearch",),
}
# The prefix of the tools of MCP servers of the user.
MCP = "mcp__"
_SERVERS_TOOL = re.compile(MCP + r"[A-Za-z0-9_-]+")


class Policy(Struct, frozen=True):
    """The mode, and the tools of a run (None: the default of the provider).

    `tier` defines the tools unless it is `custom`; `deny` is removed from them.
    """

    mode: Mode = "default"
    allowed_tools: tuple[str, ...] | None = None
    budget: Budget = Budget()
    tier: Tier | None = None
    deny: tuple[str, ...] = ()


class Permissions(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file in the home of an agent, with a note for the agent."""

    tier: Tier | None = None
    tools: tuple[str, ...] | None = None
    note: str = ""


class Rights(Struct, frozen=True):
    """The resulting rights: `tools` contains no tool of `deny`."""

    mode: Mode = "default"
    tools: tuple[str, ...] | None = None
    deny: tuple[str, ...] = DENIED

    @property
    def allowed(self) -> frozenset[str]:
        """The allowed part of `TOOLS`."""
        return frozenset(TOOLS if self.tools is None else self.tools) - set(self.deny)


def compute_rights(policy: Policy, permissions: Permissions | None = None) -> Rights:
    """The rights that the policy and the file both allow."""
    deny = tuple(dict.fromkeys((*DENIED, *policy.deny)))
    tools = _expand_tools(policy.tier, policy.allowed_tools)
    if permissions is not None:
        tools = _intersect(tools, _expand_tools(permissions.tier, permissions.tools))
    kept = None if tools is None else tuple(name for name in tools if name not in deny)
    return Rights(policy.mode, kept, deny)


def find_breach(rights: Rights, tool: str) -> Literal["deny", "tools"] | None:
    """The rule that the use of a tool violates; `tool` is its name at the provider.

    A list does not apply to names that cannot be in a list, nor to the tools of MCP servers."""
    names = _BY_OTHER_NAMES.get(tool, (tool,))
    if all(_is_denied(name, rights.deny) for name in names):
        return "deny"
    known = (*TOOLS, *MORE_TOOLS)
    if rights.tools is not None and all(n in known and n not in rights.tools for n in names):
        return "tools"
    return None


def read_permissions(text: str) -> Permissions | Problem:
    """Parse the file in the home of an agent."""
    try:
        given = msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return Problem("expected a JSON object, found something else")
    if twice := _find_duplicate_key(text):
        return Problem(f"has {quote(twice)} twice", "Remove one of them.")
    if isinstance(tier := given.get("tier"), str) and (flaw := check_tier(tier)):
        return flaw
    try:
        found = msgspec.convert(given, Permissions)
    except msgspec.ValidationError as error:
        return Problem(f"cannot be understood: {error}", "It may have tier, tools and note.")
    return check_tools(found.tier, found.tools) or found


def check_tools(tier: Tier | None, tools: Sequence[str] | None) -> Problem | None:
    """Check a tier together with a list of tools."""
    if tier == "custom" and tools is None:
        return Problem("the tier custom needs a list of tools", f"Name some of: {', '.join(TOOLS)}")
    if tier not in (None, "custom") and tools is not None:
        return Problem(
            f"the tier {tier} has tools of its own", "Remove one of them, or use custom."
        )
    for name in tools or ():
        if name in DENIED:
            return Problem(f"the tool {name!r} is denied to every agent", "Leave it out.")
    return check_tool_names(tools or ())


def check_tool_names(names: Iterable[str]) -> Problem | None:
    """Check names of tools; the problem suggests the nearest name."""
    known = (*TOOLS, *MORE_TOOLS, *DENIED)
    for name in names:
        if name not in known and not _SERVERS_TOOL.fullmatch(name):
            return Problem(f"unknown tool {quote(name)}", suggest(name, known))
    return None


def check_tier(name: str) -> Problem | None:
    """Check the name of a tier."""
    known = get_args(Tier)
    return None if name in known else Problem(f"unknown tier {quote(name)}", suggest(name, known))


def _find_duplicate_key(text: str) -> str | None:
    """The first repeated key of an object: readers would use different values of it."""
    found: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in pairs]
        found.extend(key for key in keys if keys.count(key) > 1)

    # Other readers drop all but the last value. A document that is too long or too deep for this
    # one is not valid here anyway.
    with suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=collect)
    return found[0] if found else None


def _is_denied(name: str, deny: Sequence[str]) -> bool:
    """Whether a tool is denied by its name or by the name of its server."""
    return name in deny or any(
        name.startswith(f"{each}__") for each in deny if each.startswith(MCP)
    )


def _expand_tools(tier: Tier | None, tools: tuple[str, ...] | None) -> tuple[str, ...] | None:
    given = tools if tier in (None, "custom") else TIERS[tier]
    return None if given is None else tuple(dict.fromkeys(given))


def _intersect(
    policy: tuple[str, ...] | None, file: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if policy is None or file is None:
        return file if policy is None else policy
    return tuple(name for name in policy if name in file)
