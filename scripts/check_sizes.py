"""Checks that functions, files, classes and folders stay small; prints what it measured.

The limits of the style guide: a function ends at 50 lines, a file is a question at 500 lines and
ends at 800, a class has at most 12 attributes and 20 methods, a folder at most 15 modules. The
store has at most 45 verbs.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LONGEST_FUNCTION = 50
LONGEST_FILE = 800
FUNCTION_P90 = 25
FILE_P90 = 350
QUESTION_FILE = 500
MOST_ATTRIBUTES = 12
MOST_METHODS = 20
MOST_MODULES = 15
MOST_VERBS = 45
# The model is one folder of pure data; a conformance suite has a module for each group of promises.
LARGE_FOLDERS = {"model", "store_conformance"}
# Files over the question size, each with the reason why it has one subject.
LONG_FILES = {
    "src/steadyrun/drivers/keeper.py": "it runs as one file, without the package around it",
    "src/steadyrun/errors.py": "it is the tree of all errors",
    "src/steadyrun/store.py": "it is the contract of the store, with its promises",
}
# The keeper cannot be split, so it has a limit of its own.
FILE_LIMITS = {"src/steadyrun/drivers/keeper.py": 850}


def main() -> int:
    """Measure every module of the package."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(Path("src").rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in files.items()}
    functions = [found for path, tree in trees.items() for found in function_sizes(path, tree)]
    lines = [(text.count("\n"), str(path)) for path, text in files.items()]
    problems = [
        *_over("function", functions, LONGEST_FUNCTION, FUNCTION_P90),
        *_over("file", lines, LONGEST_FILE, FILE_P90),
        *_long_files(lines),
        *(problem for path, tree in trees.items() for problem in _large_classes(path, tree)),
        *_large_folders(trees),
        *_many_verbs(trees[Path("src/steadyrun/store.py")]),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def function_sizes(path: Path, tree: ast.Module) -> list[tuple[int, str]]:
    """Each function with its number of lines, without its docstring."""
    return [
        (_length(node), f"{path}:{node.lineno} {node.name}")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is None or first.end_lineno is None:
        return total
    return total - (first.end_lineno - first.lineno + 1)


def _over(kind: str, sizes: list[tuple[int, str]], longest: int, p90_limit: int) -> list[str]:
    ordered = sorted(size for size, _ in sizes)
    median, p90 = ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10]
    print(f"{kind} lines: median {median}, p90 {p90}, longest {ordered[-1]}, of {len(ordered)}")
    problems = [
        f"{where}: {size} lines, limit {FILE_LIMITS.get(where, longest)}"
        for size, where in sizes
        if size > FILE_LIMITS.get(where, longest)
    ]
    if p90 > p90_limit:
        problems.append(f"{kind} p90 is {p90} lines, limit {p90_limit}")
    return problems


def _long_files(lines: list[tuple[int, str]]) -> Iterator[str]:
    for size, where in lines:
        if size > QUESTION_FILE and where not in LONG_FILES:
            yield f"{where}: {size} lines; split it by subject, or give the reason in LONG_FILES"


def _large_classes(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        attributes, methods = count_attributes(node), count_methods(node)
        where = f"{path}:{node.lineno} {node.name}"
        if attributes > MOST_ATTRIBUTES and not _is_record(node):
            yield f"{where}: {attributes} attributes, limit {MOST_ATTRIBUTES}"
        if methods > MOST_METHODS:
            yield f"{where}: {methods} methods, limit {MOST_METHODS}"


def count_attributes(node: ast.ClassDef) -> int:
    """The attributes that its methods assign to `self`."""
    return len(
        {
            each.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
        }
    )


def count_methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


def _is_record(node: ast.ClassDef) -> bool:
    """Whether it is plain data, which has no attributes but its fields."""
    return any("Struct" in ast.unparse(base) for base in node.bases)


def _large_folders(trees: dict[Path, ast.Module]) -> Iterator[str]:
    counts = Counter(path.parent for path in trees if not path.name.startswith("__"))
    for folder, count in sorted(counts.items()):
        if count > MOST_MODULES and folder.name not in LARGE_FOLDERS:
            yield f"{folder}: {count} modules, limit {MOST_MODULES}"


def _many_verbs(contract: ast.Module) -> Iterator[str]:
    """The verbs of a store are the public coroutines of the groups that `Store` is composed of."""
    classes = {node.name: node for node in contract.body if isinstance(node, ast.ClassDef)}
    groups = ["Store", *(ast.unparse(base) for base in classes["Store"].bases)]
    verbs = [
        each.name
        for group in groups
        if group in classes
        for each in classes[group].body
        if isinstance(each, ast.AsyncFunctionDef) and not each.name.startswith("_")
    ]
    print(f"store verbs: {len(verbs)} in {len(groups) - 2} groups")
    if len(verbs) > MOST_VERBS:
        yield f"src/steadyrun/store.py: {len(verbs)} verbs, limit {MOST_VERBS}"


if __name__ == "__main__":
    sys.exit(main())
