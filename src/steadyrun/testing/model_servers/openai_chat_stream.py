"""Encodes an answer for the Chat Completions API, as chunks of a stream or as one body."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from steadyrun.testing.model_servers.content import (
    AnswerBlock,
    AnswerTokens,
    CallBlock,
    ModelAnswer,
    RawBlock,
    TextBlock,
    ThinkingBlock,
    encode_input,
    iter_blocks,
    join_text,
    number_parts,
    split_in_two,
)
from steadyrun.testing.model_servers.faults import Break, Cut, Pause, StreamGate
from steadyrun.testing.model_servers.protocol import Fields

END = b"data: [DONE]\n\n"


def stream_chat(
    step: ModelAnswer, name: str, model: str, *, has_usage: bool
) -> Iterator[bytes | Pause]:
    """Encode the chunks of a stream; `name` makes the ids of this answer unique."""
    head = {**_build_head(name, model), "object": "chat.completion.chunk"}
    for delta in _stream_all_deltas(step, name):
        if isinstance(delta, StreamGate | Cut | Break):
            yield delta
        else:
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            yield encode_chunk({**head, "choices": [choice]})
    last = {"index": 0, "delta": {}, "finish_reason": _find_stop(step)}
    yield encode_chunk({**head, "choices": [last]})
    if has_usage:
        yield encode_chunk({**head, "choices": [], "usage": _build_usage(step.tokens)})
    yield END


def build_chat(step: ModelAnswer, name: str, model: str) -> Mapping[str, Any]:
    """Build the whole answer as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for index, part in enumerate(iter_blocks(step)):
        match part:
            case TextBlock():
                message["content"] = (message["content"] or "") + join_text(part)
            case ThinkingBlock():
                message["reasoning_content"] = join_text(part)
            case CallBlock():
                message.setdefault("tool_calls", []).append(_build_call(part, f"{name}_{index}"))
            case RawBlock():
                message.update(part.fields)
    choice = {"index": 0, "message": message, "finish_reason": _find_stop(step)}
    head = {**_build_head(name, model), "object": "chat.completion"}
    return {**head, "choices": [choice], "usage": _build_usage(step.tokens)}


def encode_chunk(data: Fields) -> bytes:
    """Encode a server-sent event without a name."""
    return f"data: {json.dumps(data)}\n\n".encode()


def _stream_all_deltas(step: ModelAnswer, name: str) -> Iterator[Fields | Pause]:
    yield {"role": "assistant", "content": ""}
    calls = 0
    for index, part in number_parts(step):
        if isinstance(part, StreamGate | Cut | Break):
            yield part
        elif isinstance(part, CallBlock):
            yield from _stream_call(part, calls, f"{name}_{index}")
            calls += 1
        else:
            yield from _stream_deltas(part)


def _stream_deltas(part: AnswerBlock) -> Iterator[Fields | Pause]:
    match part:
        case RawBlock():
            yield part.fields
        case TextBlock() | ThinkingBlock():
            name = "content" if isinstance(part, TextBlock) else "reasoning_content"
            for piece in part.pieces:
                yield {name: piece} if isinstance(piece, str) else piece
        case CallBlock():
            raise AssertionError("the caller numbers tool calls")


def _stream_call(part: CallBlock, number: int, place: str) -> Iterator[Fields]:
    kind, key = _find_call_keys(part)
    opened = _build_call(part, place)
    yield {"tool_calls": [{"index": number, **opened, kind: {**opened[kind], key: ""}}]}
    for piece in split_in_two(encode_input(part)):
        yield {"tool_calls": [{"index": number, kind: {key: piece}}]}


def _build_call(part: CallBlock, place: str) -> dict[str, Any]:
    kind, key = _find_call_keys(part)
    called = {"name": part.name, key: encode_input(part)}
    return {"id": part.id or f"call_sim_{place}", "type": kind, kind: called}


def _find_call_keys(part: CallBlock) -> tuple[str, str]:
    """Return the type of a call and the key of its input."""
    return ("custom", "input") if isinstance(part.input, str) else ("function", "arguments")


def _find_stop(step: ModelAnswer) -> str:
    has_calls = any(isinstance(part, CallBlock) for part in step.parts)
    return step.stop or ("tool_calls" if has_calls else "stop")


def _build_head(name: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl_sim_{name}", "created": 0, "model": model}


def _build_usage(tokens: AnswerTokens) -> Fields:
    return {
        "prompt_tokens": tokens.whole_input,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        "completion_tokens": tokens.output,
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.whole_input + tokens.output,
    }
