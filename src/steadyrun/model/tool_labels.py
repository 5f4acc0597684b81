"""Describes tool calls in a few words, with one table for the tools of all CLIs.

`Reading …/file.ts`, `Running pytest -q`. The name and the input come from an agent and may be
anything; a label is always one short printable line.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

LONGEST = 120
_LONGEST_NAME = 40


class _Label(NamedTuple):
    """The verb of a kind of tool, the text for a call without details, and the keys of its input
    with the details."""

    verb: str
    alone: str
    keys: tuple[str, ...] = ()
    is_path: bool = False


_PATHS = (
    "file_path", "filepath", "filePath", "path", "absolute_path", "notebook_path", "target_file",
    "filename", "dir_path", "directory", "paths", "changes",
)  # fmt: skip
_COMMANDS = ("command", "cmd", "script", "code")
_PATTERNS = ("pattern", "query", "regex", "glob", "search")
_QUESTIONS = ("query", "q", "search_term", "prompt", "queries")
_ADDRESSES = ("url", "uri", "urls", "prompt")
_TASKS = ("description", "title", "subject", "task", "prompt", "query")

# Names in the form of `_normalize_name`.
_KINDS: dict[_Label, str] = {
    _Label("Running", "Running command…", _COMMANDS): """bash shell localshell exec execcommand
        commandexecution execute runshellcommand runcommand runterminalcmd terminal powershell""",
    _Label("Reading", "Reading a file…", _PATHS, is_path=True): """read readfile viewfile view
        readmanyfiles readmediafile readtextfile notebookread openfile""",
    _Label("Looking at", "Looking at a picture…", _PATHS, is_path=True): "viewimage lookat",
    _Label("Writing", "Writing a file…", _PATHS, is_path=True): """write writefile createfile
        writetextfile""",
    _Label("Editing", "Editing a file…", _PATHS, is_path=True): """edit editfile multiedit replace
        strreplacefile strreplace notebookedit filechange applypatch patch undoedit""",
    _Label("Deleting", "Deleting a file…", _PATHS, is_path=True): "delete deletefile",
    _Label("Moving", "Moving a file…", _PATHS, is_path=True): "move movefile",
    _Label("Listing", "Listing files…", _PATHS, is_path=True): "ls list listdir listdirectory",
    _Label("Finding files", "Finding files…", _PATTERNS): "glob findfiles",
    _Label("Searching for", "Searching…", _PATTERNS): """grep search searchfilecontent grepsearch
        grepfiles codesearch finder codebasesearch""",
    _Label("Searching the web for", "Searching the web…", _QUESTIONS): """websearch searchweb
        googlewebsearch""",
    _Label("Fetching", "Fetching a page…", _ADDRESSES): "webfetch fetch fetchurl readwebpage",
    _Label("Delegating", "Delegating…", _TASKS): "task agent subagent oracle delegate",
    _Label("Planning", "Updating the plan…"): """todowrite todoread writetodos settodolist
        updateplan taskcreate taskupdate tasklist taskget""",
    _Label("Using the skill", "Using a skill…", ("skill", "command", "name")): """skill
        slashcommand activateskill""",
    _Label("Thinking", "Thinking…"): "think sequentialthinking",
    _Label("Waiting", "Waiting for a command…"): "bashoutput taskoutput writestdin",
    _Label("Stopping", "Stopping a command…"): "killshell killbash taskstop",
    _Label("Asking", "Asking…", ("question", "prompt", "questions")): "askuserquestion askuser",
    _Label("Presenting", "Presenting the plan…"): "exitplanmode",
}  # fmt: skip
_TABLE = {name: label for label, names in _KINDS.items() for name in names.split()}
# The kinds that change files.
_CHANGING = frozenset({"Writing", "Editing", "Deleting", "Moving"})

# The keys to try in the input of a tool that is not in the table.
_DETAIL_KEYS = ("command", "file_path", "path", "pattern", "url", "query", "prompt", "description")
_WRAPPED = re.compile(r"(?:\S*/)?(?:ba|da|z)?sh -l?c (.+)", re.DOTALL)
_REMOTE = re.compile(r"mcp__(.+?)__(.+)", re.DOTALL)


def format_label(name: object, given: object) -> str:
    """The label of a call of the tool `name` with the input `given`."""
    known = _TABLE.get(_normalize_name(name))
    return _to_line(_format_other(name, given) if known is None else _format_known(known, given))


def find_files(name: object, given: object) -> tuple[list[str], bool]:
    """The files of a tool call, and whether it changes them."""
    known = _TABLE.get(_normalize_name(name))
    if known is None or not known.is_path or not isinstance(given, dict):
        return [], False
    found = [path for key in known.keys for path in _find_paths(given.get(key))]
    return [_to_line(path) for path in found if path.strip()], known.verb in _CHANGING


def _format_known(known: _Label, given: object) -> str:
    detail = next(filter(None, _iterate_details(known, given)), "")
    return f"{known.verb} {detail}" if detail else known.alone


def _iterate_details(known: _Label, given: object) -> Iterator[str]:
    """The details of a call from its input."""
    if isinstance(given, dict):
        found = [given[key] for key in known.keys if key in given]
    else:
        found = [given] if known.keys else []
    for value in found:
        yield _shorten_path(_find_path(value)) if known.is_path else _unwrap(_find_words(value))


def _format_other(name: object, given: object) -> str:
    called = _to_line(_format_name(name), _LONGEST_NAME) or "a tool"
    if isinstance(given, dict):
        texts = [given[key] for key in _DETAIL_KEYS if isinstance(given.get(key), str)]
        given = texts[0] if texts else given or None
    return called if given is None else f"{called} {_encode_json(given)}"


def _format_name(name: object) -> str:
    """A tool of an MCP server has the names of the server and the tool."""
    given = name[:LONGEST] if isinstance(name, str) else ""
    remote = _REMOTE.fullmatch(given)
    return f"{remote[1]}: {remote[2]}" if remote else given


def _normalize_name(name: object) -> str:
    """`read_file`, `ReadFile` and `readFile` are one tool."""
    given = name if isinstance(name, str) and len(name) <= _LONGEST_NAME else ""
    return re.sub(r"[_\- ]", "", given).lower()


def _find_path(value: object) -> str:
    """A path, the first of several, or that of the first change."""
    match value:
        case str(path) | {"path": str(path)} | [str(path), *_] | [{"path": str(path)}, *_]:
            return path
        case dict() if value:
            return str(next(iter(value)))
        case _:
            return ""


def _find_paths(value: object) -> list[str]:
    """All paths of a value."""
    many = value if isinstance(value, list) else [value]
    return (
        [*value]
        if isinstance(value, dict)
        else [path for each in many if (path := _find_path(each))]
    )


def _find_words(value: object) -> str:
    match value:
        case str(text) | [{"question": str(text)}, *_]:
            return text
        case [str(), *_]:
            return " ".join(word for word in value[:LONGEST] if isinstance(word, str))
        case _:
            return ""


def _shorten_path(path: str) -> str:
    place, slash, file = path.strip().rstrip("/").rpartition("/")
    return f"…/{file}" if slash and place not in ("", ".") else path.strip()


def _unwrap(command: str) -> str:
    """A command without the shell in which some CLIs wrap it."""
    found = _WRAPPED.fullmatch(command.strip()[: 4 * LONGEST])
    return found[1].strip("'\"") if found else command


def _encode_json(given: object) -> str:
    if isinstance(given, str):
        return given
    try:
        return msgspec.json.encode(given).decode()
    except (TypeError, ValueError, RecursionError):
        return ""


def _to_line(text: str, limit: int = LONGEST) -> str:
    """One line without characters that move the cursor or change the direction of the text."""
    few = text[: 4 * limit]
    line = " ".join("".join(char if char.isprintable() else " " for char in few).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
