"""What became of a follow-up? Codex shows a message of ours when it takes it, and only that counts.

That it has accepted one says nothing: interrupted before it was taken, it is forgotten. One that is
taken at the very end of a turn may go unanswered: it is part of the conversation then, and a turn
in which nothing new is said gets it its answer.
"""

from steadyrun.dialect import DialectOutput, TurnBegan
from steadyrun.model import event as ev
from steadyrun.providers.codex.frames import CodexItem, SentParams, collect_texts
from steadyrun.providers.codex.state import CodexOffer, CodexState

_UNTAKEN = "the turn ended before it was taken"


def record_offer(
    state: CodexState, name: str, params: SentParams, *, is_queued: bool = False
) -> list[DialectOutput]:
    """A message was written that is not to begin a turn of ours."""
    text = " ".join(collect_texts(params.input))
    client = params.client_user_message_id
    state.offers[name] = CodexOffer(text, client, is_queued=is_queued)
    return [ev.FollowupOffered(name, text)]


def accept_offer(state: CodexState, name: str) -> list[DialectOutput]:
    """Too late, it is nobody's: the turn that it was for is over."""
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
    """A message is shown that the agent has from now on."""
    text = " ".join(collect_texts(item.content))
    for offer in state.offers.values():
        is_it = offer.client == item.client_id if offer.client else offer.text == text
        if is_it and not offer.is_queued and not offer.is_taken:
            offer.is_taken = True
            break
    return []


def absorb_taken(state: CodexState) -> list[DialectOutput]:
    """The model was asked since: what was taken before is part of this turn."""
    names = [name for name, offer in state.offers.items() if offer.is_taken]
    return [ev.FollowupAbsorbed(name, state.offers.pop(name).text) for name in names]


def settle_offers(state: CodexState) -> list[DialectOutput]:
    """The turn is over. What is not accepted yet will be refused, or is taken no more."""
    names = [
        name
        for name, offer in state.offers.items()
        if offer.is_accepted and not offer.is_queued and not offer.is_taken
    ]
    return [said for name in names for said in return_offer(state, name, _UNTAKEN)]


def find_unanswered(state: CodexState) -> str | None:
    """What was taken and has no answer."""
    return next((name for name, offer in state.offers.items() if offer.is_taken), None)


def begin_own_turn(state: CodexState, name: str) -> list[DialectOutput]:
    """A turn begins that is there for nothing else."""
    offer = state.offers.pop(name, None)
    fate: list[DialectOutput] = [ev.FollowupOwnTurn(name, offer.text)] if offer else []
    return [*fate, TurnBegan(name)]


def find_queued(state: CodexState) -> str | None:
    return next((name for name, offer in state.offers.items() if offer.is_queued), None)


def return_all(state: CodexState) -> list[DialectOutput]:
    """The process is gone, and what it had not taken with it."""
    taken = absorb_taken(state)
    names = list(state.offers)
    return [*taken, *(s for name in names for s in return_offer(state, name, "the process ended"))]
