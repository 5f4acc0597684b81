"""The registry of operations is complete, and the command line is generated from it."""

import re

import msgspec
import pytest

from scripts.commands import PAGE, TABLE, build_table, update_page
from steadyrun.cli.main import COMMANDS, CUSTOM_COMMANDS, build_parser
from steadyrun.cli.output.tables import FORMATTERS
from steadyrun.operations.registry import BY_NAME, OPERATIONS, Operation
from tests.support.commands import ROOT


def test_command_table_is_current() -> None:
    assert TABLE.read_text(encoding="utf-8") == build_table(), "run scripts/commands.py"


def test_operations_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page == update_page(page), "run scripts/commands.py"


def test_names_and_words_of_operations_are_unique() -> None:
    words = [word for operation in OPERATIONS for word in operation.words]

    assert len(BY_NAME) == len(OPERATIONS)
    assert len(set(words)) == len(words)
    assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)?", name) for name in BY_NAME)


def test_every_operation_with_words_has_a_command_and_a_formatter() -> None:
    words = {word for operation in OPERATIONS for word in operation.words}

    assert words <= {command.words for command in COMMANDS}
    assert set(CUSTOM_COMMANDS) <= words
    assert set(FORMATTERS) == {operation.name for operation in OPERATIONS if operation.words}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_every_field_of_a_request_is_described_and_unknown_fields_are_refused(
    operation: Operation,
) -> None:
    described = msgspec.json.schema(operation.request)
    [[_, kind]] = described["$defs"].items()

    assert all("description" in field for field in kind.get("properties", {}).values())
    assert operation.request.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_operation_accepts_a_key_exactly_if_its_request_has_one(operation: Operation) -> None:
    has_key = "key" in operation.request.__struct_fields__

    assert (operation.idempotency == "accepted") == has_key


@pytest.mark.parametrize(
    ("typed", "field", "meant"),
    [
        ("agent add ada --provider p --home /x --fallback a,b", "fallback", ("a", "b")),
        ("agent add ada --provider p --home x", "home", str(ROOT / "x")),
        ("agent add ada --provider p --home /x --timeout 2m", "timeout", 120.0),
        ("agent add ada --provider p --home /x", "mode", None),
        ("send ada hi --queue", "followup", "queue"),
        ("send ada hi --steer", "followup", "steer"),
        ("send ada hi", "followup", None),
        ("send ada hi --file a --file /b", "files", [str(ROOT / "a"), "/b"]),
        ("inbox -n 3", "limit", 3),
        ("inbox", "agent", None),
        ("pause --all", "all", True),
        ("down --keep", "keep", True),
    ],
)
def test_typed_arguments_become_the_fields_of_the_request(
    typed: str, field: str, meant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    assert getattr(build_parser().parse_args(typed.split()), field) == meant
