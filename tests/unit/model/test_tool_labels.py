"""Tool calls in a few words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.model.tool_labels import LONGEST, format_label

DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("Read", {"file_path": "/home/ada/src/file.ts"}, "Reading …/file.ts"),
        ("Read", {"file_path": "file.ts"}, "Reading file.ts"),
        ("Read", {"file_path": "src/"}, "Reading src/"),
        ("read_file", {"absolute_path": "/a/b.py"}, "Reading …/b.py"),
        ("ReadFile", {"path": "a/b.py"}, "Reading …/b.py"),
        ("read_many_files", {"paths": ["a/b.py", "c.py"]}, "Reading …/b.py"),
        ("Write", {"file_path": "/a/b.md", "content": "x"}, "Writing …/b.md"),
        ("Edit", {"file_path": "/a/b.md"}, "Editing …/b.md"),
        ("StrReplaceFile", {"path": "/a/b.md"}, "Editing …/b.md"),
        ("fileChange", {"changes": [{"path": "/a/w.txt", "diff": "x"}]}, "Editing …/w.txt"),
        ("apply_patch", {"changes": {"/a/w.txt": {"add": {}}}}, "Editing …/w.txt"),
        ("list_directory", {"dir_path": "/a/b"}, "Listing …/b"),
        ("Bash", {"command": "pytest -q", "timeout": 3}, "Running pytest -q"),
        ("Bash", None, "Running command…"),
        ("run_shell_command", {"command": "ls\n-l"}, "Running ls -l"),
        ("commandExecution", {"command": "/bin/bash -lc 'echo hi'"}, "Running echo hi"),
        ("shell", {"command": ["bash", "-lc", "echo hi"]}, "Running echo hi"),
        ("Shell", "ls -l", "Running ls -l"),
        ("Glob", {"pattern": "**/*.py"}, "Finding files **/*.py"),
        ("Grep", {"pattern": "def .*", "path": "/a"}, "Searching for def .*"),
        ("WebSearch", {"query": "msgspec"}, "Searching the web for msgspec"),
        ("FetchURL", {"url": "http://x.org"}, "Fetching http://x.org"),
        ("Task", {"description": "look around", "prompt": "…"}, "Delegating look around"),
        ("TodoWrite", {"todos": [{"content": "x"}]}, "Updating the plan…"),
        ("AskUserQuestion", {"questions": [{"question": "Why?"}]}, "Asking Why?"),
        ("mcp__github__get_issue", {"id": 3}, 'github: get_issue {"id":3}'),
        ("Frobnicate", {"a": [1, 2]}, 'Frobnicate {"a":[1,2]}'),
        ("Frobnicate", {"x": 1, "url": "http://x.org"}, "Frobnicate http://x.org"),
        ("Frobnicate", {}, "Frobnicate"),
    ],
)
def test_label_names_the_action_and_its_object(name: str, given: object, shown: str) -> None:
    assert format_label(name, given) == shown


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("Read", {"file_path": 3}, "Reading a file…"),
        ("Read", {"file_path": [3]}, "Reading a file…"),
        ("Read", ["x", {}], "Reading x"),
        ("Bash", {"command": {"x": 1}}, "Running command…"),
        ("Bash", {"command": ""}, "Running command…"),
        (None, None, "a tool"),
        ({}, 3, "a tool 3"),
        ("", "", "a tool"),
        ("\x1b[2J\x07", None, "[2J"),
        ("Read", {"file_path": "/a/\x1b]0;owned\x07.txt"}, "Reading …/ ]0;owned .txt"),
        ("Bash", {"command": "echo \u202egnp.exe"}, "Running echo gnp.exe"),
        ("x", DEEP, "x"),
        ("x", {1: object()}, "x"),
    ],
)
def test_label_of_an_unexpected_input_uses_what_is_readable(
    name: object, given: object, shown: str
) -> None:
    assert format_label(name, given) == shown


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
names = st.sampled_from(["Read", "Bash", "edit", "Task", "mcp__a__b", "fetch"]) | st.text()
inputs = json | st.dictionaries(
    st.sampled_from(["path", "command", "changes", "url", "query", "questions"]), json
)


@given(names, inputs)
def test_label_is_always_one_short_line(name: str, given: object) -> None:
    shown = format_label(name, given)

    assert 0 < len(shown) <= LONGEST
    assert shown.isprintable()


@pytest.mark.parametrize("name", ["Read", "Bash", "Frobnicate", "n" * 10_000_000])
def test_label_of_a_huge_input_is_cut(name: str) -> None:
    shown = format_label(name, {"path": "/p" * 5_000_000, "command": "x " * 5_000_000})

    assert len(shown) <= LONGEST
