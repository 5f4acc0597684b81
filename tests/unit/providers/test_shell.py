"""Tests the shell provider: which commands may run, and what becomes of their output."""

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.dialect import (
    CutOutput,
    Dialect,
    DialectOutput,
    Launch,
    LaunchRequest,
    Offer,
    ProcessExit,
    Refused,
    Rung,
    Turn,
    TurnEnded,
    Verdict,
)
from steadyrun.errors import CommandRefused, ConfigInvalid, InvalidUsage
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.policy import Mode
from steadyrun.providers.shell import Shell, ShellOptions, ShellState

ASKED = b'{"steadyrun.command":"ls -l"}'
REQUEST = LaunchRequest(Turn("t1", "ls"), "/")
STARTED = ev.ToolStarted("1", "bash", {"command": "ls -l"})


def launch(text: str, *, mode: Mode = "default", command: Any = (), **options: Any) -> Launch:
    request = LaunchRequest(turn=Turn("t1", text), cwd="/", mode=mode, command=command)
    return Shell(ShellOptions(**options)).launch(request)


def printed(dialect: Dialect, output: bytes) -> list[DialectOutput]:
    """Give the lines as the driver does: without line breaks, and without the empty ones."""
    said, end = [], 0
    for line in output.splitlines(keepends=True):
        end += len(line)
        if line != b"\n":
            said += dialect.receive(Frame(line.removesuffix(b"\n"), end))
    return said


def ran(output: bytes, last: ProcessExit, **options: Any) -> list[DialectOutput]:
    dialect = Shell(ShellOptions(**options))
    return [*printed(dialect, ASKED + b"\n" + output), *dialect.on_exit(last)]


def durable(said: list[DialectOutput]) -> list[DialectOutput]:
    return [each for each in said if not isinstance(each, ev.OutputRaw)]


def test_shell_implements_the_dialect_contract() -> None:
    dialect: Dialect = Shell()

    assert dialect.name == "shell"
    assert set(dialect.abilities) == {"modes"}
    assert dialect.options_type is ShellOptions
    assert dialect.is_ready


def test_default_options_are_the_documented_ones() -> None:
    assert ShellOptions() == ShellOptions(30.0, None, None, (0,), 1048576, False)


def test_providers_page_lists_every_shell_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "providers.md").read_text(encoding="utf-8")
    section = page.split("\n## shell\n")[1].split("\n## ")[0]

    rows = re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)

    assert rows == list(ShellOptions.__struct_fields__)


def test_timeout_option_sets_the_wall_time() -> None:
    assert Shell().wall_seconds == 30.0
    assert Shell(ShellOptions(timeout_seconds=0)).wall_seconds is None


@pytest.mark.parametrize(
    "options", [{"timeout_seconds": -1}, {"output_cap_bytes": -1}, {"timeout": 3}, {"shell": 1}]
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, ShellOptions)


# -- what may run


def test_command_is_split_into_words() -> None:
    found = launch(""" grep -c 'a  b' "x|y" """)

    assert found.argv[-4:] == ("grep", "-c", "a  b", "x|y")
    assert (found.stdin, found.rungs) == ("null", (Rung("signal", 2.0, 15),))


def test_configured_command_comes_first() -> None:
    assert launch("ls -l", command=("nice", "-n1")).argv[-4:] == ("nice", "-n1", "ls", "-l")
    assert launch("ls", command=("bash", "-c"), shell=True).argv[-3:] == ("bash", "-c", "ls")


def test_shell_option_passes_the_text_unchanged() -> None:
    text = "echo $HOME | wc # don't"

    assert launch(text, shell=True).argv[-3:] == ("/bin/sh", "-c", text)


@pytest.mark.parametrize("text", ["", "  \n", "echo 'a", "''", "-x", "a\0b"])
def test_text_that_is_not_a_command_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsage, match="command"):
        launch(text)


@pytest.mark.parametrize("text", ["ls | wc", "echo a > b", "a && b", "a ; b", "sleep 1 &"])
def test_shell_syntax_without_the_shell_option_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsage, match="only in a shell") as caught:
        launch(text)

    assert "shell = true" in caught.value.hint


