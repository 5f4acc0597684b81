"""The command `run`: starts one run and shows it.

If the command ends before the run (Ctrl-C, a closed terminal, a closed pipe), the run continues
and a holder in the background drives it.
"""

import os
import signal
import sys
from argparse import Namespace
from contextlib import aclosing

import anyio
from anyio.abc import TaskGroup

from steadyrun.app.abandoned_runs import start_holder
from steadyrun.cli.background import open_command_runs
from steadyrun.cli.inputs import read_options, read_prompt
from steadyrun.cli.main import EXIT_INTERRUPTED
from steadyrun.cli.output.ask import ApprovalPrompts
from steadyrun.cli.output.format import ShownEvent, to_json
from steadyrun.cli.output.live import EventLines, LiveText, OneDocument, Output
from steadyrun.errors import SteadyrunError
from steadyrun.lib.task_group import task_group
from steadyrun.library import RunHandle, Steadyrun
from steadyrun.model.event import RunStarted
from steadyrun.model.run import Run, RunStatus
from steadyrun.operations.access.caller import name_user
from steadyrun.runtime.run.options import RunOptions

EXIT_CODES: dict[RunStatus, int] = {
    "completed": 0,
    "failed": 1,
    "rate_limited": 6,
    "timed_out": 7,
    "cancelled": 8,
}
# A second Ctrl-C within this time cancels the run.
SECOND_SIGNAL_SECONDS = 2.0


def run(args: Namespace) -> int:
    watch = RunWatch(args, read_prompt(args.text), read_options(args))
    try:
        return anyio.run(watch.watch)
    finally:
        if watch.is_left_running:
            start_holder()


def _choose_output(args: Namespace) -> Output:
    if args.json:
        return OneDocument(sys.stdout, sys.stderr)
    return (EventLines if args.jsonl else LiveText)(sys.stdout, sys.stderr)


class RunWatch:
    """Starts a run and shows it until it ends or a signal ends the command."""

    def __init__(self, args: Namespace, prompt: str, options: RunOptions) -> None:
        self._args, self._prompt, self._options = args, prompt, options
        self._output = _choose_output(args)
        self._is_shown = True
        # The events since the first Ctrl-C. A second Ctrl-C shows them.
        self._unseen: list[ShownEvent] = []
        self.is_left_running = False

    async def watch(self) -> int:
        async with open_command_runs() as direct_runs:
            run = await self._start(Steadyrun(direct_runs))
            if self._args.detach and await self._has_begun(run):
                return self._print_detached(run)
            return await self._watch_run(run)

    async def _start(self, sr: Steadyrun) -> RunHandle:
        args, where = self._args, {"provider": self._args.provider, "cwd": self._args.cwd}
        # Ctrl-C may come while the process is launched.
        self.is_left_running = True
        try:
            if args.role is not None:
                return await sr.summon(args.role, self._prompt, **where, **self._options)
            return await sr.start(self._prompt, **where, **self._options)
        except SteadyrunError:
            self.is_left_running = False
            raise

    async def _has_begun(self, run: RunHandle) -> bool:
        async with aclosing(run.events()) as events:
            first = await anext(events)
        return isinstance(first.event, RunStarted)

    def _print_detached(self, run: RunHandle) -> int:
        is_json = self._args.json or self._args.jsonl
        print(to_json({"run": run.id, "status": "running"}) if is_json else run.id)
        self._output.note(f"steadyrun tail {run.id} -f")
        return 0

    async def _watch_run(self, run: RunHandle) -> int:
        approvals = ApprovalPrompts(run, self._output.note, user=name_user(os.geteuid()))
        ended: Run | None = None
        async with task_group() as tasks:
            tasks.start_soon(self._handle_signals, run, tasks)
            tasks.start_soon(approvals.ask)
            await self._show(run, approvals)
            ended = await run.result()
            self.is_left_running = False
            tasks.cancel_scope.cancel()
        return EXIT_INTERRUPTED if ended is None else EXIT_CODES[ended.status]

    async def _show(self, run: RunHandle, approvals: ApprovalPrompts) -> None:
        async with aclosing(run.events()) as events:
            async for seen in events:
                if self._is_shown:
                    self._output.show(seen)
                else:
                    self._unseen.append(seen)
                await approvals.handle(seen)

    async def _handle_signals(self, run: RunHandle, tasks: TaskGroup) -> None:
        """The first signal ends the command and keeps the run. A second Ctrl-C cancels the run; the
        next signal does not wait for the end of the run."""
        with anyio.open_signal_receiver(*_list_signals()) as signals:
            number = await anext(signals)
            self._is_shown = False
            again = "; Ctrl-C again cancels it" if number == signal.SIGINT else ""
            self._output.note(f"still running: steadyrun tail {run.id} -f{again}")
            with anyio.move_on_after(SECOND_SIGNAL_SECONDS if number == signal.SIGINT else 0):
                await anext(signals)
                self._resume_output()
            if self._is_shown:
                self._output.note(f"cancelling {run.id}")
                tasks.start_soon(run.cancel, "Ctrl-C")
                await anext(signals)
            tasks.cancel_scope.cancel()

    def _resume_output(self) -> None:
        self._is_shown = True
        for seen in self._unseen:
            self._output.show(seen)


def _list_signals() -> list[signal.Signals]:
    """List the signals that end the command. One that the parent ignores (nohup) is left out."""
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in handled if signal.getsignal(number) != signal.SIG_IGN]
