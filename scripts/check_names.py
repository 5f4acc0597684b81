"""Checks that names follow the rules: nouns for modules and classes, verbs for functions.

- No class or type alias is defined twice in the package.
- Modules and classes are not named by a participle, an adverb or a preposition.
- Functions and methods begin with a verb of `VERBS`, or with a prefix of `PREFIXES`.
- A `Protocol` stands in a contract file, or has two implementations in the package or its tests.

Names that follow another rule are listed here, each group with its reason.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path("src/steadyrun")
TESTS = Path("tests")
# Enough to need a Protocol outside of the contract files.
IMPLEMENTATIONS = 2
# What others implement: stores, providers and the harnesses of their conformance suites.
CONTRACTS = {
    PACKAGE / "dialect.py",
    PACKAGE / "driver.py",
    PACKAGE / "store.py",
    PACKAGE / "testing/provider_conformance/harness.py",
    PACKAGE / "testing/store_conformance/harness.py",
}
# Words that end like a participle and are nouns, and past participles that name a value: a change
# or an event that has happened.
NOUNS_BY_SIGHT = {
    "briefing", "framing", "stopping", "feed", "scripted", "tuning",
}  # fmt: skip
NOT_NOUNS = {
    "about", "after", "again", "apart", "around", "aside", "before", "behind", "beside", "between",
    "beyond", "ever", "here", "kept", "known", "left", "live_again", "lost", "maybe", "never",
    "often", "once", "said", "seen", "somehow", "soon", "then", "there", "told", "twice", "until",
    "warm", "when", "where",
}  # fmt: skip
# A boolean, a conversion, a callback, a context or a decorated value.
PREFIXES = {
    "is", "are", "was", "has", "can", "may", "must", "should", "as", "from", "next", "on", "to",
    "with",
}  # fmt: skip


def main() -> int:
    """Print every name that breaks a rule."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    problems = [
        *_find_repeated(trees),
        *_find_wrong_nouns(trees),
        *_find_wrong_verbs(trees),
        *_find_lone_protocols(trees),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    classes = sum(1 for tree in trees.values() for _ in _classes(tree))
    print(f"names: {len(trees)} modules, {classes} classes, {len(problems)} problems")
    return 1 if problems else 0


def _find_repeated(trees: dict[Path, ast.Module]) -> Iterator[str]:
    places = defaultdict(list)
    for path, tree in trees.items():
        for name, line in _types(tree):
            places[name].append(f"{path}:{line}")
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"{name} is defined {len(found)} times: {', '.join(found)}"


def _types(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The classes and type aliases of a module."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if _is_type_name(name):
                    yield name, node.lineno
            case _:
                pass


def _is_type_name(name: str) -> bool:
    bare = name.lstrip("_")
    return bare[:1].isupper() and not bare.isupper()


def _find_wrong_nouns(trees: dict[Path, ast.Module]) -> Iterator[str]:
    errors = _find_errors(trees)
    for path, tree in trees.items():
        if not path.stem.startswith("__") and _is_no_noun(path.stem):
            yield f"{path}: the module's name is not a noun"
        for node in _classes(tree):
            is_exempt = node.name in errors or _is_value(node)
            if _is_no_noun(_words(node.name)[-1]) and not is_exempt:
                yield f"{path}:{node.lineno} class {node.name}: the name is not a noun"


def _is_no_noun(word: str) -> bool:
    last = word.rsplit("_", 1)[-1]
    if last in NOUNS_BY_SIGHT:
        return False
    return last in NOT_NOUNS or last.endswith(("ed", "ing"))


def _is_value(node: ast.ClassDef) -> bool:
    """Whether the class is data: an event or a change is named by what has happened."""
    return bool(node.decorator_list) or any(_is_struct(base) for base in _bases(node))


def _is_struct(base: str) -> bool:
    return base == "Struct" or base.startswith("_")


def _find_errors(trees: dict[Path, ast.Module]) -> set[str]:
    """The names of all error classes: an error is named by what happened."""
    classes = [node for tree in trees.values() for node in _classes(tree)]
    errors = {"Exception", "BaseException"}
    while True:
        found = {node.name for node in classes if errors & _bases(node)} | errors
        if found == errors:
            return errors
        errors = found


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases}


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _words(name: str) -> list[str]:
    """The words of a name in CamelCase, in lower case."""
    spaced = "".join(f" {char}" if char.isupper() else char for char in name.lstrip("_"))
    return spaced.lower().split() or [name]


def _find_wrong_verbs(trees: dict[Path, ast.Module]) -> Iterator[str]:
    allowed = {*NOUN_FUNCTIONS, *_read_verbs(trees)}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_exempt(node):
                name = node.name.strip("_")
                first = name.split("_")[0]
                if name not in allowed and first not in PREFIXES and first not in VERBS:
                    yield f"{path}:{node.lineno} {node.name}: the name does not begin with a verb"


