"""What became of a follow-up? Claude Code says it by an echo, by a new turn, or when it is asked.

An echo proves that a message was taken; that there is none proves nothing.
"""

from collections.abc import Iterable, Mapping

from steadyrun.dialect import DialectOutput, TurnBegan, TurnEnded
from steadyrun.model import event as ev
from steadyrun.providers.claude import errors
from steadyrun.providers.claude.frames import ContentBlock, EchoLine, UserLine
from steadyrun.providers.claude.state import ClaudeOffer, ClaudeState, ClaudeTurn


def record_offer(state: ClaudeState, offer: str, told: UserLine) -> list[DialectOutput]:
    """A message was written while a turn was open."""
    text = read_text(told)
    state.offers[offer] = ClaudeOffer(text, told.uuid, is_later=told.priority == "later")
    return [ev.FollowupOffered(offer, _strip_escape(text))]


def on_echo(state: ClaudeState, line: EchoLine) -> list[DialectOutput]:
    """It has taken what it echoes: a prompt, a follow-up, or all that was queued in one."""
    texts = _collect_texts(line.message.content)
    turn = state.turn
    if turn and line.uuid is not None and line.uuid == turn.uuid:
        turn.is_echoed = state.has_echoes = True
        if line.timestamp is None and not turn.has_init:
            turn.doubtful_end = TurnEnded("failed", error=errors.build_duplicate_error())
    taken = _match_echo(state.offers, line.uuid, texts)
    state.has_echoes = state.has_echoes or bool(taken)
    if not taken:
        return []
    first = [] if turn else _begin_own_turn(state, taken.pop(0))
    return [*first, *_absorb(state, taken)]


def begin_unprompted_turn(state: ClaudeState, place: int) -> list[DialectOutput]:
    """A turn has begun that we did not begin: of what is queued, or of its own."""
    if state.offers and not state.is_woken:
        own = _begin_own_turn(state, next(iter(state.offers)))
        # The others that were queued are part of the same turn, as a rule; their echo tells.
        mark_boundary(state)
        return own
    state.begin_turn(ClaudeTurn(f"self{place}"))
    return [TurnBegan(None)]


def settle_recall(state: ClaudeState, name: str, *, is_cancelled: bool) -> list[DialectOutput]:
    """It has answered whether a message could still be taken back."""
    offer = state.offers.get(name)
    if offer is None:
        return []
    if is_cancelled:
        del state.offers[name]
        return [ev.FollowupReturned(name, _strip_escape(offer.text), "it was taken back")]
    # It reads its input in order: what is in no queue was taken, or will be in this turn.
    offer.is_gone = True
    return settle_offers(state) if state.turn is None and not state.is_running else []


def mark_boundary(state: ClaudeState) -> None:
    """Messages are taken where a turn begins or a tool has ended, before the model is asked."""
    for offer in state.offers.values():
        offer.is_ripe = offer.is_ripe or not offer.is_later


def mark_taken(state: ClaudeState) -> None:
    for offer in state.offers.values():
        offer.is_taken = offer.is_ripe


def settle_offers(state: ClaudeState) -> list[DialectOutput]:
    """A turn has ended, or nothing is left to do: what must have been taken by now.

    Only a process that was not told to echo is believed without one; we never start such.
    """
    taken = [
        name
        for name, offer in state.offers.items()
        if offer.is_gone or (offer.is_taken and not state.has_echoes)
    ]
    return _absorb(state, taken)


def return_all(state: ClaudeState) -> list[DialectOutput]:
    """The process is gone, and what it had not taken with it."""
    offers, state.offers = state.offers, {}
    return [
        ev.FollowupReturned(name, _strip_escape(offer.text), "the process ended")
        for name, offer in offers.items()
    ]


def read_text(told: UserLine) -> str:
    content = told.message.content
    if isinstance(content, str):
        return content
    texts = [each.get("text") for each in content if isinstance(each, dict)]
    return " ".join(each for each in texts if isinstance(each, str))


def _match_echo(offers: Mapping[str, ClaudeOffer], uuid: str | None, texts: list[str]) -> list[str]:
    """Only the last of many that are taken at once gives its uuid to the echo of them all."""
    names = list(offers)
    last = next((at for at, name in enumerate(names) if uuid and offers[name].uuid == uuid), None)
    if last is None:
        # A recording may have been made without any.
        return _match_texts(offers, [name for name in names if offers[name].uuid is None], texts)
    return [*_match_texts(offers, names[:last], texts), names[last]]


def _match_texts(
    offers: Mapping[str, ClaudeOffer], names: list[str], texts: list[str]
) -> list[str]:
    """Those whose text is there, each for itself."""
    left, found = list(texts), list[str]()
    for name in names:
        if offers[name].text in left:
            left.remove(offers[name].text)
            found.append(name)
    return found


def _begin_own_turn(state: ClaudeState, name: str) -> list[DialectOutput]:
    offer = state.offers.pop(name)
    is_command = offer.text.startswith("/")
    state.begin_turn(ClaudeTurn(name, offer.uuid, is_told=True, is_command=is_command))
    return [ev.FollowupOwnTurn(name, _strip_escape(offer.text)), TurnBegan(name)]


def _absorb(state: ClaudeState, names: Iterable[str]) -> list[DialectOutput]:
    return [ev.FollowupAbsorbed(name, _strip_escape(state.offers.pop(name).text)) for name in names]


def _strip_escape(text: str) -> str:
    """Without the space that keeps it from being taken for a command."""
    return text[1:] if text.startswith(" /") else text


def _collect_texts(content: str | list[ContentBlock]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.text for block in content if block.type == "text"]
