"""Encodes an answer for the Messages API, as events of a stream or as one body."""

from collections.abc import Iterator, Mapping
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
from steadyrun.testing.model_servers.faults import Break, Cut, Pause, StreamGate
from steadyrun.testing.model_servers.protocol import encode_event


def stream_message(step: ModelAnswer, name: str, model: str) -> Iterator[bytes | Pause]:
    """Encode the events of a stream; `name` makes the ids of this answer unique."""
    yield encode_event({"type": "message_start", "message": _build_opening(step, name, model)})
    yield encode_event({"type": "ping"})
    for index, part in number_parts(step):
        if isinstance(part, StreamGate | Cut | Break):
            yield part
        else:
            yield from _stream_block(part, index, f"{name}_{index}")
    delta = {"stop_reason": _find_stop(step), "stop_sequence": None}
    usage = _build_usage(step.tokens, step.tokens.output)
    yield encode_event({"type": "message_delta", "delta": delta, "usage": usage})
    yield encode_event({"type": "message_stop"})


def build_message(step: ModelAnswer, name: str, model: str) -> Mapping[str, Any]:
    """Build the whole answer as one object."""
    blocks = [_build_block(part, f"{name}_{index}") for index, part in enumerate(iter_blocks(step))]
    closing = {"content": blocks, "stop_reason": _find_stop(step)}
    usage = _build_usage(step.tokens, step.tokens.output)
    return {**_build_opening(step, name, model), **closing, "usage": usage}


def _find_stop(step: ModelAnswer) -> str:
    has_calls = any(isinstance(part, CallBlock) for part in step.parts)
    return step.stop or ("tool_use" if has_calls else "end_turn")


def _build_opening(step: ModelAnswer, name: str, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_sim_{name}",
        "type": "message",
        "role": "assistant",
        "model": model,
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


def _build_block(part: AnswerBlock, place: str) -> Mapping[str, Any]:
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
        if isinstance(delta, StreamGate | Cut | Break):
            yield delta
        else:
            yield encode_event({"type": "content_block_delta", "index": index, "delta": delta})
    yield encode_event({"type": "content_block_stop", "index": index})


def _build_empty_block(part: AnswerBlock, place: str) -> Mapping[str, Any]:
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
