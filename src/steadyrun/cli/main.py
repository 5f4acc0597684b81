"""Parses the command line, runs one command and reports its failure.

A command is imported when it is called, so that `--help` and `--version` stay fast.
"""

import argparse
import os
import signal
import sys

from steadyrun import __version__
from steadyrun.cli import arguments
from steadyrun.cli.command_table import MODES, TABLE
from steadyrun.errors import InvalidUsage, SteadyrunError
from steadyrun.model.quotation import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, NoReturn

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_LONGEST_MESSAGE = 1000
_HELP = ("-h", "--help")
# Groups that are no commands themselves.
_GROUPS = {
    "agent": "add, show, change, remove, pause and resume an agent",
    "config": "show and check the configuration",
}

_EPILOG = """\
All data is stored in $STEADYRUN_HOME (default ~/.steadyrun).
exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 not allowed, 5 conflict,
            6 rate limited or paused, 7 timed out, 8 cancelled, 69 no daemon, 130 interrupted,
            141 output pipe closed
"""


class Command:
    """A command. `target` is `module:function` in this package; it takes the parsed arguments and
    may be asynchronous."""

    def __init__(
        self,
        words: str,
        summary: str,
        target: str,
        add_arguments: "Callable[[argparse.ArgumentParser], None]",
    ) -> None:
        self.words, self.summary, self.target = words, summary, target
        self.add_arguments = add_arguments


def _add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--agent", metavar="NAME", help="only the runs of this agent")
    add("-n", type=arguments.parse_count, default=20, metavar="N", help="number of runs (20)")
    arguments.add_json_flag(parser)


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run id or the beginning of one")
    arguments.add_json_flag(parser)


def _add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    add, kinds = parser.add_argument, arguments.parse_words
    add("name", nargs="?", metavar="AGENT|RUN", help="an agent name or a run id")
    add("--all", action="store_true", help="events of all agents and gates")
    add("-n", type=arguments.parse_count, metavar="N", help="number of events (50)")
    add("-f", "--follow", action="store_true", help="print new events as they happen")
    add("--kind", type=kinds, metavar="A,B", help="only these kinds: text, tool, run, … or error")
    add("--after", type=arguments.parse_cursor, metavar="CURSOR", help="events after this cursor")
    add("--jsonl", action="store_true", help="print one JSON document per line")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add, count = parser.add_argument, arguments.parse_count
    add("text", nargs="?", metavar="TEXT", help="the prompt; - or no TEXT reads standard input")
    # Only the help of this command needs it.
    from steadyrun.app.kinds import format_kinds  # noqa: PLC0415

    names = f"the provider: {format_kinds()}, or one of `steadyrun providers`"
    add("--provider", required=True, metavar="P", help=names)
    add("--model", metavar="NAME", help="the model of the provider")
    add("--cwd", default=".", metavar="DIR", help="the working directory (.)")
    add("--mode", choices=MODES, metavar="MODE", help=f"{', '.join(MODES[:-1])} or {MODES[-1]}")
    add("--tools", metavar="A,B", help="allow only these tools")
    add("--system", metavar="TEXT",
        help="the system prompt; added to that of the provider, but Claude Code replaces its own"
        " unless --role is given")  # fmt: skip
    add("--role", metavar="R", help="the role: roles/R.md in the home directory")
    add("--resume", metavar="TOKEN", help="continue an earlier conversation")
    add("--or-fresh", action="store_true", default=None,
        help="start a new conversation if the earlier one does not exist any more")  # fmt: skip
    add("--max-turns", type=count, metavar="N", help="stop after N turns of the agent")
    add("--max-cost", type=arguments.parse_dollars, metavar="USD", help="stop at this cost")
    add("--timeout", type=arguments.parse_timeout, metavar="DURATION", help="500ms, 6s, 10m, 2h")
    add("--schema", metavar="FILE|JSON", help="a JSON Schema for the answer")
    add("--image", action="append", metavar="FILE", help="png, jpeg, gif or webp; repeatable")
    add("--metadata", metavar="JSON", help="a JSON object that is stored with the run")
    add("--env", action="append", metavar="NAME[=VALUE]",
        help="an environment variable for the process; repeatable")  # fmt: skip
    add("--detach", action="store_true", help="return when the run has started")
    _add_output_flags(parser)


def _add_steer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run id or the beginning of one")
    parser.add_argument("text", metavar="TEXT", help="the message")
    arguments.add_json_flag(parser)


