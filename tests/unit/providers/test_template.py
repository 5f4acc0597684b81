"""Tests that the template is a short Dialect that works."""

import ast
import tokenize
from pathlib import Path

import pytest
from msgspec import DecodeError

from steadyrun.dialect import (
    Dialect,
    DialectOutput,
    LaunchRequest,
    Offer,
    ProcessExit,
    Refused,
    SendSignal,
    Turn,
    TurnBegan,
    TurnEnded,
    Verdict,
)
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.usage import Usage
from steadyrun.providers import template
from steadyrun.providers.template import Parrot

FILE = Path(template.__file__)
REQUEST = LaunchRequest(Turn("t1", "hello"), "/")


def said_by(dialect: Dialect, *lines: str) -> list[DialectOutput]:
    return [said for line in lines for said in dialect.receive(Frame(line.encode(), 10))]


def test_docstring_shows_a_conversation_that_the_template_understands() -> None:
    assert template.__doc__
    quoted = [line[15:] for line in template.__doc__.splitlines() if line[15:16] == "{"]
    dialect: Dialect = Parrot()

    told, hello, *printed = quoted
    said = said_by(dialect, hello)
    assert dialect.is_ready
    [send] = dialect.begin(Turn("1", "hello"))
    assert send.raw.decode() == told
    said += dialect.on_sent(Frame(send.raw, 0))
    assert not dialect.is_ready
    said += said_by(dialect, *printed)

    assert dialect.is_ready
    assert said == [
        ev.TokenBound("s1"),
        TurnBegan("1"),
        ev.ToolStarted("t1", "look", {}),
        ev.ToolCompleted("t1", "look", tool_output="a cat"),
        ev.TextFinal("hello"),
        TurnEnded("completed", "hello", Usage(3, 5)),
    ]


def test_template_resumes_and_may_have_another_command() -> None:
    first = LaunchRequest(turn=Turn("1", "x"), cwd="/")
    later = LaunchRequest(turn=Turn("1", "x"), cwd="/", command=("polly",), resume="s1")

    assert Parrot().launch(first).argv == ("parrot", "--jsonl")
    assert Parrot().launch(later).argv == ("polly", "--jsonl", "--resume", "s1")


def test_unknown_line_is_kept_and_unreadable_line_raises_a_decode_error() -> None:
    dialect = Parrot()

    assert said_by(dialect, '{"type":"song"}') == [ev.Unknown('{"type":"song"}')]
    with pytest.raises(DecodeError):
        said_by(dialect, "squawk")


def test_template_refuses_what_it_does_not_support() -> None:
    dialect: Dialect = Parrot()

    assert isinstance(dialect.steer(Offer("o1", "x")), Refused)
    assert isinstance(dialect.interrupt(), SendSignal)
    assert dialect.recall("o1") is None
    assert (
        dialect.open(REQUEST)
        == dialect.decide("1", Verdict(True))
        == dialect.on_exit(ProcessExit())
        == []
    )


def test_template_has_at_most_80_lines_of_code() -> None:
    with tokenize.open(FILE) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = {token.start[0] for token in tokens if token.type not in blank and token.line.strip()}

    prose = {
        number
        for node in ast.walk(ast.parse(FILE.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }

    assert len(lines - prose) <= 80
