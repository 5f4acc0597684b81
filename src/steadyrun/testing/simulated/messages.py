"""What does the Anthropic Messages API say? Its wire: answers in blocks, streamed or whole.

Requests of a conversation (they carry tools, or are streamed with no sign of an aside) get the
steps of the script. What a CLI asks by itself beside them gets an answer that harms nothing and
eats no step: tokens to count, a title, a quota probe. Both are in the log: `main_asks`,
`side_asks`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrun.testing.simulated.blocks import (
    Answer,
    Block,
    Call,
    Text,
    Thinking,
    Tokens,
    answer,
    call,
    text,
    thinking,
)
from steadyrun.testing.simulated.encoding import (
    encode_event,
    message_body,
    message_events,
    pauses_in,
)
from steadyrun.testing.simulated.faults import Break, Cut, Fault, Gate, Hang, Pause, Refusal
from steadyrun.testing.simulated.script import Script
from steadyrun.testing.simulated.server import Reply, Request, Server

__all__ = [
    "Answer",
    "Ask",
    "Block",
    "Call",
    "MessagesServer",
    "Step",
    "Steps",
    "Text",
    "Thinking",
    "Tokens",
    "answer",
    "call",
    "text",
    "thinking",
    "unified_limit",
]

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"

# status, type and words of each fault, as the API has them
ERRORS: Mapping[Fault, tuple[int, str, str]] = {
    "rate_limit": (429, "rate_limit_error", "This request would exceed your rate limit."),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "server": (500, "api_error", "Internal server error"),
    "auth": (401, "authentication_error", "invalid x-api-key"),
    "not_found": (404, "not_found_error", "model: there is none of that name"),
    "too_long": (
        400,
        "invalid_request_error",
        "prompt is too long: 250000 tokens > 200000 maximum",
    ),
    "invalid": (400, "invalid_request_error", "invalid request"),
}


def unified_limit(
    status: str, resets_at: int, window: str = "five_hour", used: float | None = None
) -> dict[str, str]:
    """The headers that tell a subscription's windows: allowed, allowed_warning or rejected."""
    short = {"five_hour": "5h", "seven_day": "7d"}.get(window, window)
    name = "anthropic-ratelimit-unified"
    headers = {
        f"{name}-status": status,
        f"{name}-reset": str(resets_at),
        f"{name}-representative-claim": window,
        f"{name}-{short}-status": status,
        f"{name}-{short}-reset": str(resets_at),
    }
    if used is not None:
        headers[f"{name}-{short}-utilization"] = f"{used:g}"
        headers[f"{name}-{short}-surpassed-threshold"] = f"{int(used * 10) / 10:g}"
    return headers


@dataclass(frozen=True)
class Ask:
    """A request for a message, read."""

    request: Request

    @property
    def body(self) -> Mapping[str, Any]:
        return self.request.body if isinstance(self.request.body, dict) else {}

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(str(tool.get("name", "")) for tool in self.body.get("tools") or ())

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        return self.body.get("messages") or ()

    @property
    def is_main(self) -> bool:
        """Is this the conversation, or a sub-agent's, and no question of the CLI's own?"""
        is_message = self.request.path.partition("?")[0] == MESSAGES
        return is_message and (bool(self.tools) or not self._is_aside)

    @property
    def _is_aside(self) -> bool:
        """Titles want a schema or switch thinking off, probes want one token; no tools in both."""
        has_schema = "format" in (self.body.get("output_config") or {})
        is_thoughtless = (self.body.get("thinking") or {}).get("type") == "disabled"
        is_probe = self.body.get("max_tokens") == 1
        return has_schema or is_thoughtless or is_probe or not self.is_stream

    @property
    def news(self) -> tuple[Mapping[str, Any], ...]:
        """The blocks of all messages since the model spoke last, the system's too."""
        return tuple(block for message in self._latest for block in _blocks(message))

    @property
    def results(self) -> tuple[Mapping[str, Any], ...]:
        """The tool results among the news."""
        return tuple(block for block in self.news if block.get("type") == "tool_result")

    @property
    def said(self) -> str:
        """The user's own texts among the news, one a line; no reminders of the CLI's."""
        messages = [message for message in self._latest if message["role"] == "user"]
        blocks = [block for message in messages for block in _blocks(message)]
        texts = [str(block["text"]).strip() for block in blocks if block.get("type") == "text"]
        return "\n".join(text for text in texts if not text.startswith("<system-reminder>"))

    @property
    def _latest(self) -> Sequence[Mapping[str, Any]]:
        roles = [message["role"] for message in self.messages]
        last = max((n for n, role in enumerate(roles) if role == "assistant"), default=-1)
        return self.messages[last + 1 :]


