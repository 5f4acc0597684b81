"""The tree of errors in the docstring is the tree of errors in the code."""

import inspect
import re
from pathlib import Path

import pytest

from steadyrun import errors
from steadyrun.errors import (
    ChangeRefused,
    CommandRefused,
    ConfigInvalid,
    LeaseLost,
    NotFound,
    OffsetMismatch,
    RpcClosed,
    RpcRefused,
    RpcTimeout,
    SteadyrunError,
    StoreFromFuture,
    VariableUnset,
)

CLASSES: dict[str, type[SteadyrunError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, SteadyrunError)
}
LINE = re.compile(
    r"(?P<indent> *)(?P<name>[A-Z]\w+)(?: {2,}(?P<means>.*?))?(?: +exit (?P<exit>\d+))?"
)


def drawn() -> dict[str, tuple[str | None, int | None]]:
    """Every class in the docstring's tree, with its parent and the exit code drawn for it."""
    tree: dict[str, tuple[str | None, int | None]] = {}
    path: list[tuple[int, str, int | None]] = []
    [drawing] = re.findall(r"^SteadyrunError\n(?: .*\n)+", errors.__doc__ or "", re.MULTILINE)
    for line in drawing.splitlines():
        found = LINE.fullmatch(line)
        assert found, line
        depth = len(found["indent"])
        while path and path[-1][0] >= depth:
            path.pop()
        parent, inherited = (path[-1][1], path[-1][2]) if path else (None, None)
        code = int(found["exit"]) if found["exit"] else inherited
        path.append((depth, found["name"], code))
        tree[found["name"]] = (parent, code)
    return tree


def test_docstring_tree_has_every_error_class() -> None:
    assert sorted(drawn()) == sorted(CLASSES)


@pytest.mark.parametrize(("name", "parent", "code"), [(n, p, c) for n, (p, c) in drawn().items()])
def test_error_class_has_the_parent_and_exit_code_of_the_docstring(
    name: str, parent: str | None, code: int | None
) -> None:
    kind = CLASSES[name]

    # A class may be a special case of its neighbour in the drawing.
    if parent is not None:
        assert issubclass(kind, CLASSES[parent])
    assert kind.exit_code == (code or 1)


def test_error_codes_are_unique() -> None:
    codes = [kind.code for kind in CLASSES.values()]

    assert len(set(codes)) == len(codes)


def test_only_transient_errors_are_retryable() -> None:
    assert {name for name, kind in CLASSES.items() if kind.retryable} == {
        "ConversationBusy", "KeeperFailed", "ProviderClosed", "StoreBusy", "StoreFull",
    }  # fmt: skip


def test_hint_is_on_a_separate_line() -> None:
    assert str(SteadyrunError("what happened", hint="what to try")) == "what happened\nwhat to try"
    assert str(SteadyrunError("what happened")) == "what happened"


def test_errors_have_their_facts_as_attributes() -> None:
    mismatch = OffsetMismatch("prc_1", stored=10, given=12)
    future = StoreFromFuture(Path("/x"), found=9, known=3)
    config = ConfigInvalid("no such key", file=Path("/c.toml"), line=4, hint="remove it")

    assert (mismatch.process, mismatch.stored, mismatch.given) == ("prc_1", 10, 12)
    assert (future.path, future.found, future.known) == (Path("/x"), 9, 3)
    assert (config.file, config.line, config.problem) == (Path("/c.toml"), 4, "no such key")
    assert str(config) == "/c.toml:4: no such key\nremove it"
    assert (LeaseLost("agt_1", fence=3).fence, NotFound("run", "r").kind) == (3, "run")
    assert ChangeRefused("settle", found="no run").found == "no run"
    assert VariableUnset("KEY", setting="providers.x.env").variable == "KEY"
    assert CommandRefused("rm", rule="it is denied").rule == "it is denied"


def test_rpc_errors_have_the_request_or_the_answer() -> None:
    refused = RpcRefused("no file", number=-32002, data={"path": "/x"})
    timeout = RpcTimeout("turn/start", seconds=2.5)

    assert (refused.problem, refused.number, refused.data) == ("no file", -32002, {"path": "/x"})
    assert (timeout.method, timeout.seconds) == ("turn/start", 2.5)
    assert str(timeout) == "no answer to turn/start within 2.5 seconds"
    assert RpcClosed("turn/start").method == "turn/start"
