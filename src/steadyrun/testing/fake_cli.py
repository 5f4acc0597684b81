"""How does a CLI that is not installed behave? Build a real program that plays its part.

    cli = FakeCli().say({"type": "ready"}).read().say({"type": "done"}).exit(0)
    program = cli.build(folder / "claude")          # an executable file

`playing` makes the same of a recording: it prints what was printed, and waits where something was
sent. Ids in what it is told replace those of the recording in what it answers.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

FakeStep = list[Any]


class FakeCli:
    """The steps of a program, in order."""

    def __init__(self) -> None:
        self._steps: list[FakeStep] = []

    def print_lines(self, *messages: Mapping[str, Any] | str) -> Self:
        """Print lines: objects as JSON, texts as they are."""
        self._steps += [["say", message] for message in messages]
        return self

    def print_error(self, text: str) -> Self:
        """Print a line on stderr."""
        self._steps.append(["complain", text])
        return self

    def read(self, like: Mapping[str, Any] | str | None = None) -> Self:
        """Wait for a line. Where it differs from `like`, later lines use the ids it has."""
        self._steps.append(["read", like])
        return self

    def wait_for_end(self) -> Self:
        """Wait until stdin is closed."""
        self._steps.append(["end", None])
        return self

    def exit(self, code: int) -> Self:
        self._steps.append(["exit", code])
        return self

    def build(self, path: Path) -> Path:
        """Write the program; it needs nothing but this Python."""
        steps = json.dumps(self._steps)
        source = Path(__file__).with_name("fake_cli_child.py").read_text(encoding="utf-8")
        path.write_text(f"#!{sys.executable} -IS\n{source}\nplay({steps!r})\n", encoding="utf-8")
        path.chmod(0o700)
        return path


def replay_recording(recording: Iterable[Mapping[str, Any]]) -> FakeCli:
    """A program that behaves as recorded: lines of `{"dir": "in"|"out"|"err", "msg": …}`."""
    cli = FakeCli()
    for line in recording:
        match line["dir"]:
            case "out":
                cli.print_lines(line["msg"])
            case "in":
                cli.read(line["msg"])
            case "err":
                cli.print_error(str(line["msg"]))
            case other:
                raise ValueError(f"dir must be in, out or err, found {other!r}")
    return cli.wait_for_end()
