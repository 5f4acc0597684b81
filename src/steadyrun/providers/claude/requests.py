"""What is said to Claude Code? Lines that it can read: any other would end its process."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from steadyrun.dialect import Offer, Send, Turn, Verdict
from steadyrun.providers.claude.frames import (
    AnswerLine,
    ClaudeInput,
    ControlAnswer,
    ControlRequest,
    Decision,
    RequestLine,
    UserLine,
    UserMessage,
)
from steadyrun.providers.claude.launch import build_content, to_uuid
from steadyrun.providers.claude.state import ClaudeApproval

# How the keys begin of lines that tell something; what follows is the turn's or the offer's name.
BEGIN, OFFER = "begin", "offer"
_MODE = "mode:"


def build_open() -> Send:
    return _build_request("open", ControlRequest("initialize"))


def build_set_model(turn: str, model: str) -> Send:
    return _build_request(f"model:{turn}", ControlRequest("set_model", model=model))


def build_set_mode(turn: str, mode: str) -> Send:
    return _build_request(f"{_MODE}{turn}", ControlRequest("set_permission_mode", mode=mode))


def parse_mode_turn(request: str) -> str | None:
    """The turn that a request for a mode was made for; None if we did not make it."""
    return request.removeprefix(_MODE) if request.startswith(_MODE) else None


def build_turn(turn: Turn) -> Send:
    message = UserMessage("user", build_content(turn.text, turn.images))
    return _encode(f"{BEGIN}:{turn.key}", UserLine(message, to_uuid(turn.key)))


def build_offer(offer: Offer, process: str) -> Send:
    """A message that was offered to another process of the same conversation is another one.

    Claude Code drops what has a uuid that is in its log, although nobody may have answered it.
    """
    message = UserMessage("user", build_content(offer.text))
    return _encode(f"{OFFER}:{offer.id}", UserLine(message, to_uuid(f"{process}/{offer.id}")))


def build_recall(offer: str, uuid: str) -> Send:
    return _build_request(
        f"recall:{offer}", ControlRequest("cancel_async_message", message_uuid=uuid)
    )


def build_interrupt(turn: str) -> Send:
    return _build_request(f"interrupt:{turn}", ControlRequest("interrupt"))


def build_decision(approval: str, ask: ClaudeApproval, verdict: Verdict) -> Send:
    """Allowed without a word about its input, a tool would be called with none."""
    if verdict.is_allowed:
        given = ask.input if verdict.input is None else msgspec.json.encode(verdict.input)
        is_lasting = verdict.always and ask.rules is not None
        rules = Raw(ask.rules or b"") if is_lasting else UNSET
        decision = Decision("allow", Raw(given), updated_permissions=rules)
    else:
        message = verdict.message or "this was not allowed"
        decision = Decision("deny", message=message, interrupt=verdict.ends_turn)
    answer = ControlAnswer("success", ask.request, decision)
    return _encode(f"decide:{approval}", AnswerLine(answer))


def build_session_rules(suggested: Any) -> bytes | None:
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


def build_decline(place: int, request: str) -> Send:
    """Without an answer it would wait for ever."""
    answer = ControlAnswer("error", request, error="this is not supported")
    return _encode(f"decline:{place}", AnswerLine(answer))


def _build_request(key: str, request: ControlRequest) -> Send:
    return _encode(key, RequestLine(key, request))


def _encode(key: str, told: ClaudeInput) -> Send:
    return Send(key, msgspec.json.encode(told))