@pytest.mark.parametrize("text", ["grep '|' x", r"find . -exec ls {} \;", 'echo "a > b"'])
def test_quoted_shell_syntax_is_a_word(text: str) -> None:
    assert launch(text).argv


@pytest.mark.parametrize("text", ["rm -rf x", "/bin/rm x", "./rm", "'rm' x", "../a/rm"])
def test_denied_command_is_refused_under_every_path(text: str) -> None:
    with pytest.raises(CommandRefused, match="denied") as caught:
        launch(text, allowed=("rm",), denied=("/usr/bin/rm",))

    assert (caught.value.command, caught.value.exit_code) == ("rm", 4)


def test_only_allowed_commands_run() -> None:
    assert launch("/bin/ls -l", allowed=("ls",)).argv[-2:] == ("/bin/ls", "-l")
    with pytest.raises(CommandRefused, match="not in the list of allowed") as caught:
        launch("lsof", allowed=("ls", "cat"))
    assert caught.value.hint == "Allowed: ls, cat"


def test_empty_list_allows_nothing() -> None:
    with pytest.raises(CommandRefused) as caught:
        launch("ls", allowed=())

    assert caught.value.hint == "Allowed: none"


@pytest.mark.parametrize("lists", [{"allowed": ("ls",)}, {"denied": ("rm",)}, {"denied": ()}])
def test_list_of_commands_with_the_shell_option_is_refused(lists: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match="by another name"):
        launch("ls", shell=True, **lists)


def test_plan_mode_runs_no_command() -> None:
    with pytest.raises(CommandRefused, match="plan"):
        launch("ls", mode="plan")


def test_running_command_accepts_no_messages() -> None:
    dialect: Dialect = Shell()

    assert isinstance(dialect.steer(Offer("o1", "hey")), Refused)
    assert dialect.open(REQUEST) == dialect.begin(Turn("t1", "ls")) == []
    assert dialect.decide("1", Verdict(True)) == dialect.on_sent(Frame(b"x", 0)) == []
    assert (dialect.recall("o1"), dialect.interrupt()) == (None, None)


@pytest.mark.parametrize("text", ["echo 'it is \"here\"  ☃'", "printf 'a\\n\\n  b\\n'", "true"])
def test_journal_has_the_command_and_its_output(text: str) -> None:
    plain = subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=True).stdout
    found = subprocess.run(launch(text).argv, capture_output=True, check=True).stdout
    dialect = Shell()

    said = [*printed(dialect, found), *dialect.on_exit(ProcessExit(code=0))]

    output = plain.decode().rstrip("\n")
    assert said[0] == ev.ToolStarted("1", "bash", {"command": text})
    assert said[-1] == TurnEnded("completed", output)


def test_missing_command_fails_with_exit_code_127() -> None:
    done = subprocess.run(launch("no_such_command_x").argv, capture_output=True, check=False)
    dialect = Shell()
    printed(dialect, done.stdout)

    [_, ended] = dialect.on_exit(ProcessExit(code=done.returncode, stderr=done.stderr.decode()))

    assert isinstance(ended, TurnEnded)
    assert ended.error
    assert ended.diagnostic
    assert (ended.diagnostic.exit_code, ended.error.hint) == (
        127,
        "127 usually means that the command was not found.",
    )
    assert "no_such_command_x" in ended.diagnostic.stderr_excerpt


# -- what becomes of what it prints


def test_successful_command_is_a_completed_tool_and_turn() -> None:
    assert ran(b"a\nb\n", ProcessExit(code=0)) == [
        STARTED,
        ev.OutputRaw("stdout", "a\n"),
        ev.OutputRaw("stdout", "b\n"),
        ev.ToolCompleted("1", "bash", {"command": "ls -l"}, "a\nb"),
        ev.TextFinal("a\nb"),
        TurnEnded("completed", "a\nb"),
    ]


