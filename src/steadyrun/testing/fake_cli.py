"""Builds a real program that behaves like a CLI which is not installed.

    cli = FakeCli().print_lines({"type": "ready"}).read().print_lines({"type": "done"}).exit(0)
    program = cli.build(folder / "claude")          # an executable file

`replay_recording` builds one from a recording: the program prints the recorded output, and waits
where the recording has input. Ids in its real input replace those of the recording in its output.
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
        """Print lines: objects as JSON, texts unchanged."""
        self._steps += [["say", message] for message in messages]
        return self

    def print_error(self, text: str) -> Self:
        """Print a line on stderr."""
        self._steps.append(["complain", text])
        return self

    def read(self, like: Mapping[str, Any] | str | None = None) -> Self:
        """Wait for a line. Its ids replace those of `like` in later output."""
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
        """Write the program. It needs only this Python interpreter."""
        steps = json.dumps(self._steps)
        source = Path(__file__).with_name("fake_cli_child.py").read_text(encoding="utf-8")
        path.write_text(f"#!{sys.executable} -IS\n{source}\nplay({steps!r})\n", encoding="utf-8")
        path.chmod(0o700)
        return path


def replay_recording(recording: Iterable[Mapping[str, Any]]) -> FakeCli:
    """Build a program from recorded lines of `{"dir": "in"|"out"|"err", "msg": …}`."""
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