def _add_send_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help="watch the item until it is settled")
    parser.add_argument("--timeout", type=arguments.parse_timeout, metavar="DURATION",
                        help="with --wait: the longest time to wait")  # fmt: skip


def _add_retry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--failed", action="store_true",
                        help="send all failed messages again, or those of one agent")  # fmt: skip
    parser.add_argument("--since", metavar="WHEN",
                        help="with --failed: since then: today, 2026-01-31, 24h")  # fmt: skip


def _add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="RUN|FILE", help="a run id or a recording")
    parser.add_argument("--provider", metavar="P", help="the provider; required for a recording")
    parser.add_argument("--jsonl", action="store_true", help="print one JSON document per line")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run id or the beginning of one")
    parser.add_argument("-o", "--output", metavar="FILE", help="the archive (./RUN.tar.gz)")
    arguments.add_json_flag(parser)


def _add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the backup to write")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    arguments.add_json_flag(parser)


def _add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file that `steadyrun backup` has written")
    parser.add_argument("--stop", action="store_true",
                        help="first stop the daemon and all processes of agents")  # fmt: skip
    arguments.add_json_flag(parser)


def _add_prune_arguments(parser: argparse.ArgumentParser) -> None:
    add, age = parser.add_argument, arguments.parse_age
    add("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")
    add("--events-older-than", type=age, metavar="AGE", help="delete events: 12h, 90d")
    add("--texts-older-than", type=age, metavar="AGE",
        help="delete texts of messages and answers: 12h, 90d")  # fmt: skip
    add("--agent", metavar="NAME", help="only of this agent")
    arguments.add_json_flag(parser)


def _add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="also read every row of the store")
    arguments.add_json_flag(parser)


def _add_up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true",
                        help="run in the background; return when the daemon answers")  # fmt: skip
    arguments.add_json_flag(parser)


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


# Operations whose command does more than call the operation and print the answer.
CUSTOM_COMMANDS = {
    "cancel": ("commands.steer:cancel", _add_nothing),
    "down": ("commands.down:down", _add_nothing),
    "retry": ("commands.retry:retry", _add_retry_arguments),
    "send": ("commands.send:send", _add_send_arguments),
}


def _build_command(row: "arguments.CommandRow") -> Command:
    target, add_more = CUSTOM_COMMANDS.get(row[0], ("invoke:run_operation", _add_nothing))

    def add(parser: argparse.ArgumentParser) -> None:
        arguments.add_arguments(parser, row)
        add_more(parser)

    return Command(row[0], row[1], target, add)


COMMANDS = (
    Command("up", "run the daemon in the foreground", "commands.up:up", _add_up_arguments),
    Command("run", "run one prompt and watch it", "commands.run:run", _add_run_arguments),
    Command("steer", "send a message to a running run", "commands.steer:steer",
            _add_steer_arguments),
    *map(_build_command, TABLE),
    Command("runs", "list runs, newest first", "commands.runs:list_runs", _add_runs_arguments),
    Command("show", "show one run", "commands.runs:show", _add_show_arguments),
    Command("tail", "print the last events of an agent, a run or all agents",
            "commands.tail:tail", _add_tail_arguments),
    Command("replay", "replay recorded traffic and print its events",
            "commands.replay:replay", _add_replay_arguments),
    Command("export", "write a run to an archive, without secrets",
            "commands.export:export", _add_export_arguments),
    Command("backup", "write a backup of the home to a file",
            "commands.backup:make_backup", _add_backup_arguments),
    Command("restore", "restore the home from a backup",
            "commands.backup:restore", _add_restore_arguments),
    Command("prune", "delete old events and texts", "commands.prune:prune", _add_prune_arguments),
    Command("providers", "list providers and their abilities",
            "commands.providers:list_providers", arguments.add_json_flag),
    Command("config show", "print every setting and its origin",
            "commands.config:show", arguments.add_json_flag),
    Command("config path", "print the configuration files",
            "commands.config:show_path", arguments.add_json_flag),
    Command("config check", "check the configuration", "commands.config:check",
            arguments.add_json_flag),
    Command("trust", "allow the steadyrun.toml of this project to set every key",
            "commands.config:trust", arguments.add_json_flag),
    Command("doctor", "check the machine, the home directory and the store",
            "commands.doctor:doctor", _add_doctor_arguments),
)  # fmt: skip
# Started by other commands, not by users.
HIDDEN = (Command("hold", "", "background:hold", _add_nothing),)


