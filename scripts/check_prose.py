"""Checks the prose of sources, tests and pages: plain statements, no banned words.

- The words of `BANNED` appear in no docstring, comment, string, page, test name or script.
- No docstring asks a question: it states what the code does.
- A class of more than 150 lines explains itself in a docstring of at least three lines.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = re.compile(
    r"\b(?:somebody|nobody|anybody|everybody|whoever|whomever|whom|someone|no one|who shall"
    r"|meanwhile|is told|hears|sits|dies|wants to|goes on by itself|knows that|turned down"
    r"|taken back|all the same|in mid-turn)\b",
    re.IGNORECASE,
)
TREES = ("src", "tests", "bench", "scripts", "docs")
PAGES = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")
# Recorded traffic is what a CLI printed, and a licence is not ours to edit.
EXEMPT = ("tests/recordings/claude", "tests/recordings/codex")
LARGE_CLASS_LINES = 150
# The value that a stored approval has in `by` if it was denied without a person, and a key in the
# saved state of a Dialect.
PUBLIC_VALUE = re.compile(r"[\"`](?:nobody|is_told)[\"`]")


def main() -> int:
    """Print every line that breaks a rule."""
    files = sorted(path for path in _files() if not str(path).startswith(EXEMPT))
    problems = [problem for path in files for problem in _check(path)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"prose: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


def _files() -> Iterator[Path]:
    for tree in TREES:
        for path in Path(tree).rglob("*"):
            if path.suffix in {".py", ".md", ".sh", ".sql", ".toml"} and path != Path(__file__):
                yield path
    yield from map(Path, PAGES)


def _check(path: Path) -> Iterator[str]:
    if path.resolve() == Path(__file__).resolve():
        return
    text = path.read_text("utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if found := BANNED.search(PUBLIC_VALUE.sub("", line).replace("_", " ")):
            yield f"{path}:{number} says {found.group()!r}: name the actor"
    if path.suffix == ".py":
        yield from _check_docstrings(path, ast.parse(text))


def _check_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        said = ast.get_docstring(node) or ""
        line = getattr(node, "lineno", 1)
        if re.search(r"\?(?:\s|$)", said):
            yield f"{path}:{line} has a docstring that asks: state what the code does"
        if isinstance(node, ast.ClassDef) and _is_large(node) and said.count("\n") < 2:
            yield f"{path}:{line} class {node.name} is large: document its states and its caller"


def _is_large(node: ast.ClassDef) -> bool:
    return (node.end_lineno or node.lineno) - node.lineno >= LARGE_CLASS_LINES


if __name__ == "__main__":
    sys.exit(main())
