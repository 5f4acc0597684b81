"""Tracks follow-ups: whether Codex absorbed them, gave them a turn, or dropped them.

Codex reports a user message when it takes it, and only that is evidence. An accepted message may
still be dropped if the turn is interrupted. A message that is taken at the very end of a turn may
get no answer, although it is part of the conversation. An empty turn then produces the answer.
"""

from steadyrun.dialect import DialectOutput, TurnBegan
from steadyrun.model import event as ev
from steadyrun.providers.codex.frames import CodexItem, SentParams, collect_texts
from steadyrun.providers.codex.state import CodexOffer, CodexState

_UNTAKEN = "the turn ended before it was taken"


def record_offer(
    state: CodexState, name: str, params: SentParams, *, is_queued: bool = False
) -> list[DialectOutput]:
    """Record a message that does not begin a turn."""
    text = " ".join(collect_texts(params.input))
    client = params.client_user_message_id
    state.offers[name] = CodexOffer(text, client, is_queued=is_queued)
    return [ev.FollowupOffered(name, text)]


def accept_offer(state: CodexState, name: str) -> list[DialectOutput]:
    """Record that Codex accepted an offer. After the end of its turn, the offer is returned."""
    offer = state.offers.get(name)
    if offer is None:
        return []
    offer.is_accepted = True
    is_late = state.turn is None and not offer.is_queued and not offer.is_taken
    return return_offer(state, name, _UNTAKEN) if is_late else []


def return_offer(state: CodexState, name: str, why: str) -> list[DialectOutput]:
    offer = state.offers.pop(name, None)
    return [] if offer is None else [ev.FollowupReturned(name, offer.text, why)]


def on_user_message(state: CodexState, item: CodexItem) -> list[DialectOutput]:
    """Handle a user message: it is part of the conversation from now on."""
    text = " ".join(collect_texts(item.content))
    for offer in state.offers.values():
        is_it = offer.client == item.client_id if offer.client else offer.text == text
        if is_it and not offer.is_queued and not offer.is_taken:
            offer.is_taken = True
            break
    return []


def absorb_taken(state: CodexState) -> list[DialectOutput]:
    """Report the taken offers as part of this turn, because the model was asked since."""
    names = [name for name, offer in state.offers.items() if offer.is_taken]
    return [ev.FollowupAbsorbed(name, state.offers.pop(name).text) for name in names]


def settle_offers(state: CodexState) -> list[DialectOutput]:
    """Return the accepted offers that the turn did not take.

    An offer that was not accepted yet stays open, because its reply still follows.
    """
    names = [
        name
        for name, offer in state.offers.items()
        if offer.is_accepted and not offer.is_queued and not offer.is_taken
    ]
    return [output for name in names for output in return_offer(state, name, _UNTAKEN)]


def find_unanswered(state: CodexState) -> str | None:
    """Find an offer that was taken but not answered."""
    return next((name for name, offer in state.offers.items() if offer.is_taken), None)


def begin_own_turn(state: CodexState, name: str) -> list[DialectOutput]:
    """Report that an offer became a turn of its own."""
    offer = state.offers.pop(name, None)
    fate: list[DialectOutput] = [ev.FollowupOwnTurn(name, offer.text)] if offer else []
    return [*fate, TurnBegan(name)]


def find_queued(state: CodexState) -> str | None:
    return next((name for name, offer in state.offers.items() if offer.is_queued), None)


def return_all(state: CodexState) -> list[DialectOutput]:
    """Return the offers that the process had not taken when it ended."""
    taken = absorb_taken(state)
    names = list(state.offers)
    return [*taken, *(s for name in names for s in return_offer(state, name, "the process ended"))]
