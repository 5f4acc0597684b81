"""Plays one turn of a script, from its beginning to its end."""

from collections.abc import Callable

from steadyrun.providers.scripted.child.fault_steps import FAULT_STEPS
from steadyrun.providers.scripted.child.input_queue import InputQueue
from steadyrun.providers.scripted.child.open_turn import OpenTurn, PlayStep, TurnInterrupted
from steadyrun.providers.scripted.child.output_steps import OUTPUT_STEPS
from steadyrun.providers.scripted.child.process_steps import PROCESS_STEPS
from steadyrun.providers.scripted.child.script import ScriptedTurn, TurnFailed, find_steps
from steadyrun.providers.scripted.child.tool_steps import TOOL_STEPS
from steadyrun.providers.scripted.child.wire import Args, print_frame

PLAY_STEPS: dict[str, PlayStep] = {**OUTPUT_STEPS, **TOOL_STEPS, **FAULT_STEPS, **PROCESS_STEPS}


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
