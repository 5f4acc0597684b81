"""Opens and closes turns, and follows the offers that become part of them."""

from typing import assert_never

from steadyrun.dialect import DialectOutput, TurnBegan, TurnEnded
from steadyrun.model import event as ev
from steadyrun.providers.scripted.events import to_cost, to_error
from steadyrun.providers.scripted.frames import (
    AbsorbedFrame,
    BackgroundFrame,
    BeganFrame,
    EndedFrame,
    ReadyFrame,
    ReturnedFrame,
    SteerFrame,
    TurnOutput,
)
from steadyrun.providers.scripted.state import ScriptedState


def begin_turn(state: ScriptedState, turn: str, taken: str | None) -> list[DialectOutput]:
    """Open a turn. `taken` is the key or the offer that it began with."""
    state.turn, state.text = turn, None
    return [TurnBegan(taken)]


def record_offer(state: ScriptedState, request: SteerFrame) -> list[DialectOutput]:
    """Record a message that was written while a turn was open."""
    state.offers = {**state.offers, request.id: request.text}
    return [ev.FollowupOffered(request.id, request.text)]


def return_all(state: ScriptedState) -> list[DialectOutput]:
    """Return the offers that the process had not taken when it ended."""
    offers, state.offers = state.offers, {}
    return [ev.FollowupReturned(offer, text, "the process ended") for offer, text in offers.items()]


def on_turn_frame(state: ScriptedState, output: TurnOutput) -> list[DialectOutput]:
    """Handle a frame about the process, its turns or its offers."""
    match output:
        case ReadyFrame(token):
            state.is_ready = True
            return [ev.TokenBound(token)] if token else []
        case BeganFrame():
            return _on_began(state, output)
        case EndedFrame():
            return _on_ended(state, output)
        case AbsorbedFrame() | ReturnedFrame():
            _remove_offer(state, output.offer)
            return [_build_offer_event(output)]
        case BackgroundFrame(count):
            state.background = count
            return []
        case other:
            assert_never(other)


def _on_began(state: ScriptedState, output: BeganFrame) -> list[DialectOutput]:
    """Handle the start of a turn. A turn that steadyrun began is already open."""
    if output.by == "offer":
        _remove_offer(state, output.turn)
        own = ev.FollowupOwnTurn(output.turn, output.text or "")
        return [own, *begin_turn(state, output.turn, output.turn)]
    if output.by == "turn":
        state.text = None
        return [] if output.turn == state.turn else begin_turn(state, output.turn, output.turn)
    if state.turn is None:
        return begin_turn(state, output.turn, None)
    state.prelude = output.turn
    return [ev.Note(f"it had begun a turn of its own, {output.turn}, before it saw this one")]


def _on_ended(state: ScriptedState, output: EndedFrame) -> list[DialectOutput]:
    if output.turn == state.prelude:
        state.prelude = None
        return [ev.Note(f"its own turn {output.turn} ended: {output.status}")]
    text = state.text if output.result is None else output.result
    state.turn, state.text, state.asks = None, None, {}
    error = None if output.error is None else to_error(output.error)
    return [TurnEnded(output.status, text, output.usage, to_cost(output.cost_usd), error)]


def _remove_offer(state: ScriptedState, offer: str) -> None:
    state.offers = {name: text for name, text in state.offers.items() if name != offer}


def _build_offer_event(output: AbsorbedFrame | ReturnedFrame) -> ev.Event:
    if isinstance(output, AbsorbedFrame):
        return ev.FollowupAbsorbed(output.offer, output.text)
    return ev.FollowupReturned(output.offer, output.text, output.reason)
