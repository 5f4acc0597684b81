"""Runs the scripted CLI from its start to its end, turn by turn."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from steadyrun.providers.scripted.child.input_queue import InputQueue, PlayerSettings
from steadyrun.providers.scripted.child.json_lines import (
    Args,
    InputReader,
    decode_json,
    print_frame,
    write,
)
from steadyrun.providers.scripted.child.memory import Memory
from steadyrun.providers.scripted.child.script import ScriptedTurn, TurnFailed, find_steps
from steadyrun.providers.scripted.child.steps import PLAY_STEPS, OpenTurn, TurnInterrupted


def main(argv: list[str]) -> int:
    """Run turns until stdin ends or SIGINT arrives."""
    if len(argv) != 2:
        write(2, b"usage: scripted_child MEMORY SETTINGS\n")
        return 2
    reader = InputReader()
    settings = PlayerSettings(**decode_json(Path(argv[1]).read_bytes()))
    queue = InputQueue(reader, settings, Memory(Path(argv[0]), settings.resume))
    with contextlib.suppress(BrokenPipeError):
        for turn in queue.iter_turns():
            play_turn(queue, turn)
    return 0


def play_turn(queue: InputQueue, request: ScriptedTurn) -> None:
    """Print `began`, play the steps, store the texts, and print `ended`.

    The turn ends as completed, failed, rate limited or cancelled.
    """
    turn = OpenTurn(queue, request)
    offered = request.text if request.by == "offer" else None
    print_frame("began", turn=request.id, by=request.by, text=offered)
    status, error = _run_guarded(_play_steps, turn)
    if status == "cancelled":
        for offer in list(queue.offers):
            queue.return_offer(offer, "interrupted")
    kept, problem = _run_guarded(_remember, turn)
    if problem:
        status, error = kept, problem
    account = {"usage": turn.usage or None, "cost_usd": turn.cost_usd}
    print_frame("ended", turn=request.id, status=status, result=turn.result, error=error, **account)


def _run_guarded(act: Callable[[OpenTurn], None], turn: OpenTurn) -> tuple[str, Args | None]:
    try:
        act(turn)
    except TurnInterrupted:
        return "cancelled", None
    except TurnFailed as failed:
        return failed.status, failed.fact
    return "completed", None


def _play_steps(turn: OpenTurn) -> None:
    memory = turn.queue.memory
    if memory.problem:
        raise memory.problem
    steps = find_steps(turn.request, turn.queue.settings.script, len(memory.turns))
    for n, (name, args) in enumerate(steps):
        turn.poll_input(is_between=n > 0)
        PLAY_STEPS[name](turn, args)


def _remember(turn: OpenTurn) -> None:
    if turn.texts:
        turn.queue.memory.add(turn.texts)
