"""May it? Asked on the terminal; where there is none, the answer is no, at once."""

import os
import sys
import termios
from collections.abc import Callable

import anyio

from steadyrun.cli.commands.answer import find_user
from steadyrun.cli.output import format as render
from steadyrun.dialect import Verdict
from steadyrun.errors import SteadyrunError
from steadyrun.lib.signal import Signal
from steadyrun.library import RunHandle
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, LiveEvent, StoredEvent

_NOBODY, _NOBODY_NAME = "nobody is there to be asked", "nobody"
_HINT = "Use --mode accept_edits or --mode full_auto, or run it on a terminal to be asked."
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}

NotePrinter = Callable[[str], None]


async def deny_unattended(run: RunHandle, asked: ApprovalRequested, why: str = _NOBODY) -> None:
    await run.decide(asked.approval, Verdict(is_allowed=False, message=why), by=_NOBODY_NAME)


def can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class ApprovalPrompts:
    """Answers what one run asks, one question after the other."""

    def __init__(self, run: RunHandle, note: NotePrinter) -> None:
        self._run, self._note = run, note
        self._can_ask = can_ask()
        # Open questions in their order, and what stops each from being asked.
        self._open: dict[str, tuple[ApprovalRequested, anyio.CancelScope]] = {}
        self._more = Signal()

    async def handle(self, seen: StoredEvent | LiveEvent) -> None:
        match seen.event:
            case ApprovalRequested() as asked if self._can_ask:
                self._open[asked.approval] = (asked, anyio.CancelScope())
                self._more.notify()
            case ApprovalRequested() as asked:
                self._note(f"  ! denied {asked.tool_name}: {_NOBODY}. {_HINT}")
                await self._decide(asked, Verdict(False, _NOBODY), by=_NOBODY_NAME)
            case ApprovalResolved(approval, _, _) if approval in self._open:
                _, asking = self._open.pop(approval)
                asking.cancel()
            case _:
                pass

    async def ask(self) -> None:
        """Ask as questions come, until cancelled."""
        while True:
            while self._open:
                asked, asking = next(iter(self._open.values()))
                with asking:
                    is_allowed = await self._read_answer(asked)
                    said = Verdict(is_allowed, "" if is_allowed else "the user said no")
                    await self._decide(asked, said, by=find_user())
                self._open.pop(asked.approval, None)
            await self._more.wait()

    async def _decide(self, asked: ApprovalRequested, verdict: Verdict, *, by: str) -> None:
        try:
            await self._run.decide(asked.approval, verdict, by=by)
        except SteadyrunError as error:
            self._note(f"  ! {error.message}")

    async def _read_answer(self, asked: ApprovalRequested) -> bool:
        self._note(f"  ? {format_question(asked)}")
        # What was typed before the question is no answer to it.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        while True:
            self._note("  ? allow it? y or n, then Enter:")
            await anyio.wait_readable(sys.stdin)
            typed = os.read(sys.stdin.fileno(), 4096)
            answer = _ANSWERS.get(typed.decode(errors="replace").strip().lower())
            if answer is not None or not typed:
                return bool(answer)


def format_question(asked: ApprovalRequested) -> str:
    """All that would be done: a part that is cut off could be the one that matters."""
    shown = "" if asked.tool_input is None else render.sanitize(render.to_json(asked.tool_input))
    return f"{asked.tool_name} {shown}".rstrip()
