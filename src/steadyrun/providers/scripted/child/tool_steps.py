"""Plays the steps that use tools, with or without an approval."""

import math

from steadyrun.providers.scripted.child.open_turn import OpenTurn, PlayStep, TurnInterrupted
from steadyrun.providers.scripted.child.script import TurnFailed
from steadyrun.providers.scripted.child.wire import Args, print_frame


def play_tool(turn: OpenTurn, args: Args) -> None:
    call = _start_tool(turn, args)
    if not args["leave_open"]:
        turn.wait(args["seconds"])
        _end_tool(turn, call, args, _find_refusal(turn, args["name"]) or args["error"])


def play_approval(turn: OpenTurn, args: Args) -> None:
    call = _start_tool(turn, args)
    error, ends_turn = _find_refusal(turn, args["name"]), False
    is_asked = turn.queue.settings.mode == "default" and args["name"] not in turn.queue.always
    if error is None and is_asked:
        answer = _ask(turn, call, args)
        if answer.get("always"):
            turn.queue.always.add(args["name"])
        error = None if answer["allow"] else f"denied: {answer.get('message', '')}"
        ends_turn = answer.get("ends_turn", False)
    _end_tool(turn, call, args, error)
    if ends_turn:
        raise TurnInterrupted


def _start_tool(turn: OpenTurn, args: Args) -> str:
    allowed = turn.queue.settings.max_turns
    if allowed is not None and turn.tools >= allowed:
        raise TurnFailed("max_turns", f"the turn may use {allowed} tools and wants one more")
    turn.tools += 1
    call = turn.queue.make_id("call")
    print_frame("tool_start", id=call, name=args["name"], input=args["input"])
    return call


def _end_tool(turn: OpenTurn, call: str, args: Args, error: str | None) -> None:
    output = None if error else args["output"]
    print_frame(
        "tool_end", id=call, name=args["name"], input=args["input"], output=output, error=error
    )
    turn.poll_input()


def _find_refusal(turn: OpenTurn, name: str) -> str | None:
    tools, deny = turn.queue.settings.tools, turn.queue.settings.deny
    is_allowed = (tools is None or name in tools) and name not in deny
    return None if is_allowed else f"the tool {name} is not allowed"


def _ask(turn: OpenTurn, call: str, args: Args) -> Args:
    """Ask for approval. If stdin is closed, the answer is a denial."""
    ask, answers, wire = turn.queue.make_id("ask"), turn.queue.answers, turn.queue.reader
    print_frame("ask", id=ask, call=call, name=args["name"], input=args["input"])
    turn.wait(math.inf, lambda: ask in answers or not wire.is_open)
    return answers.get(
        ask, {"allow": False, "message": "no answer is possible, because stdin is closed"}
    )


TOOL_STEPS: dict[str, PlayStep] = {
    "tool": play_tool,
    "approval": play_approval,
}
