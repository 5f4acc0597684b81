"""Tracks follow-ups: whether Claude Code absorbed them, gave them a turn, or dropped them.

Claude Code shows the outcome of a message by an echo, by a new turn, or in the reply to a recall.
An echo proves that the message was taken. A missing echo proves nothing.
"""

from collections.abc import Iterable, Mapping

from steadyrun.dialect import DialectOutput, TurnBegan, TurnEnded
from steadyrun.model import event as ev
from steadyrun.providers.claude import errors
from steadyrun.providers.claude.frames import ContentBlock, EchoLine, UserLine
from steadyrun.providers.claude.state import ClaudeOffer, ClaudeState, ClaudeTurn


def record_offer(state: ClaudeState, offer: str, line: UserLine) -> list[DialectOutput]:
    """Record a message that was written while a turn was open."""
    text = read_text(line)
    state.offers[offer] = ClaudeOffer(text, line.uuid, is_later=line.priority == "later")
    return [ev.FollowupOffered(offer, _strip_escape(text))]


def on_echo(state: ClaudeState, line: EchoLine) -> list[DialectOutput]:
    """Handle an echo: Claude Code took the prompt, a follow-up, or several queued ones at once."""
    texts = _collect_texts(line.message.content)
    turn = state.turn
    if turn and line.uuid is not None and line.uuid == turn.uuid:
        turn.is_echoed = state.has_echoes = True
        if line.timestamp is None and not turn.has_init:
            turn.doubtful_end = TurnEnded("failed", error=errors.DUPLICATE)
    taken = _match_echo(state.offers, line.uuid, texts)
    state.has_echoes = state.has_echoes or bool(taken)
    if not taken:
        return []
    first = [] if turn else _begin_own_turn(state, taken.pop(0))
    return [*first, *_absorb(state, taken)]


def begin_unprompted_turn(state: ClaudeState, place: int) -> list[DialectOutput]:
    """Open a turn that Claude Code began: for a queued follow-up, or by itself."""
    if state.offers and not state.has_ended_task:
        own = _begin_own_turn(state, next(iter(state.offers)))
        # The other queued messages usually become part of the same turn; their echo proves it.
        mark_boundary(state)
        return own
    state.begin_turn(ClaudeTurn(f"self{place}"))
    return [TurnBegan(None)]


def settle_recall(state: ClaudeState, name: str, *, is_cancelled: bool) -> list[DialectOutput]:
    """Handle the reply to a recall."""
    offer = state.offers.get(name)
    if offer is None:
        return []
    if is_cancelled:
        del state.offers[name]
        return [ev.FollowupReturned(name, _strip_escape(offer.text), "it was withdrawn")]
    # Claude Code reads its input in order. A message in no queue was taken, or will be taken by
    # this turn.
    offer.is_gone = True
    return settle_offers(state) if state.turn is None and not state.is_running else []


def mark_boundary(state: ClaudeState) -> None:
    """Mark the offers that may be taken now: a turn began or a tool ended."""
    for offer in state.offers.values():
        offer.is_ripe = offer.is_ripe or not offer.is_later


def mark_taken(state: ClaudeState) -> None:
    for offer in state.offers.values():
        offer.is_taken = offer.is_ripe


def settle_offers(state: ClaudeState) -> list[DialectOutput]:
    """Report the offers that were certainly taken when a turn ends or the queue is empty.

    Offers without an echo count only for a process without echoes. Steadyrun always starts
    Claude Code with echoes, so this concerns recordings only.
    """
    taken = [
        name
        for name, offer in state.offers.items()
        if offer.is_gone or (offer.is_taken and not state.has_echoes)
    ]
    return _absorb(state, taken)


def return_all(state: ClaudeState) -> list[DialectOutput]:
    """Return the offers that the process had not taken when it ended."""
    offers, state.offers = state.offers, {}
    return [
        ev.FollowupReturned(name, _strip_escape(offer.text), "the process ended")
        for name, offer in offers.items()
    ]


def read_text(line: UserLine) -> str:
    content = line.message.content
    if isinstance(content, str):
        return content
    texts = [each.get("text") for each in content if isinstance(each, dict)]
    return " ".join(each for each in texts if isinstance(each, str))


def _match_echo(offers: Mapping[str, ClaudeOffer], uuid: str | None, texts: list[str]) -> list[str]:
    """Find the offers that an echo confirms.

    If several are taken at once, their echo has the uuid of the last one.
    """
    names = list(offers)
    last = next((at for at, name in enumerate(names) if uuid and offers[name].uuid == uuid), None)
    if last is None:
        # The messages of a recording may have no uuid.
        return _match_texts(offers, [name for name in names if offers[name].uuid is None], texts)
    return [*_match_texts(offers, names[:last], texts), names[last]]


def _match_texts(
    offers: Mapping[str, ClaudeOffer], names: list[str], texts: list[str]
) -> list[str]:
    """Find the offers whose text is in the echo. Each text matches one offer."""
    remaining, matched = list(texts), list[str]()
    for name in names:
        if offers[name].text in remaining:
            remaining.remove(offers[name].text)
            matched.append(name)
    return matched


def _begin_own_turn(state: ClaudeState, name: str) -> list[DialectOutput]:
    offer = state.offers.pop(name)
    is_command = offer.text.startswith("/")
    state.begin_turn(ClaudeTurn(name, offer.uuid, is_requested=True, is_command=is_command))
    return [ev.FollowupOwnTurn(name, _strip_escape(offer.text)), TurnBegan(name)]


def _absorb(state: ClaudeState, names: Iterable[str]) -> list[DialectOutput]:
    return [ev.FollowupAbsorbed(name, _strip_escape(state.offers.pop(name).text)) for name in names]


def _strip_escape(text: str) -> str:
    """Remove the space that prevents a text from being read as a command."""
    return text[1:] if text.startswith(" /") else text


def _collect_texts(content: str | list[ContentBlock]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.text for block in content if block.type == "text"]
