"""Checks the sizes of functions and files: prints them and fails above the limits of the guide."""

import ast
import sys
from pathlib import Path

LONGEST_FUNCTION = 50
LONGEST_FILE = 800
FUNCTION_P90 = 25
FILE_P90 = 350
# It runs as one file, without the package around it: parts of it could not find each other.
LONGEST_KEEPER = 800
KEEPER = "src/steadyrun/drivers/keeper.py"


def main() -> int:
    """Measure every module of the package."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(Path("src").rglob("*.py"))}
    functions = [found for path, text in files.items() for found in function_sizes(path, text)]
    lines = [(text.count("\n"), str(path)) for path, text in files.items()]
    keeper = [size for size, where in lines if where == KEEPER]
    others = [(size, where) for size, where in lines if where != KEEPER]
    faults = [
        *(f"{KEEPER}: {n} lines, limit {LONGEST_KEEPER}" for n in keeper if n > LONGEST_KEEPER),
        *_over("function", functions, LONGEST_FUNCTION, FUNCTION_P90),
        *_over("file", others, LONGEST_FILE, FILE_P90),
    ]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def function_sizes(path: Path, text: str) -> list[tuple[int, str]]:
    """Each function with its lines, its docstring left out."""
    return [
        (_length(node), f"{path}:{node.lineno} {node.name}")
        for node in ast.walk(ast.parse(text))
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
    faults = [f"{where}: {size} lines, limit {longest}" for size, where in sizes if size > longest]
    if p90 > p90_limit:
        faults.append(f"{kind} p90 is {p90} lines, limit {p90_limit}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
