"""What does an agent always know? Rules, its role, its own files, in that order.

An agent may write to its home, and what it puts there is told to its provider at the next launch:
so nothing is read that is not a plain text of its own.
"""

import functools
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import AgentHomeMissing, FileUnusable, InvalidUsage, PathRefused, RoleMissing
from steadyrun.lib.safe_files import open_regular, to_unreadable
from steadyrun.lib.safe_paths import PathScope, escape_path
from steadyrun.model.agent import ROLE_RULE, Agent, is_role_name
from steadyrun.model.policy import Permissions, read_permissions
from steadyrun.model.text import Problem

ROLES = "roles"
# Who it is, whom it works for, and how.
OWN_FILES = ("SOUL.md", "IDENTITY.md", "USER.md", "AGENTS.md", "TOOLS.md")
PERMISSIONS = "PERMISSIONS.json"
LARGEST_FILE_BYTES = 64 * 1024
LONGEST_NOTE = 500
RULES = """\
You are {name}, an agent that steadyrun runs. Your home directory is {home}.
What you write is internal: it is kept in the record, where whoever asked can read it, and is sent \
to nobody."""

# What is remembered of files, so that a turn that finds them unchanged reads none.
_REMEMBERED = 256


class SystemPrompt(Struct, frozen=True):
    """What a provider is told before everything else, and what whoever runs it should know.

    `is_added`: it comes after the provider's own system prompt, and not in its place.
    `permissions`: what the file in its home allows it, if there is one.
    """

    system: str | None
    notes: tuple[str, ...] = ()
    is_added: bool = False
    permissions: Permissions | None = None


def read_system_prompt(agent: Agent, *, home: Path, appended: bool = False) -> SystemPrompt:
    """Compose it from files as they are now; `home` is ours, with the roles in it.

    `appended`: the provider is configured to be told something of its own, which takes the place of
    the agent's own files. A run that nobody gave a role has nothing but what it was told itself.
    """
    if agent.is_direct and agent.role is None:
        return SystemPrompt(agent.system)
    require_home(agent)
    own = PathScope.from_directories(agent.home)
    permissions, notes = _permissions(own)
    parts = [
        ("steadyrun", RULES.format(name=_who(agent), home=agent.home)),
        *_role(agent, home),
        *(() if appended else _own(own)),
        ("Permissions", permissions.note if permissions else ""),
        ("Instructions", agent.system or ""),
    ]
    told = [f"# {heading}\n{text.strip()}" for heading, text in parts if text.strip()]
    return SystemPrompt("\n\n".join(told), notes, is_added=True, permissions=permissions)


def require_home(agent: Agent) -> None:
    """The agent's directory is there, or `AgentHomeMissing`."""
    if not Path(agent.home).is_dir():
        raise AgentHomeMissing(agent.name, home=agent.home)


def require_role(role: str, home: Path) -> Path:
    """The file of a role, else `RoleMissing`; what can be none is `Usage`."""
    if not is_role_name(role):
        raise InvalidUsage(f"expected the name of a role, found {role[:80]!r}", hint=ROLE_RULE)
    file = home / ROLES / f"{role}.md"
    if not file.exists():
        raise RoleMissing(role, file=file)
    return file


def agent_environment(agent: Agent, home: Path) -> dict[str, str]:
    """What a process is told of its agent. Never an item, a run or a token: it may serve many."""
    ours = {"STEADYRUN_HOME": str(home)}
    if agent.is_direct:
        # Its name is that of its run.
        return ours
    return {"STEADYRUN_AGENT": agent.name, "STEADYRUN_AGENT_HOME": agent.home, **ours}


def _who(agent: Agent) -> str:
    return agent.role if agent.is_direct and agent.role else agent.name


def _role(agent: Agent, home: Path) -> Iterator[tuple[str, str]]:
    if agent.role is not None:
        # The person's own directory: a link in it may lead anywhere.
        yield f"Role: {agent.role}", _text(require_role(agent.role, home)) or ""


def _own(scope: PathScope) -> Iterator[tuple[str, str]]:
    for name in OWN_FILES:
        yield name, _own_text(name, scope) or ""


def _permissions(scope: PathScope) -> tuple[Permissions | None, tuple[str, ...]]:
    """What PERMISSIONS.json allows, and what is left out of it; one that cannot be understood is
    refused: it may have been meant to allow less."""
    text = _own_text(PERMISSIONS, scope)
    if text is None:
        return None, ()
    found = read_permissions(text)
    if isinstance(found, Problem):
        file = escape_path(scope.roots[0] / PERMISSIONS)
        raise FileUnusable(file, found.problem, hint=found.hint)
    if len(found.note) <= LONGEST_NOTE:
        return found, ()
    note = f"{PERMISSIONS}: note has more than {LONGEST_NOTE} characters; it is cut"
    return replace(found, note=found.note[:LONGEST_NOTE]), (note,)


def _own_text(name: str, scope: PathScope) -> str | None:
    """What stands in a file of the agent's home; a link may not lead out of there."""
    file = scope.roots[0] / name
    try:
        return _text(file, scope)
    except PathRefused as refused:
        hint = "Put a copy in its place."
        raise FileUnusable(escape_path(file), refused.problem, hint=hint) from refused


def _text(file: Path, scope: PathScope | None = None) -> str | None:
    """What stands in a file, None if there is none. A link that leads to nothing was meant to."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise to_unreadable(file, error) from error
    if stat.S_ISLNK(found.st_mode):
        link, file = file, file if scope is None else scope.resolve(str(file))
        try:
            found = file.stat()
        except FileNotFoundError as error:
            hint = "Put a file in its place, or remove it."
            raise FileUnusable(escape_path(link), "is a link to nothing", hint=hint) from error
        except (OSError, ValueError) as error:
            raise to_unreadable(file, error) from error
    if stat.S_ISREG(found.st_mode):
        _check_size(file, found.st_size)
    # The time of its last change, too: that of its content can be set to anything.
    as_found = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return _read(file, scope, as_found)


@functools.lru_cache(maxsize=_REMEMBERED)
def _read(file: Path, scope: PathScope | None, _as_found: tuple[int, ...]) -> str:
    with open_regular(file, scope) as stream:
        content = stream.read(LARGEST_FILE_BYTES + 1)
    _check_size(file, len(content))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}"
        raise FileUnusable(escape_path(file), problem) from error
    if "\0" in text:
        raise FileUnusable(
            escape_path(file), f"is no text: a zero byte at offset {text.index(chr(0))}"
        )
    return text


def _check_size(file: Path, size: int) -> None:
    if size > LARGEST_FILE_BYTES:
        problem = f"expected at most {LARGEST_FILE_BYTES} bytes, found {size}"
        raise FileUnusable(
            escape_path(file), problem, hint="Shorten it: it goes with every conversation."
        )
