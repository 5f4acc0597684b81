"""Reads one TOML file and finds the lines of its keys.

Whatever the file contains, the result is its table or a `ConfigInvalid` with the file and the line.
"""

import errno
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steadyrun.errors import ConfigInvalid
from steadyrun.model import quotation

KeyPath = tuple[str, ...]
Table = dict[str, Any]

LARGEST_BYTES = 1024 * 1024
DEEPEST = 64
# The search for a line parses the file in pieces; beyond this size an error has no line.
_SEARCH_CHARS = 2 * LARGEST_BYTES
_LONGEST_SHOWN = 120
# tomllib needs time quadratic in the parts of a dotted key: a hostile file could block for an hour.
_LONG_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*)""" f"{{{DEEPEST}}}"
)
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ENDS_A_VALUE = ("]", "}", '"""', "'''")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """One layer of settings. `file` is None where the layer is not a file."""

    origin: str
    data: Table
    file: Path | None = None
    text: str = ""
    digest: str = ""

    def build_error(self, path: KeyPath, problem: str, *, hint: str = "") -> ConfigInvalid:
        if self.file is None:
            return ConfigInvalid(f"{self.origin}: {problem}", file=None, hint=hint)
        return ConfigInvalid(problem, file=self.file, line=find_line(self.text, path), hint=hint)


def read_source(file: Path, *, follow_links: bool) -> ConfigSource | None:
    """Read and parse `file`; None if it does not exist."""
    content = read_bytes(file, follow_links=follow_links)
    if content is None:
        return None
    text = _decode(content, file)
    digest = hashlib.sha256(content).hexdigest()
    return ConfigSource(to_printable(file), _parse(text, file), file=file, text=text, digest=digest)


def read_bytes(file: Path, *, follow_links: bool) -> bytes | None:
    """Read a regular file of limited size; None if it does not exist."""
    # Without O_NONBLOCK, opening a named pipe would block for ever.
    extra = os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    try:
        with open(file, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigInvalid("is not a regular file", file=file)
            content = stream.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _describe_read_error(file, error, follow_links=follow_links) from error
    if len(content) > LARGEST_BYTES:
        raise ConfigInvalid(f"is larger than {LARGEST_BYTES} bytes", file=file)
    return content


def format_path(path: KeyPath) -> str:
    """Format a key path as TOML does, so that no control character reaches a terminal."""
    return ".".join(_format_key(part) for part in path)


def to_printable(path: Path) -> str:
    """Make a path printable, also one that is not valid UTF-8 or contains control characters."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def find_line(text: str, path: KeyPath) -> int | None:
    """Find the line of the statement that first sets `path`; None if the search takes too long."""
    header, spent = "", 0
    for line, statement in _split_statements(text):
        is_header = statement.lstrip().startswith("[")
        piece = statement if is_header else header + statement
        spent += len(piece)
        if spent > _SEARCH_CHARS:
            return None
        if _has_key(_try_parse(piece), path):
            return line
        header = statement if is_header else header
    return None


def _describe_read_error(file: Path, error: OSError, *, follow_links: bool) -> ConfigInvalid:
    if error.errno == errno.ELOOP and not follow_links:
        return ConfigInvalid("is a symbolic link, which is not followed here", file=file)
    if error.errno in {errno.EISDIR, errno.ENXIO, errno.ENODEV}:
        return ConfigInvalid("is not a regular file", file=file)
    reason = error.strerror or type(error).__name__
    return ConfigInvalid(f"cannot be read: {reason}", file=file)


def _decode(content: bytes, file: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}"
        raise ConfigInvalid(problem, file=file, line=line) from error


def _parse(text: str, file: Path) -> Table:
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigInvalid(f"has a key of more than {DEEPEST} parts", file=file, line=line)
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise _describe_toml_error(str(error), text, file) from error
    except RecursionError as error:
        raise ConfigInvalid("is nested too deeply", file=file) from error
    if _is_deep(data):
        raise ConfigInvalid(f"is nested more than {DEEPEST} levels deep", file=file)
    return data


def _describe_toml_error(message: str, text: str, file: Path) -> ConfigInvalid:
    place = _TOML_PLACE.search(message)
    problem = f"is not valid TOML: {shorten(_TOML_PLACE.sub('', message))}"
    if place is None:
        return ConfigInvalid(problem, file=file)
    line = int(place[1]) if place[1] else text.rstrip("\n").count("\n") + 1
    return ConfigInvalid(problem, file=file, line=line)


def _is_deep(data: object) -> bool:
    level = [data]
    for _ in range(DEEPEST):
        level = [child for parent in level for child in _list_children(parent)]
    return bool(level)


def _list_children(value: object) -> list[object]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case _:
            return []


def _split_statements(text: str) -> Iterator[tuple[int, str]]:
    """Split TOML into statements: one ends at the first line after which it parses alone."""
    statement, begin, spent = "", 1, 0
    for number, line in enumerate(text.split("\n"), start=1):
        is_first = not statement
        statement += line + "\n"
        if not is_first and not any(end in line for end in _ENDS_A_VALUE):
            continue
        spent += len(statement)
        if _try_parse(statement) is not None:
            yield begin, statement
            statement, begin = "", number + 1
        elif spent > _SEARCH_CHARS:
            return


def _try_parse(text: str) -> Table | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _has_key(data: object, path: KeyPath) -> bool:
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def _format_key(part: str) -> str:
    bare = _BARE_KEY.fullmatch(part)
    return shorten(part if bare else msgspec.json.encode(part).decode())


def shorten(text: str) -> str:
    return quotation.shorten(text, _LONGEST_SHOWN)
