"""What may an agent do, and how far may it go?

Its rights are what its policy and the file in its home both allow: the file can only take away. A
provider keeps them with what it has (`Dialect.enforce`), or refuses.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from steadyrun.model.budget import Budget
from steadyrun.model.text import Problem, suggest

Mode = Literal["default", "accept_edits", "plan", "full_auto", "dangerously_skip_permissions"]
Tier = Literal["readonly", "standard", "full", "custom"]

# The tools every provider is thought to have, by whatever name.
TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep", "WebSearch", "WebFetch")
_READONLY = ("Read", "Glob", "Grep", "WebSearch", "WebFetch")
# What a tier allows; one that is `custom` comes with a list of its own.
TIERS: Mapping[Tier, tuple[str, ...]] = {
    "readonly": _READONLY,
    "standard": (*_READONLY, "Edit"),
    "full": TOOLS,
}
# Nobody has them: they wait for somebody who is not there, or start work that nobody asked for.
DENIED = (
    "AskUserQuestion",
    "CronCreate",
    "CronDelete",
    "CronList",
    "ScheduleWakeup",
    "RemoteTrigger",
    "PushNotification",
)
# Further names that mean something to some provider.
MORE_TOOLS = (
    "Agent", "EnterPlanMode", "EnterWorktree", "ExitPlanMode", "ExitWorktree", "NotebookEdit",
    "ReportFindings", "SendMessage", "Skill", "TaskCreate", "TaskGet", "TaskList", "TaskOutput",
    "TaskStop", "TaskUpdate", "Workflow",
)  # fmt: skip
# Tools of other names that do what these do: such a tool is allowed if one of them is. Commands are
# not among them: where those cannot be taken away, a sandbox stands for the list.
_BY_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "fileChange": ("Edit", "Write"),
    "webSearch": ("WebSearch",),
}
# What begins so belongs to a server of the user's own.
MCP = "mcp__"
_SERVERS_TOOL = re.compile(MCP + r"[A-Za-z0-9_-]+")


class Policy(Struct, frozen=True):
    """The mode, and the tools a run may use (None: the provider's own default).

    `tier` says which those are, if it is not `custom`; `deny` is taken away from them.
    """

    mode: Mode = "default"
    allowed_tools: tuple[str, ...] | None = None
    budget: Budget = Budget()
    tier: Tier | None = None
    deny: tuple[str, ...] = ()


class Permissions(Struct, frozen=True, forbid_unknown_fields=True):
    """What the file in an agent's home allows it, and a note it is told."""

    tier: Tier | None = None
    tools: tuple[str, ...] | None = None
    note: str = ""


class Rights(Struct, frozen=True):
    """What is left when everything has been taken away: `tools` has none that `deny` names."""

    mode: Mode = "default"
    tools: tuple[str, ...] | None = None
    deny: tuple[str, ...] = DENIED

    @property
    def allowed(self) -> frozenset[str]:
        """Those of `TOOLS` that may be used."""
        return frozenset(TOOLS if self.tools is None else self.tools) - set(self.deny)


def compute_rights(policy: Policy, permissions: Permissions | None = None) -> Rights:
    """What both allow."""
    deny = tuple(dict.fromkeys((*DENIED, *policy.deny)))
    tools = _expand_tools(policy.tier, policy.allowed_tools)
    if permissions is not None:
        tools = _intersect(tools, _expand_tools(permissions.tier, permissions.tools))
    kept = None if tools is None else tuple(name for name in tools if name not in deny)
    return Rights(policy.mode, kept, deny)


def find_breach(rights: Rights, tool: str) -> Literal["deny", "tools"] | None:
    """The rule that the use of a tool goes against, by the name that its provider has for it.

    A list says nothing of names that cannot stand in one, nor of the tools of servers."""
    names = _BY_OTHER_NAMES.get(tool, (tool,))
    if all(_is_denied(name, rights.deny) for name in names):
        return "deny"
    known = (*TOOLS, *MORE_TOOLS)
    if rights.tools is not None and all(n in known and n not in rights.tools for n in names):
        return "tools"
    return None


def read_permissions(text: str) -> Permissions | Problem:
    """What a file in an agent's home says."""
    try:
        given = msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return Problem("expected a JSON object, found something else")
    if twice := _find_duplicate_key(text):
        return Problem(f"has {twice[:80]!r} twice", "Leave one of both out.")
    if isinstance(tier := given.get("tier"), str) and (flaw := check_tier(tier)):
        return flaw
    try:
        found = msgspec.convert(given, Permissions)
    except msgspec.ValidationError as error:
        return Problem(f"cannot be understood: {error}", "It may have tier, tools and note.")
    return check_tools(found.tier, found.tools) or found


def check_tools(tier: Tier | None, tools: Sequence[str] | None) -> Problem | None:
    """What is wrong with a tier and a list of tools that stand together."""
    if tier == "custom" and tools is None:
        return Problem("the tier custom needs a list of tools", f"Name some of: {', '.join(TOOLS)}")
    if tier not in (None, "custom") and tools is not None:
        return Problem(f"the tier {tier} has tools of its own", "Leave out one, or say custom.")
    for name in tools or ():
        if name in DENIED:
            return Problem(f"the tool {name!r} is denied to everybody", "Leave it out.")
    return check_tool_names(tools or ())


def check_tool_names(names: Iterable[str]) -> Problem | None:
    """The first that is no tool's name, and the nearest one."""
    known = (*TOOLS, *MORE_TOOLS, *DENIED)
    for name in names:
        if name not in known and not _SERVERS_TOOL.fullmatch(name):
            return Problem(f"unknown tool {name[:80]!r}", suggest(name, known))
    return None


def check_tier(name: str) -> Problem | None:
    """What is wrong with the name of a tier."""
    known = get_args(Tier)
    return None if name in known else Problem(f"unknown tier {name[:80]!r}", suggest(name, known))


def _find_duplicate_key(text: str) -> str | None:
    """The first key that an object has twice: whoever reads it would take one or the other."""
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in pairs]
        found.extend(key for key in keys if keys.count(key) > 1)

    # Any other reader drops all but the last of them. What is too long or too deep for this one is
    # nothing that a file may have.
    with suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=look)
    return found[0] if found else None


def _is_denied(name: str, deny: Sequence[str]) -> bool:
    """By its name, or by that of its server."""
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
