"""Records docs/images/terminal.svg: types commands into a real shell and draws what it prints.

The commands are those of SESSION. They run in bash on a pseudo-terminal, in a home of their own
that is deleted at the end. No output is written by hand: each line appears at the time at which the
shell printed it, and long waits are shortened.

    .venv/bin/python scripts/record_terminal.py
"""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/terminal.svg"
# The same short path on every machine: commands print it.
PLACE = Path("/tmp/steadyrun-demo")  # noqa: S108 (a home for this recording only)

STEP = (
    '{"tool": {"name": "Bash", "input": {"command": "make test"}, "output": "ok", "seconds": 10}}'
)
TASK = f"""script:[
  {{"text": "I run the tests three times."}},
  {STEP},
  {STEP},
  {STEP},
  {{"text": "All three passed."}}
]
"""
SESSION = (
    "steadyrun up --detach",
    "steadyrun agent add ada --provider scripted --home ada",
    "# task.txt is a scripted run of 30 seconds",
    "steadyrun send ada - < task.txt",
    "# kill the daemon while ada works",
    "kill -9 \"$(steadyrun status | grep -o 'pid [0-9]*' | tr -d 'pid ')\"",
    "steadyrun runs",
    "steadyrun up --detach",
    'steadyrun send ada "still there?" --queue --wait',
    "# the run went on without a daemon: nothing is missing, nothing came twice",
    "steadyrun tail ada --kind run,tool,text",
    "steadyrun down",
)

PROMPT = b"$ "
COLUMNS, ROWS = 110, 50
LIMIT_SECONDS = 90.0
LONGEST_WAIT_SECONDS = 1.5
TYPING_SECONDS = 0.6
CHAR_WIDTH, LINE_HEIGHT, MARGIN = 7.8, 18, 16


class Printed(NamedTuple):
    """One line of the terminal, and when it was there."""

    seconds: float
    text: str


def main() -> int:
    """Record the session and write the picture."""
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / "ada").mkdir(parents=True)
    (PLACE / "task.txt").write_text(TASK, encoding="utf-8")
    try:
        lines = record_session()
    finally:
        subprocess.run(
            [_bin() / "steadyrun", "down"], env=_environment(), capture_output=True, check=False
        )
        shutil.rmtree(PLACE)
    PICTURE.write_text(draw_terminal(lines), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(lines)} lines, {lines[-1].seconds:.0f} s")
    return 0


def record_session() -> list[Printed]:
    """Type every command when the prompt of the one before is there."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(PLACE)
        os.execve("/bin/bash", ["bash", "--noediting", "--norc"], _environment())  # noqa: S606
    chunks: list[tuple[float, bytes]] = []
    try:
        _read_to_prompt(terminal, chunks)
        for command in SESSION:
            os.write(terminal, command.encode() + b"\n")
            _read_to_prompt(terminal, chunks)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return to_lines(chunks)


def _read_to_prompt(terminal: int, chunks: list[tuple[float, bytes]]) -> None:
    output, limit = b"", time.monotonic() + LIMIT_SECONDS
    while not (output == PROMPT or output.endswith(b"\n" + PROMPT)):
        ready, _, _ = select.select([terminal], [], [], limit - time.monotonic())
        if not ready:
            raise TimeoutError(f"no prompt after {LIMIT_SECONDS} s: {output!r}")
        data = os.read(terminal, 65536)
        output += data
        chunks.append((time.monotonic(), data))


def to_lines(chunks: list[tuple[float, bytes]]) -> list[Printed]:
    """Split the output into lines. A carriage return writes over the line, as on a terminal."""
    lines: list[Printed] = []
    shown, last, rest = 0.0, chunks[0][0], b""
    for at, data in chunks:
        shown, last = shown + min(at - last, LONGEST_WAIT_SECONDS), at
        *whole, rest = (rest + data).split(b"\n")
        for each in whole:
            text = each.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode()
            shown += TYPING_SECONDS if text.startswith("$ ") else 0
            lines.append(Printed(shown, text))
    return lines


def draw_terminal(lines: list[Printed]) -> str:
    """The terminal as SVG. A viewer without animation shows its last state."""
    rows = [(seconds, part) for seconds, text in lines for part in _wrap(text)]
    width = round(COLUMNS * CHAR_WIDTH + 2 * MARGIN)
    height = len(rows) * LINE_HEIGHT + 2 * MARGIN + LINE_HEIGHT
    drawn = [_draw_row(number, *row) for number, row in enumerate(rows)]
    return "\n".join([_HEAD.format(width=width, height=height), *drawn, "</svg>\n"])


def _draw_row(number: int, seconds: float, text: str) -> str:
    y = MARGIN + LINE_HEIGHT * (number + 2) - 5
    kind = "note" if text.startswith("$ #") else "typed" if text.startswith("$ ") else "output"
    return (
        f'<text class="{kind}" style="animation-delay:{seconds:.2f}s" x="{MARGIN}" y="{y}"'
        f' xml:space="preserve">{escape(text)}</text>'
    )


def _wrap(text: str) -> list[str]:
    return [text[start : start + COLUMNS] for start in range(0, len(text), COLUMNS)] or [""]


def _bin() -> Path:
    return Path(sys.executable).parent


def _environment() -> dict[str, str]:
    return {
        "HOME": str(PLACE),
        "LANG": "C.UTF-8",
        "PATH": f"{_bin()}:/usr/bin:/bin",
        "PS1": PROMPT.decode(),
        "TERM": "xterm",
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
    }


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" role="img">
<title>A terminal: the daemon is killed in the middle of a run, and the run continues</title>
<style>
text {{ font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
text {{ animation: appear 0.01s both; }}
.typed {{ fill: #ffffff; }} .output {{ fill: #c5cdd6; }} .note {{ fill: #7fbf8f; }}
@keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none; }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#15191f"/>
<circle cx="18" cy="15" r="5" fill="#e0655b"/>
<circle cx="36" cy="15" r="5" fill="#e3b341"/>
<circle cx="54" cy="15" r="5" fill="#5bb974"/>"""


if __name__ == "__main__":
    sys.exit(main())
