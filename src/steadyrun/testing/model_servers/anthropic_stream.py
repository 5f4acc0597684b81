"""How does an answer look on the Messages wire? As events of a stream, or as one body."""

from collections.abc import Iterator, Mapping
from typing import Any

from steadyrun.testing.model_servers.content import (
    Answer,
    Block,
    Call,
    Raw,
    Thinking,
    Tokens,
    blocks_in,
    halves,
    numbered,
    words_of,
    written_input,
)
from steadyrun.testing.model_servers.faults import Break, Cut, Gate, Pause
from steadyrun.testing.model_servers.protocol import encode_event


def message_events(step: Answer, name: str, model: str) -> Iterator[bytes | Pause]:
    """The events of a stream; `name` makes the ids of this answer its own."""
    yield encode_event({"type": "message_start", "message": _opening(step, name, model)})
    yield encode_event({"type": "ping"})
    for index, part in numbered(step):
        if isinstance(part, Gate | Cut | Break):
            yield part
        else:
            yield from _block_events(part, index, f"{name}_{index}")
    delta = {"stop_reason": _stop(step), "stop_sequence": None}
    usage = _usage(step.tokens, step.tokens.output)
    yield encode_event({"type": "message_delta", "delta": delta, "usage": usage})
    yield encode_event({"type": "message_stop"})


def message_body(step: Answer, name: str, model: str) -> Mapping[str, Any]:
    """The whole answer in one object."""
    blocks = [_block(part, f"{name}_{index}") for index, part in enumerate(blocks_in(step))]
    closing = {"content": blocks, "stop_reason": _stop(step)}
    usage = _usage(step.tokens, step.tokens.output)
    return {**_opening(step, name, model), **closing, "usage": usage}


def _stop(step: Answer) -> str:
    has_calls = any(isinstance(part, Call) for part in step.parts)
    return step.stop or ("tool_use" if has_calls else "end_turn")


def _opening(step: Answer, name: str, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_sim_{name}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(step.tokens, 1),
    }


def _usage(tokens: Tokens, output: int) -> dict[str, int]:
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cache_read,
        "output_tokens": output,
    }


def _block(part: Block, place: str) -> Mapping[str, Any]:
    if isinstance(part, Raw):
        return part.fields
    if isinstance(part, Call):
        ident = part.id or f"toolu_sim_{place}"
        return {"type": "tool_use", "id": ident, "name": part.name, "input": part.input}
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": words_of(part), "signature": "c2ln"}
    return {"type": "text", "text": words_of(part)}


def _block_events(part: Block, index: int, place: str) -> Iterator[bytes | Pause]:
    yield encode_event(
        {"type": "content_block_start", "index": index, "content_block": _empty(part, place)}
    )
    for delta in _deltas(part):
        if isinstance(delta, Gate | Cut | Break):
            yield delta
        else:
            yield encode_event({"type": "content_block_delta", "index": index, "delta": delta})
    yield encode_event({"type": "content_block_stop", "index": index})


def _empty(part: Block, place: str) -> Mapping[str, Any]:
    if isinstance(part, Raw):
        return part.fields
    if isinstance(part, Call):
        return {**_block(part, place), "input": {}}
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _deltas(part: Block) -> Iterator[dict[str, Any] | Pause]:
    if isinstance(part, Raw):
        return
    if isinstance(part, Call):
        for piece in ("", *halves(written_input(part))):
            yield {"type": "input_json_delta", "partial_json": piece}
        return
    name = "thinking" if isinstance(part, Thinking) else "text"
    for said in part.pieces:
        yield {"type": f"{name}_delta", name: said} if isinstance(said, str) else said
    if isinstance(part, Thinking):
        yield {"type": "signature_delta", "signature": "c2ln"}
