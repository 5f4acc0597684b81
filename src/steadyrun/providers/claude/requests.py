"""What is said to Claude Code? Lines that it can read: any other would end its process."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from steadyrun.dialect import Offer, Send, Turn, Verdict
from steadyrun.providers.claude.frames import (
    Answer,
    AnswerLine,
    Decision,
    Message,
    Request,
    RequestLine,
    Told,
    UserLine,
)
from steadyrun.providers.claude.launch import content, uuid_of
from steadyrun.providers.claude.state import OpenAsk

# How the keys begin of lines that tell something; what follows is the turn's or the offer's name.
BEGIN, OFFER = "begin", "offer"
_MODE = "mode:"


def open_line() -> Send:
    return _request("open", Request("initialize"))


def model_line(turn: str, model: str) -> Send:
    return _request(f"model:{turn}", Request("set_model", model=model))


def mode_line(turn: str, mode: str) -> Send:
    return _request(f"{_MODE}{turn}", Request("set_permission_mode", mode=mode))


def mode_turn(request: str) -> str | None:
    """The turn that a request for a mode was made for; None if we did not make it."""
    return request.removeprefix(_MODE) if request.startswith(_MODE) else None


def turn_line(turn: Turn) -> Send:
    message = Message("user", content(turn.text, turn.images))
    return _send(f"{BEGIN}:{turn.key}", UserLine(message, uuid_of(turn.key)))


def offer_line(offer: Offer, process: str) -> Send:
    """A message that was offered to another process of the same conversation is another one.

    Claude Code drops what has a uuid that is in its log, although nobody may have answered it.
    """
    message = Message("user", content(offer.text))
    return _send(f"{OFFER}:{offer.id}", UserLine(message, uuid_of(f"{process}/{offer.id}")))


def recall_line(offer: str, uuid: str) -> Send:
    return _request(f"recall:{offer}", Request("cancel_async_message", message_uuid=uuid))


def interrupt_line(turn: str) -> Send:
    return _request(f"interrupt:{turn}", Request("interrupt"))


def decision_line(approval: str, ask: OpenAsk, verdict: Verdict) -> Send:
    """Allowed without a word about its input, a tool would be called with none."""
    if verdict.is_allowed:
        given = ask.input if verdict.input is None else msgspec.json.encode(verdict.input)
        is_lasting = verdict.always and ask.rules is not None
        rules = Raw(ask.rules or b"") if is_lasting else UNSET
        decision = Decision("allow", Raw(given), updated_permissions=rules)
    else:
        message = verdict.message or "this was not allowed"
        decision = Decision("deny", message=message, interrupt=verdict.ends_turn)
    answer = Answer("success", ask.request, decision)
    return _send(f"decide:{approval}", AnswerLine(answer))


def rules_of(suggested: Any) -> bytes | None:
    """What allows a tool for good: for this conversation only, whatever was suggested. A mode or a
    directory would allow more than what was asked for."""
    found = suggested if isinstance(suggested, list) else []
    rules = [
        {**each, "destination": "session"}
        for each in found
        if isinstance(each, dict)
        and (each.get("type"), each.get("behavior")) == ("addRules", "allow")
    ]
    return msgspec.json.encode(rules) if rules else None


def decline_line(place: int, request: str) -> Send:
    """Without an answer it would wait for ever."""
    answer = Answer("error", request, error="this is not supported")
    return _send(f"decline:{place}", AnswerLine(answer))


def _request(key: str, request: Request) -> Send:
    return _send(key, RequestLine(key, request))


def _send(key: str, told: Told) -> Send:
    return Send(key, msgspec.json.encode(told))
