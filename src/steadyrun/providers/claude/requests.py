"""Builds the lines that are written to Claude Code.

Claude Code exits when it reads a line that it cannot decode.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from steadyrun.dialect import Offer, Send, Turn, Verdict
from steadyrun.providers.claude import frames
from steadyrun.providers.claude.launch import build_content, to_uuid
from steadyrun.providers.claude.state import ClaudeApproval

# The prefixes of keys; the turn's key or the offer's id follows.
BEGIN, OFFER = "begin", "offer"
_MODE = "mode:"


def build_request(key: str, subtype: str, **fields: str) -> Send:
    """Build a control request, whose id is its key."""
    return _encode(key, frames.RequestLine(key, frames.ControlRequest(subtype, **fields)))


def build_set_mode(turn: str, mode: str) -> Send:
    return build_request(f"{_MODE}{turn}", "set_permission_mode", mode=mode)


def parse_mode_turn(request: str) -> str | None:
    """Return the turn that a mode was requested for; None if the request is not ours."""
    return request.removeprefix(_MODE) if request.startswith(_MODE) else None


def build_turn(turn: Turn) -> Send:
    message = frames.UserMessage("user", build_content(turn.text, turn.images))
    return _encode(f"{BEGIN}:{turn.key}", frames.UserLine(message, to_uuid(turn.key)))


def build_offer(offer: Offer, process: str) -> Send:
    """Build the line of a follow-up, with a uuid that is unique to the process.

    Claude Code drops a message whose uuid is already in the conversation, even if it was never
    answered. So a follow-up that is offered again to another process gets another uuid.
    """
    message = frames.UserMessage("user", build_content(offer.text))
    return _encode(
        f"{OFFER}:{offer.id}", frames.UserLine(message, to_uuid(f"{process}/{offer.id}"))
    )


def build_interrupt(turn: str) -> Send:
    return build_request(f"interrupt:{turn}", "interrupt")


def build_decision(approval: str, ask: ClaudeApproval, verdict: Verdict) -> Send:
    """Build the answer to an approval. It repeats the input, which would be empty otherwise."""
    if verdict.is_allowed:
        given = ask.input if verdict.input is None else msgspec.json.encode(verdict.input)
        is_lasting = verdict.always and ask.rules is not None
        rules = Raw(ask.rules or b"") if is_lasting else UNSET
        decision = frames.Decision("allow", Raw(given), updated_permissions=rules)
    else:
        message = verdict.message or "this was not allowed"
        decision = frames.Decision("deny", message=message, interrupt=verdict.ends_turn)
    answer = frames.ControlAnswer("success", ask.request, decision)
    return _encode(f"decide:{approval}", frames.AnswerLine(answer))


def build_session_rules(suggested: Any) -> bytes | None:
    """Build the rules that always allow a tool, limited to this conversation.

    Suggested modes and directories are left out, because they allow more than the request.
    """
    listed = suggested if isinstance(suggested, list) else []
    rules = [
        {**each, "destination": "session"}
        for each in listed
        if isinstance(each, dict)
        and (each.get("type"), each.get("behavior")) == ("addRules", "allow")
    ]
    return msgspec.json.encode(rules) if rules else None


def build_decline(place: int, request: str) -> Send:
    """Build the refusal of a request. Without an answer, Claude Code would wait forever."""
    answer = frames.ControlAnswer("error", request, error="this is not supported")
    return _encode(f"decline:{place}", frames.AnswerLine(answer))


def _encode(key: str, line: frames.ClaudeInput) -> Send:
    return Send(key, msgspec.json.encode(line))
