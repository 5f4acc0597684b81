"""Which command was meant, and how does its failure look? Commands are imported when called."""

import argparse
import os
import signal
import sys

from steadyrun import __version__
from steadyrun.cli import arguments
from steadyrun.cli.command_table import TABLE
from steadyrun.errors import InvalidUsage, SteadyrunError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
# The same as `model.policy.Mode`, which would cost every command its imports.
MODES = ("default", "accept_edits", "plan", "full_auto", "dangerously_skip_permissions")
_LONGEST_MESSAGE = 1000
_HELP = ("-h", "--help")

_EPILOG = """\
Everything lives in $STEADYRUN_HOME (default ~/.steadyrun).
exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 not allowed, 5 conflict,
            6 rate limited or paused, 7 timed out, 8 cancelled, 69 no daemon, 130 interrupted,
            141 whoever read the output went away
"""


class Command:
    """A command: `target` is `module:function` in this room, taking the parsed arguments."""

    def __init__(
        self,
        words: str,
        summary: str,
        target: str,
        arguments: "Callable[[argparse.ArgumentParser], None]",
    ) -> None:
        self.words, self.summary, self.target = words, summary, target
        self.arguments = arguments


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.json_flag(parser)


def _runs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="NAME", help="only this agent's runs")
    parser.add_argument("-n", type=arguments.count, default=20, metavar="N", help="how many (20)")
    arguments.json_flag(parser)


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's id, or the beginning of one")
    arguments.json_flag(parser)


def _tail_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", metavar="AGENT|RUN", help="an agent's name, or a run's id")
    add("--all", action="store_true", help="of every agent, and of gates")
    add("-n", type=arguments.count, metavar="N", help="how many events (50)")
    add("-f", "--follow", action="store_true", help="go on as events come")
    add("--kind", type=arguments.words, metavar="A,B", help="only text, tool, run, … or error")
    add("--after", type=arguments.cursor, metavar="CURSOR", help="what came after that event")
    add("--jsonl", action="store_true", help="one JSON document a line")


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("text", nargs="?", metavar="TEXT", help="the prompt; - or nothing reads standard input")
    add("--provider", required=True, metavar="P", help="who shall do it: `steadyrun providers`")
    add("--model", metavar="NAME", help="the provider's model")
    add("--cwd", default=".", metavar="DIR", help="where it works (here)")
    add("--mode", choices=MODES, metavar="MODE", help=f"{', '.join(MODES[:-1])} or {MODES[-1]}")
    add("--tools", metavar="A,B", help="the only tools it may use")
    add("--system", metavar="TEXT", help="added to the provider's system prompt")
    add("--role", metavar="R", help="who it shall be: roles/R.md of the home")
    add("--resume", metavar="TOKEN", help="go on with an earlier conversation")
    add("--or-fresh", action="store_true", default=None, help="or begin a new one if it is gone")
    add(
        "--max-turns", type=arguments.count, metavar="N", help="stop after so many steps of its own"
    )
    add("--max-cost", type=arguments.dollars, metavar="USD", help="stop when it has cost so much")
    add("--timeout", type=arguments.duration, metavar="DURATION", help="500ms, 6s, 10m, 2h")
    add("--schema", metavar="FILE|JSON", help="a JSON Schema that the answer must fit")
    add("--image", action="append", metavar="FILE", help="png, jpeg, gif or webp; may be repeated")
    add("--metadata", metavar="JSON", help="an object that is kept with the run")
    add("--env", action="append", metavar="NAME[=VALUE]", help="a variable that it has, too")
    add("--detach", action="store_true", help="return as soon as it has begun")
    _output_flags(parser)


def _steer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's id, or the beginning of one")
    parser.add_argument("text", metavar="TEXT", help="what it shall know or do as well")
    arguments.json_flag(parser)


def _send_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help="watch it until it is settled")
    parser.add_argument("--timeout", type=arguments.duration, metavar="DURATION",
                        help="with --wait: how long")  # fmt: skip


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="RUN|FILE", help="a run's id, or a recording")
    parser.add_argument("--provider", metavar="P", help="whose traffic it is; a run knows it")
    parser.add_argument("--jsonl", action="store_true", help="one JSON document a line")


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's id, or the beginning of one")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (RUN.tar.gz, here)")
    arguments.json_flag(parser)


def _up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="return as soon as it has begun")
    arguments.json_flag(parser)