def _read_verbs(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """The verbs of the store that read: each is named by what it returns."""
    for group in _classes(trees[PACKAGE / "store.py"]):
        for node in group.body:
            if (
                isinstance(node, ast.AsyncFunctionDef)
                and ast.unparse(node.returns or node) != "None"
            ):
                yield node.name


def _is_exempt(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Properties are values; names with two underscores are Python's; `_` is no name."""
    decorators = {ast.unparse(each).rsplit(".", 1)[-1] for each in node.decorator_list}
    is_value = bool(decorators & {"property", "cached_property", "setter"})
    return is_value or node.name.startswith("__") or not node.name.strip("_")


def _find_lone_protocols(trees: dict[Path, ast.Module]) -> Iterator[str]:
    classes = _read_classes(trees)
    concrete = [node for node in classes.values() if not _is_protocol(node)]
    for path, tree in trees.items():
        if path in CONTRACTS:
            continue
        for node in filter(_is_protocol, _classes(tree)):
            wanted = set(_members(node, {}))
            found = sum(wanted <= set(_members(each, classes)) for each in concrete)
            if found < IMPLEMENTATIONS:
                yield (
                    f"{path}:{node.lineno} Protocol {node.name} is in no contract file and has"
                    f" {found} implementations"
                )


def _read_classes(trees: dict[Path, ast.Module]) -> dict[str, ast.ClassDef]:
    """The classes of the package and of its tests by name."""
    tests = [ast.parse(path.read_text("utf-8")) for path in TESTS.rglob("*.py")]
    return {node.name: node for tree in (*tests, *trees.values()) for node in _classes(tree)}


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def _members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """The methods and attributes of a class and of its bases in `classes`."""
    for base in _bases(node) - {node.name}:
        if base in classes:
            yield from _members(classes[base], classes)
    for each in ast.walk(node):
        match each:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.Assign(targets=[ast.Name(id=name)])
                | ast.AnnAssign(target=ast.Name(id=name))
            ) if each in node.body:
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


# Functions that are not named by a verb.
NOUN_FUNCTIONS = {
    "abilities": "a reading of the Launcher contract",
    "approvals": "a method of the public library",
    "arg": "makes the description of a field",
    "connection_lost": "a method of asyncio.Protocol",
    "connection_made": "a method of asyncio.Protocol",
    "costs": "a method of the public library",
    "data_received": "a method of asyncio.Protocol",
    "down": "a command",
    "error": "a method of argparse",
    "events": "a method of the public library",
    "exec": "a system call",
    "fileno": "a method of files",
    "hidden": "makes the description of a field",
    "monotonic": "a reading of the Clock contract",
    "now": "a reading of the Clock contract",
    "opener": "a parameter of open()",
    "prctl": "a system call",
    "up": "a command",
}
VERBS = {
    "abandon", "abort", "absorb", "accept", "acquire", "act", "add", "adopt", "advance", "align",
    "answer", "append", "apply", "approve", "ask", "attach", "attempt", "become", "begin", "bind",
    "boot", "build", "call", "cancel", "cap", "carry", "catch", "change", "check", "choose",
    "claim", "classify", "clean", "clear", "climb", "close", "coalesce", "collect", "commit",
    "compact", "compute", "conclude", "confirm", "connect", "continue", "copy", "count", "create",
    "cut", "decide", "decode", "delete", "deliver", "deny", "deposit", "describe", "detach",
    "detect", "disconnect", "dispatch", "do", "doctor", "drain", "drive", "drop", "emit",
    "encode", "end", "enforce", "escape", "estimate", "exchange", "exit", "expand", "expect",
    "explain", "export", "extend", "extract", "fail", "feed", "fetch", "file", "fill", "find",
    "finish", "flush", "follow", "forget", "format", "free", "generate", "get", "give", "greet",
    "group", "hand", "handle", "hash", "hold", "ignore", "ingest", "inspect", "interrupt",
    "intersect", "iter", "iterate", "join", "keep", "kill", "label", "launch", "leave", "let",
    "limit", "link", "list", "load", "locate", "lock", "log", "look", "main", "maintain", "make",
    "mark", "mask", "match", "measure", "merge", "migrate", "name", "nest", "normalize", "note",
    "notify", "number", "offer", "open", "orphan", "pack", "pad", "parse", "pass", "pause",
    "perform", "place", "plan", "play", "poll", "pop", "postpone", "prepare", "print", "prune",
    "publish",
    "put", "query", "quote", "reach", "react", "read", "reap", "recall", "receive", "recheck",
    "reconcile", "record", "recover", "refuse", "register", "release", "remember", "remove",
    "repair", "repeat", "replace", "replay", "report", "request", "requeue", "require", "reset",
    "resolve", "restart", "restore", "result", "resume", "retire", "retry", "return", "reveal",
    "ring", "run", "sanitize", "save", "scrub", "seal", "see", "select", "send", "serve", "set",
    "settle", "share", "shorten", "show", "shut", "shutdown", "signal", "silence", "spawn",
    "spell", "split", "spool", "start", "steer", "step", "stop", "store", "stream", "strip",
    "subscribe", "subtract", "suggest", "summarize", "summon", "suspect", "sweep", "switch", "sync",
    "tail", "take", "tick", "touch", "track", "transact", "translate", "truncate", "trust", "try",
    "tune", "unlock", "unwrap", "update", "use", "validate", "wait", "wake", "walk", "watch",
    "withdraw", "work", "wrap", "write",
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