def main(argv: list[str]) -> int:
    """Run one command. Every failure is a line on stderr and an exit code, never a traceback."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (never closed)
    if sys.stdout is None:
        print("steadyrun: standard output is closed", file=sys.stderr)
        return 1
    for stream in (sys.stdout, sys.stderr):
        # A file name or a message may have characters that the encoding of the terminal lacks.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run_command([_replace_invalid(word) for word in argv])
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        code = _handle_write_error(error)
    return code


def _run_command(argv: list[str]) -> int:
    options = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in options or "--jsonl" in options
    try:
        code = _call(build_parser(_find_first_word(argv)).parse_args(argv))
    except SystemExit as done:
        # argparse has printed the help or the version.
        code = int(done.code or 0)
    except SteadyrunError as error:
        code = _report(error, as_json=as_json)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    return code


def _handle_write_error(error: OSError) -> int:
    """Redirect the output to /dev/null: Python would report the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
        return EXIT_BROKEN_PIPE
    print(f"steadyrun: input or output failed: {error.strerror}", file=sys.stderr)
    return 1


def build_parser(first: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of all `COMMANDS`; with `first`, only of the commands that start with it."""
    parser = _CommandParser(
        prog="steadyrun",
        description="A durable runtime for coding agents.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"steadyrun {__version__}")
    is_list = first in _HELP
    kind: Any = _SummaryParser if is_list else _CommandParser
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=kind)
    groups: dict[str, Any] = {"": commands}
    for command in (*COMMANDS, *HIDDEN):
        if is_list or first in {None, command.words.split()[0]}:
            _add(groups, command)
    return parser


def _add(groups: "dict[str, Any]", command: Command) -> None:
    group, _, word = command.words.rpartition(" ")
    if group not in groups:
        # A group such as `gate` may be a command as well.
        alone = groups.get(f"{group}!")
        inner = alone or groups[""].add_parser(group, help=_GROUPS[group])
        groups[group] = inner.add_subparsers(metavar="COMMAND", required=alone is None)
    # A command without a summary is not listed in the help.
    listed = {"help": command.summary} if command.summary else {}
    sub = groups[group].add_parser(word, description=command.summary, **listed)
    groups[f"{command.words}!"] = sub
    if isinstance(sub, _CommandParser):
        command.add_arguments(sub)
        sub.set_defaults(target=command.target)


def _find_first_word(argv: list[str]) -> str | None:
    """Find the word that selects the commands to build; None: all commands are needed."""
    words = {*_HELP, *(command.words.split()[0] for command in (*COMMANDS, *HIDDEN))}
    return argv[0] if argv and argv[0] in words else None


class _SummaryParser:
    """Stands for the parser of a command of which the help shows the name and the summary only."""

    def __init__(self, **_: "Any") -> None: ...

    def add_subparsers(self, **_: "Any") -> "_SummaryParser":
        return self

    def add_parser(self, *_: "Any", **__: "Any") -> "_SummaryParser":
        return self


class _CommandParser(argparse.ArgumentParser):
    """A parser that raises `InvalidUsage`, which is reported like every other error."""

    def __init__(self, **settings: "Any") -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> "NoReturn":
        raise InvalidUsage(message, hint=" ".join(self.format_usage().split()))


def _call(args: argparse.Namespace) -> int:
    module, _, function = args.target.partition(":")
    imported = __import__(f"steadyrun.cli.{module}", fromlist=[function])
    # All imports are done: from here on Ctrl-C raises KeyboardInterrupt again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = getattr(imported, function)(args)
    return code if isinstance(code, int) else _run(code)


def _run(command: "Coroutine[Any, Any, int]") -> int:
    """Run a command that is asynchronous to its end."""
    import anyio  # noqa: PLC0415 (start-up time: `--help` needs no event loop)

    return anyio.run(lambda: command)


def _report(error: SteadyrunError, *, as_json: bool) -> int:
    if as_json:
        import json  # noqa: PLC0415 (start-up time: only a failed command needs it)

        document = {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "retryable": error.retryable,
        }
        print(json.dumps({"error": document}))
    else:
        print(f"steadyrun: {_to_one_line(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  {_to_one_line(error.hint)}", file=sys.stderr)
    return error.exit_code


def _to_one_line(text: str) -> str:
    """Replace control characters and limit the length: a message may quote any name."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shorten(shown, _LONGEST_MESSAGE)


def _replace_invalid(word: str) -> str:
    """Replace bytes that are not valid text. No name and no id has them."""
    return word.encode(errors="surrogateescape").decode(errors="replace")


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--json", action="store_true", help="print one JSON document at the end")
    either.add_argument("--jsonl", action="store_true", help="print each event as a line of JSON")