def test_failed_command_is_a_failed_tool_and_turn() -> None:
    assert durable(ran(b"half\n", ProcessExit(code=3, stderr="no such file"))) == [
        STARTED,
        ev.ToolFailed("1", "bash", {"command": "ls -l"}, "half", "code 3"),
        TurnEnded(
            "failed",
            "half",
            error=ev.ErrorFact("exit_nonzero", "the command ended with code 3"),
            diagnostic=ev.Diagnostic(3, "no such file"),
        ),
    ]


def test_command_ended_by_a_signal_fails() -> None:
    *_, ended = ran(b"", ProcessExit(signal=11))

    assert isinstance(ended, TurnEnded)
    assert ended.error == ev.ErrorFact("exit_nonzero", "the command ended with signal 11")
    assert ended.text is None


def test_configured_exit_codes_are_success() -> None:
    assert ran(b"", ProcessExit(code=1), success_exit_codes=(0, 1))[-1] == TurnEnded(
        "completed", ""
    )
    assert ran(b"", ProcessExit(code=0), success_exit_codes=(1,))[-1] != TurnEnded("completed", "")


def test_stopped_command_fails_its_tool_and_does_not_end_the_turn() -> None:
    assert ran(b"a\n", ProcessExit(code=0, reason="wall_timeout"))[2:] == [
        ev.ToolFailed("1", "bash", {"command": "ls -l"}, "a", "stopped: wall_timeout")
    ]


def test_tool_starts_with_the_first_line_if_the_command_line_is_missing() -> None:
    dialect = Shell()

    said = printed(dialect, b"{}\nb\n")

    assert said[:2] == [ev.ToolStarted("1", "bash"), ev.OutputRaw("stdout", "{}\n")]
    assert dialect.on_exit(ProcessExit(code=0))[-1] == TurnEnded("completed", "{}\nb")


def test_exit_without_output_starts_and_ends_the_tool() -> None:
    assert Shell().on_exit(ProcessExit(code=0)) == [
        ev.ToolStarted("1", "bash"),
        ev.ToolCompleted("1", "bash", tool_output=""),
        ev.TextFinal(""),
        TurnEnded("completed", ""),
    ]


def test_invalid_utf8_in_the_output_is_replaced() -> None:
    assert ran(b"a\xffb\n", ProcessExit(code=0))[-1] == TurnEnded("completed", "a\ufffdb")


def test_empty_lines_are_kept() -> None:
    assert ran(b"\na\n\n\nb\n", ProcessExit(code=0))[-1] == TurnEnded("completed", "\na\n\n\nb")


@pytest.mark.parametrize(
    ("output", "text", "notes"),
    [
        (b"1234567\n", "1234567", 0),
        (b"12345678\n", "12345678", 0),
        (b"123456789\n", "12345678", 1),
        (b"1234\n5678\n90\n", "1234\n567", 1),
        (b"1234567\n8\n", "1234567", 1),
        (b"12345678\n9\n0\n", "12345678", 1),
    ],
)
def test_output_above_the_cap_is_cut_and_noted_once(output: bytes, text: str, notes: int) -> None:
    said = ran(output, ProcessExit(code=0), output_cap_bytes=8)

    ended = TurnEnded("completed", text)
    assert said[-1] == (CutOutput(ended) if notes else ended)
    assert sum(isinstance(each, ev.Note) for each in said) == notes


def test_cap_of_zero_keeps_no_output() -> None:
    ended = CutOutput(TurnEnded("completed", ""))
    assert ran(b"a\n", ProcessExit(code=0), output_cap_bytes=0)[-1] == ended


@given(st.lists(st.binary(max_size=6).filter(lambda raw: b"\n" not in raw)), st.integers(0, 20))
def test_state_survives_a_save_after_each_line(lines: list[bytes], cap: int) -> None:
    live, restored = (Shell(ShellOptions(output_cap_bytes=cap)) for _ in range(2))
    end = 0

    for raw in lines:
        end += len(raw) + 1
        said = live.receive(Frame(raw, end))
        assert restored.receive(Frame(raw, end)) == said
        saved = msgspec.msgpack.encode(restored.state)
        restored.state = msgspec.msgpack.decode(saved, type=ShellState)

    assert restored.state == live.state
    assert restored.on_exit(ProcessExit(code=0)) == live.on_exit(ProcessExit(code=0))
