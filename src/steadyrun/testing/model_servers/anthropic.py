"""Simulates the Anthropic Messages API, streamed or whole.

Requests of a conversation get the steps of the script: they have tools, or are streamed and not a
side request. Side requests of a CLI (counting tokens, a title, a quota probe) get a harmless answer
and use no step. Both are recorded, as `main_requests` and `side_requests`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from steadyrun.testing.model_servers.anthropic_stream import build_message, stream_message
from steadyrun.testing.model_servers.content import (
    AnswerBlock,
    AnswerTokens,
    CallBlock,
    ModelAnswer,
    TextBlock,
    ThinkingBlock,
    answer,
    call,
    text,
    thinking,
)
from steadyrun.testing.model_servers.faults import Break, Fault, Pause, Refusal
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.protocol import (
    Fields,
    ModelRequest,
    ServerStep,
    ServerSteps,
    collect_texts,
    collect_user_texts,
    encode_event,
    is_post_to,
    read_body,
    take_new_items,
)

__all__ = [
    "AnswerBlock",
    "AnswerTokens",
    "CallBlock",
    "MessagesServer",
    "ModelAnswer",
    "ModelRequest",
    "ServerStep",
    "ServerSteps",
    "TextBlock",
    "ThinkingBlock",
    "answer",
    "build_limit_headers",
    "call",
    "text",
    "thinking",
]

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
REMINDERS = ("<system-reminder>",)

# The status, type and message of each fault in this API.
ERRORS: Mapping[Fault, tuple[int, str, str]] = {
    "rate_limit": (429, "rate_limit_error", "This request would exceed your rate limit."),
    "usage_limit": (429, "rate_limit_error", "You have reached your usage limit."),
    "no_credit": (400, "invalid_request_error", "Your credit balance is too low."),
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


def build_limit_headers(
    status: str, resets_at: int, window: str = "five_hour", used: float | None = None
) -> dict[str, str]:
    """Build the headers of a subscription's window: allowed, allowed_warning or rejected."""
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


class MessagesApi:
    """The Anthropic Messages API."""

    def read_request(self, request: HttpRequest) -> ModelRequest | None:
        if not (is_post_to(request, MESSAGES) or is_post_to(request, COUNT)):
            return None
        body = read_body(request)
        messages: Sequence[Fields] = body.get("messages") or ()
        latest = take_new_items(messages, lambda message: message["role"] == "assistant")
        new_items = tuple(block for message in latest for block in _list_blocks(message))
        results = tuple(block for block in new_items if block.get("type") == "tool_result")
        return ModelRequest(
            request,
            is_main=is_post_to(request, MESSAGES) and _is_conversation(body),
            tools=tuple(str(tool.get("name", "")) for tool in body.get("tools") or ()),
            messages=messages,
            new_items=new_items,
            results=results,
            outputs=tuple("\n".join(collect_texts(result.get("content"))) for result in results),
            user_text="\n".join(collect_user_texts(latest, REMINDERS)),
        )

    def answer_lookup(self, request: HttpRequest) -> HttpReply | None:
        if not is_post_to(request, COUNT):
            return None
        count = len(json.dumps(request.body)) // 4
        return HttpReply(200, (json.dumps({"input_tokens": count}).encode(),))

    def stream_events(self, step: ModelAnswer, ask: ModelRequest) -> Iterator[bytes | Pause]:
        return stream_message(step, ask.name, ask.model)

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        return build_message(step, ask.name, ask.model)

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        status, kind, words = ERRORS[refusal.fault]
        error = {"type": kind, "message": refusal.message or words, **refusal.detail}
        return status, {"type": "error", "error": error}

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        _, body = self.build_error(Refusal(error.fault, message=error.message))
        return encode_event(body)


MESSAGES_API = MessagesApi()


def _is_conversation(body: Fields) -> bool:
    """Whether a request belongs to a conversation.

    Requests for titles have a schema or no thinking, probes want one token, and both have no tools.
    """
    has_schema = "format" in (body.get("output_config") or {})
    is_thoughtless = (body.get("thinking") or {}).get("type") == "disabled"
    is_probe = body.get("max_tokens") == 1
    is_aside = has_schema or is_thoughtless or is_probe or body.get("stream") is not True
    return bool(body.get("tools")) or not is_aside


def _list_blocks(message: Fields) -> Sequence[Fields]:
    content = message.get("content") or ()
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class MessagesServer(ModelServer):
    """The Messages API on 127.0.0.1."""

    apis = (MESSAGES_API,)
