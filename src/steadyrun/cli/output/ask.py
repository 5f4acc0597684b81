"""Asks the user on the terminal for approvals of a run. Without a terminal, all are denied."""

import os
import sys
import termios
from collections.abc import Callable

import anyio

from steadyrun.cli.output.format import ShownEvent, sanitize, to_json
from steadyrun.dialect import Verdict
from steadyrun.errors import SteadyrunError
from steadyrun.lib.signal import Signal
from steadyrun.library import RunHandle
from steadyrun.model.event import ApprovalRequested, ApprovalResolved

# `nobody` is the value of `by` in the record.
_NO_TERMINAL, _DENIED_BY = "there is no terminal to ask the user", "nobody"
_HINT = "Use --mode accept_edits or --mode full_auto, or run the command on a terminal."
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}

NotePrinter = Callable[[str], None]


async def deny_unattended(run: RunHandle, asked: ApprovalRequested) -> None:
    """Deny a request because there is no user to ask."""
    await run.decide(asked.approval, Verdict(False, _NO_TERMINAL), by=_DENIED_BY)


def can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class ApprovalPrompts:
    """Answers the approval requests of one run, one after the other. `user` is recorded as the
    author of the answers."""

    def __init__(self, run: RunHandle, note: NotePrinter, *, user: str) -> None:
        self._run, self._note, self._user = run, note, user
        self._can_ask = can_ask()
        # The open requests in their order, and the scope that cancels each question.
        self._open: dict[str, tuple[ApprovalRequested, anyio.CancelScope]] = {}
        self._more = Signal()

    async def handle(self, seen: ShownEvent) -> None:
        """Queue a new request, or deny it without a terminal; drop a request that is resolved."""
        match seen.event:
            case ApprovalRequested() as asked if self._can_ask:
                self._open[asked.approval] = (asked, anyio.CancelScope())
                self._more.notify()
            case ApprovalRequested() as asked:
                self._note(f"  ! denied {asked.tool_name}: {_NO_TERMINAL}. {_HINT}")
                await self._decide(asked, Verdict(False, _NO_TERMINAL), by=_DENIED_BY)
            case ApprovalResolved(approval, _, _) if approval in self._open:
                _, asking = self._open.pop(approval)
                asking.cancel()
            case _:
                pass

    async def ask(self) -> None:
        """Ask about each request until cancelled."""
        while True:
            while self._open:
                asked, asking = next(iter(self._open.values()))
                with asking:
                    is_allowed = await self._read_answer(asked)
                    verdict = Verdict(is_allowed, "" if is_allowed else "the user said no")
                    await self._decide(asked, verdict, by=self._user)
                self._open.pop(asked.approval, None)
            await self._more.wait()

    async def _decide(self, asked: ApprovalRequested, verdict: Verdict, *, by: str) -> None:
        try:
            await self._run.decide(asked.approval, verdict, by=by)
        except SteadyrunError as error:
            self._note(f"  ! {error.message}")

    async def _read_answer(self, asked: ApprovalRequested) -> bool:
        self._note(f"  ? {format_question(asked)}")
        # Discard what was typed before the question.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        while True:
            self._note("  ? allow it? y or n, then Enter:")
            await anyio.wait_readable(sys.stdin)
            typed = os.read(sys.stdin.fileno(), 4096)
            answer = _ANSWERS.get(typed.decode(errors="replace").strip().lower())
            if answer is not None or not typed:
                return bool(answer)


def format_question(asked: ApprovalRequested) -> str:
    """Format the whole request. It is never cut: the part cut off could be the dangerous one."""
    shown = "" if asked.tool_input is None else sanitize(to_json(asked.tool_input))
    return f"{asked.tool_name} {shown}".rstrip()