def _blocks(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content") or ()
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Step = Answer | Refusal | Hang
Steps = Sequence[Step | Callable[[Ask], Step]] | Callable[[Ask], Step]


class MessagesServer(Server):
    """The Messages API on 127.0.0.1; `script` answers main requests, `rest` those after it."""

    def __init__(
        self,
        script: Steps,
        *,
        rest: Step | Callable[[Ask], Step] | None = None,
        side: Callable[[Ask], Step] = lambda ask: answer('{"title": "Simulated"}'),
        log: Path | None = None,
    ) -> None:
        super().__init__(self._answer, log)
        self.script: Script[Ask, Step] = Script(script, rest)
        self._side = side

    @property
    def asks(self) -> tuple[Ask, ...]:
        """All requests for messages, main and side."""
        posted = [request for request in self.requests if request.method == "POST"]
        return tuple(Ask(request) for request in posted if MESSAGES in request.path)

    @property
    def main_asks(self) -> tuple[Ask, ...]:
        return tuple(ask for ask in self.asks if ask.is_main)

    @property
    def side_asks(self) -> tuple[Ask, ...]:
        return tuple(ask for ask in self.asks if not ask.is_main)

    def wait_for_main(self, count: int) -> Ask:
        """Wait until so many main requests have come; return the last of them."""
        self.wait_until(lambda: len(self.main_asks) >= count)
        return self.main_asks[count - 1]

    def _answer(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        if request.method != "POST":
            return Reply(200, (b"{}",))
        if path == COUNT:
            count = len(json.dumps(request.body)) // 4
            return Reply(200, (json.dumps({"input_tokens": count}).encode(),))
        if path != MESSAGES:
            return Reply(404, (_error_body("not_found_error", f"no such path: {path}"),))
        ask = Ask(request)
        step = self.script.next_step(ask) if ask.is_main else self._side(ask)
        return reply_with(step, ask)


def reply_with(step: Step, ask: Ask) -> Reply:
    """A step as HTTP, in the shape that was asked for."""
    if isinstance(step, Hang):
        return Reply(None, held=step.gate)
    if isinstance(step, Refusal):
        return _refused(step)
    return _streamed(step, ask) if ask.is_stream else _unstreamed(step, ask)


def _refused(refusal: Refusal) -> Reply:
    status, kind, words = ERRORS[refusal.fault]
    body = _error_body(kind, refusal.message or words)
    return Reply(status, (body,), refusal.headers, held=refusal.held)


def _error_body(kind: str, message: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


def _streamed(step: Answer, ask: Ask) -> Reply:
    events = message_events(step, str(ask.request.number), ask.model)
    pieces = tuple(_until_broken(events))
    return Reply(200, pieces, step.headers, is_stream=True, held=step.held)


def _until_broken(pieces: Iterator[bytes | Pause]) -> Iterator[bytes | Gate | Cut]:
    for piece in pieces:
        if isinstance(piece, Break):
            _, kind, words = ERRORS[piece.fault]
            error = {"type": kind, "message": piece.message or words}
            yield encode_event({"type": "error", "error": error})
            return
        yield piece


def _unstreamed(step: Answer, ask: Ask) -> Reply:
    """The same in one body; its pauses stand before it, a break is an error's status."""
    waits: list[Gate | Cut] = []
    for pause in pauses_in(step):
        if isinstance(pause, Break):
            return _refused(Refusal(pause.fault, message=pause.message))
        waits.append(pause)
    body = message_body(step, str(ask.request.number), ask.model)
    return Reply(200, (*waits, body), step.headers, held=step.held)
