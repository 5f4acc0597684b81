"""Simulates the Anthropic Messages API, streamed or whole.

Requests of a conversation get the steps of the script: they have tools, or are streamed and not a
side request. Side requests of a CLI (counting tokens, a title, a quota probe) get a harmless answer
and use no step. Both are recorded, as `main_requests` and `side_requests`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from steadyrun.testing.model_servers.content import (
    AnswerBlock,
    AnswerTokens,
    CallBlock,
    ModelAnswer,
    RawBlock,
    ThinkingBlock,
    encode_input,
    iter_blocks,
    join_text,
    number_parts,
    split_in_two,
)
from steadyrun.testing.model_servers.faults import Break, Fault, Pause, Refusal
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest
from steadyrun.testing.model_servers.protocol import (
    Fields,
    ModelRequest,
    collect_texts,
    collect_user_texts,
    encode_event,
    is_post_to,
    read_body,
    take_new_items,
)

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
        yield encode_event({"type": "message_start", "message": _build_opening(step, ask)})
        yield encode_event({"type": "ping"})
        for index, part in number_parts(step):
            if isinstance(part, Pause):
                yield part
            else:
                yield from _stream_block(part, index, f"{ask.name}_{index}")
        delta = {"stop_reason": _find_stop(step), "stop_sequence": None}
        usage = _build_usage(step.tokens, step.tokens.output)
        yield encode_event({"type": "message_delta", "delta": delta, "usage": usage})
        yield encode_event({"type": "message_stop"})

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        blocks = [_build_block(part, f"{ask.name}_{n}") for n, part in enumerate(iter_blocks(step))]
        closing = {"content": blocks, "stop_reason": _find_stop(step)}
        usage = _build_usage(step.tokens, step.tokens.output)
        return {**_build_opening(step, ask), **closing, "usage": usage}

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        status, kind, words = ERRORS[refusal.fault]
        error = {"type": kind, "message": refusal.message or words, **refusal.detail}
        return status, {"type": "error", "error": error}

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        _, body = self.build_error(Refusal(error.fault, message=error.message))
        return encode_event(body)


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


def _find_stop(step: ModelAnswer) -> str:
    return step.stop or ("tool_use" if step.has_calls else "end_turn")


def _build_opening(step: ModelAnswer, ask: ModelRequest) -> dict[str, Any]:
    return {
        "id": f"msg_sim_{ask.name}",
        "type": "message",
        "role": "assistant",
        "model": ask.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _build_usage(step.tokens, 1),
    }


def _build_usage(tokens: AnswerTokens, output: int) -> dict[str, int]:
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cache_read,
        "output_tokens": output,
    }


def _build_block(part: AnswerBlock, place: str) -> Fields:
    if isinstance(part, RawBlock):
        return part.fields
    if isinstance(part, CallBlock):
        ident = part.id or f"toolu_sim_{place}"
        return {"type": "tool_use", "id": ident, "name": part.name, "input": part.input}
    if isinstance(part, ThinkingBlock):
        return {"type": "thinking", "thinking": join_text(part), "signature": "c2ln"}
    return {"type": "text", "text": join_text(part)}


def _stream_block(part: AnswerBlock, index: int, place: str) -> Iterator[bytes | Pause]:
    yield encode_event(
        {
            "type": "content_block_start",
            "index": index,
            "content_block": _build_empty_block(part, place),
        }
    )
    for delta in _stream_deltas(part):
        if isinstance(delta, Pause):
            yield delta
        else:
            yield encode_event({"type": "content_block_delta", "index": index, "delta": delta})
    yield encode_event({"type": "content_block_stop", "index": index})


def _build_empty_block(part: AnswerBlock, place: str) -> Fields:
    if isinstance(part, RawBlock):
        return part.fields
    if isinstance(part, CallBlock):
        return {**_build_block(part, place), "input": {}}
    if isinstance(part, ThinkingBlock):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _stream_deltas(part: AnswerBlock) -> Iterator[dict[str, Any] | Pause]:
    if isinstance(part, RawBlock):
        return
    if isinstance(part, CallBlock):
        for piece in ("", *split_in_two(encode_input(part))):
            yield {"type": "input_json_delta", "partial_json": piece}
        return
    name = "thinking" if isinstance(part, ThinkingBlock) else "text"
    for delta in part.pieces:
        yield {"type": f"{name}_delta", name: delta} if isinstance(delta, str) else delta
    if isinstance(part, ThinkingBlock):
        yield {"type": "signature_delta", "signature": "c2ln"}