def _nothing(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments."""


# Commands of operations that do more than ask and show.
OWN = {
    "approve": ("commands.answer:answer", _nothing),
    "cancel": ("commands.steer:cancel", _nothing),
    "deny": ("commands.answer:answer", _nothing),
    "down": ("commands.down:down", _nothing),
    "send": ("commands.send:send", _send_arguments),
}


def _of_operation(row: "arguments.Row") -> Command:
    target, further = OWN.get(row[0], ("invoke:call", _nothing))

    def add(parser: argparse.ArgumentParser) -> None:
        arguments.add_all(parser, row)
        further(parser)

    return Command(row[0], row[1], target, add)


COMMANDS = (
    Command("up", "be the daemon that runs agents, until it is told to end", "commands.up:up",
            _up_arguments),
    Command("run", "run one prompt and watch it", "commands.run:run", _run_arguments),
    Command("steer", "tell a running run something more", "commands.steer:steer", _steer_arguments),
    *map(_of_operation, TABLE),
    Command("runs", "list runs, newest first", "commands.runs:list_runs", _runs_arguments),
    Command("show", "show one run", "commands.runs:show", _show_arguments),
    Command("tail", "print the last events of an agent, a run or all", "commands.tail:tail",
            _tail_arguments),
    Command("replay", "play recorded traffic through its provider's dialect",
            "commands.replay:replay", _replay_arguments),
    Command("export", "pack a run for a bug report, without secrets",
            "commands.export:export", _export_arguments),
    Command("providers", "list who can do the work",
            "commands.providers:list_providers", _no_arguments),
    Command("config show", "print every setting and where it comes from",
            "commands.config:show", _no_arguments),
    Command("config path", "print which files are read", "commands.config:path", _no_arguments),
    Command("config check", "check the configuration", "commands.config:check", _no_arguments),
    Command("trust", "let this project's steadyrun.toml set everything",
            "commands.config:trust", _no_arguments),
    Command("doctor", "check this machine, the home directory and the store",
            "commands.doctor:doctor", _no_arguments),
)  # fmt: skip
# Started by other commands, never typed.
HIDDEN = (Command("hold", "", "background:hold", _nothing),)


def main(argv: list[str]) -> int:
    """Run one command; every failure is a line on stderr and an exit code, never a traceback."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (for good)
    if sys.stdout is None:
        print("steadyrun: standard output is closed", file=sys.stderr)
        return 1
    for stream in (sys.stdout, sys.stderr):
        # A file name or a message may hold what this terminal cannot show.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _outcome([_valid(word) for word in argv])
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        code = _cannot_write(error)
    return code


def _outcome(argv: list[str]) -> int:
    options = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in options or "--jsonl" in options
    try:
        code = _call(build_parser(_first_word(argv)).parse_args(argv))
    except SystemExit as done:
        # argparse has printed the help or the version.
        code = int(done.code or 0)
    except SteadyrunError as error:
        code = _report(error, as_json=as_json)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    return code


def _cannot_write(error: OSError) -> int:
    """Our output has nowhere to go; Python must not complain about that again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
        return EXIT_BROKEN_PIPE
    print(f"steadyrun: input or output failed: {error.strerror}", file=sys.stderr)
    return 1


def build_parser(first: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, from `COMMANDS`; with its `first` word, only as much as is needed."""
    parser = _Parser(
        prog="steadyrun",
        description="A durable runtime for coding agents.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"steadyrun {__version__}")
    is_list = first in _HELP
    kind: Any = _Listed if is_list else _Parser
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=kind)
    groups: dict[str, Any] = {"": commands}
    for command in (*COMMANDS, *HIDDEN):
        if is_list or first in {None, command.words.split()[0]}:
            _add(groups, command)
    return parser


def _add(groups: "dict[str, Any]", command: Command) -> None:
    group, _, word = command.words.rpartition(" ")
    if group not in groups:
        # It may be a command by itself.
        alone = groups.get(f"{group}!")
        inner = alone or groups[""].add_parser(group, help=f"see `steadyrun {group} --help`")
        groups[group] = inner.add_subparsers(metavar="COMMAND", required=alone is None)
    # One without a summary is not listed.
    listed = {"help": command.summary} if command.summary else {}
    sub = groups[group].add_parser(word, description=command.summary, **listed)
    groups[f"{command.words}!"] = sub
    if isinstance(sub, _Parser):
        command.arguments(sub)
        sub.set_defaults(target=command.target)


def _first_word(argv: list[str]) -> str | None:
    """What decides how much of the command line is needed; None if that cannot be told."""
    known = {*_HELP, *(command.words.split()[0] for command in (*COMMANDS, *HIDDEN))}
    return argv[0] if argv and argv[0] in known else None


class _Listed:
    """In place of a parser of which the name and the summary are shown, and nothing else."""

    def __init__(self, **_: "Any") -> None: ...

    def add_subparsers(self, **_: "Any") -> "_Listed":
        return self

    def add_parser(self, *_: "Any", **__: "Any") -> "_Listed":
        return self


class _Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong, so that it is reported like any other failure."""

    def __init__(self, **settings: "Any") -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> "NoReturn":
        raise InvalidUsage(message, hint=" ".join(self.format_usage().split()))


def _call(args: argparse.Namespace) -> int:
    module, _, function = args.target.partition(":")
    room = __import__(f"steadyrun.cli.{module}", fromlist=[function])
    # All is imported: from here on an interrupt is an exception again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: int = getattr(room, function)(args)
    return code


def _report(error: SteadyrunError, *, as_json: bool) -> int:
    if as_json:
        import json  # noqa: PLC0415 (the start-up budget of every command that does not fail)

        facts = {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "retryable": error.retryable,
        }
        print(json.dumps({"error": facts}))
    else:
        print(f"steadyrun: {_one_line(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  {_one_line(error.hint)}", file=sys.stderr)
    return error.exit_code


def _one_line(text: str) -> str:
    """Names in a message may hold anything: no control characters, and not without end."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown if len(shown) <= _LONGEST_MESSAGE else shown[:_LONGEST_MESSAGE] + "…"


def _valid(word: str) -> str:
    """An argument may be any bytes; no name or id has what is not valid text."""
    return word.encode(errors="surrogateescape").decode(errors="replace")


def _output_flags(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--json", action="store_true", help="print one JSON document at the end")
    either.add_argument("--jsonl", action="store_true", help="print each event as a line of JSON")
