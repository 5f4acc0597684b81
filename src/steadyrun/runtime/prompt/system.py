"""Reads the system prompt of an agent: rules, its role and its own files, in this order.

An agent may write to its home, and these files become part of its prompt at the next launch. So
only plain text files inside its home are read.
"""

import functools
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import AgentHomeMissing, FileUnusable, InvalidUsage, PathRefused, RoleMissing
from steadyrun.lib.safe_paths import PathScope, escape_path, open_regular, to_unreadable
from steadyrun.model.agent import ROLE_RULE, Agent, is_role_name
from steadyrun.model.policy import Permissions, read_permissions
from steadyrun.model.quotation import quote
from steadyrun.model.text import Problem

ROLES = "roles"
# The agent's own files, in the order of the prompt.
OWN_FILES = ("SOUL.md", "IDENTITY.md", "USER.md", "AGENTS.md", "TOOLS.md")
PERMISSIONS = "PERMISSIONS.json"
LARGEST_FILE_BYTES = 64 * 1024
LONGEST_NOTE = 500
RULES = """\
You are {name}, an agent that steadyrun runs. Your home directory is {home}.
What you write is internal: it is kept in the record, where the sender of a message can read it, \
and is not sent anywhere else."""

# How many files are cached, so that a turn does not read unchanged files again.
_REMEMBERED = 256


class SystemPrompt(Struct, frozen=True):
    """The system prompt of an agent, and notes for the record.

    `is_added`: it is added to the provider's own system prompt, instead of replacing it.
    `permissions`: the content of the agent's PERMISSIONS.json, if there is one.
    """

    system: str | None
    notes: tuple[str, ...] = ()
    is_added: bool = False
    permissions: Permissions | None = None


def read_system_prompt(agent: Agent, *, home: Path, appended: bool = False) -> SystemPrompt:
    """Compose the prompt from the present files; `home` is STEADYRUN_HOME, which has the roles.

    `appended`: the provider is configured with a text of its own, which replaces the agent's own
    files. A direct run without a role has only its own `system`.
    """
    if agent.is_direct and agent.role is None:
        return SystemPrompt(agent.system)
    require_home(agent)
    own = PathScope.from_directories(agent.home)
    permissions, notes = _read_permissions(own)
    parts = [
        ("steadyrun", RULES.format(name=_choose_name(agent), home=agent.home)),
        *_read_role(agent, home),
        *((name, _read_own_file(name, own) or "") for name in OWN_FILES if not appended),
        ("Permissions", permissions.note if permissions else ""),
        ("Instructions", agent.system or ""),
    ]
    sections = [f"# {heading}\n{text.strip()}" for heading, text in parts if text.strip()]
    return SystemPrompt("\n\n".join(sections), notes, is_added=True, permissions=permissions)


def require_home(agent: Agent) -> None:
    """Raise `AgentHomeMissing` unless the agent's directory exists."""
    if not Path(agent.home).is_dir():
        raise AgentHomeMissing(agent.name, home=agent.home)


def require_role(role: str, home: Path) -> Path:
    """Return the file of a role; `RoleMissing` if there is none, `InvalidUsage` for a bad name."""
    if not is_role_name(role):
        raise InvalidUsage(f"expected the name of a role, found {quote(role)}", hint=ROLE_RULE)
    file = home / ROLES / f"{role}.md"
    if not file.exists():
        raise RoleMissing(role, file=file)
    return file


def build_agent_environment(agent: Agent, home: Path) -> dict[str, str]:
    """Build the variables that name the agent of a process. They never name an item, a run or a
    token: a process may serve many."""
    env = {"STEADYRUN_HOME": str(home)}
    if agent.is_direct:
        # Its name is that of its run.
        return env
    return {"STEADYRUN_AGENT": agent.name, "STEADYRUN_AGENT_HOME": agent.home, **env}


def _choose_name(agent: Agent) -> str:
    return agent.role if agent.is_direct and agent.role else agent.name


def _read_role(agent: Agent, home: Path) -> Iterator[tuple[str, str]]:
    if agent.role is not None:
        # The directory belongs to the user: a link in it may lead anywhere.
        yield f"Role: {agent.role}", _read_file(require_role(agent.role, home)) or ""


def _read_permissions(scope: PathScope) -> tuple[Permissions | None, tuple[str, ...]]:
    """Read PERMISSIONS.json, and note what is cut. An invalid file is refused: it may have been
    meant to allow less."""
    text = _read_own_file(PERMISSIONS, scope)
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


def _read_own_file(name: str, scope: PathScope) -> str | None:
    """Read a file of the agent's home; a link must not lead out of it."""
    file = scope.roots[0] / name
    try:
        return _read_file(file, scope)
    except PathRefused as refused:
        hint = "Put a copy in its place."
        raise FileUnusable(escape_path(file), refused.problem, hint=hint) from refused


def _read_file(file: Path, scope: PathScope | None = None) -> str | None:
    """Read a file; None if there is none. A link without a target is an error."""
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
            raise FileUnusable(
                escape_path(link), "is a link without a target", hint=hint
            ) from error
        except (OSError, ValueError) as error:
            raise to_unreadable(file, error) from error
    if stat.S_ISREG(found.st_mode):
        _check_size(file, found.st_size)
    # ctime too: a program can set mtime to any value.
    as_found = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return _read_content(file, scope, as_found)


@functools.lru_cache(maxsize=_REMEMBERED)
def _read_content(file: Path, scope: PathScope | None, _as_found: tuple[int, ...]) -> str:
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
            escape_path(file), problem, hint="Shorten it: it is part of every conversation."
        )
