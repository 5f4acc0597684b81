"""How does an answer look on the Chat Completions wire? As chunks of a stream, or as one body."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from steadyrun.testing.model_servers.content import (
    Answer,
    Block,
    Call,
    Raw,
    Text,
    Thinking,
    Tokens,
    blocks_in,
    halves,
    numbered,
    words_of,
    written_input,
)
from steadyrun.testing.model_servers.faults import Break, Cut, Gate, Pause
from steadyrun.testing.model_servers.protocol import Fields

END = b"data: [DONE]\n\n"


def chat_events(step: Answer, name: str, model: str, *, has_usage: bool) -> Iterator[bytes | Pause]:
    """The chunks of a stream; `name` makes the ids of this answer its own."""
    head = {**_head(name, model), "object": "chat.completion.chunk"}
    for delta in _all_deltas(step, name):
        if isinstance(delta, Gate | Cut | Break):
            yield delta
        else:
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            yield encode_chunk({**head, "choices": [choice]})
    last = {"index": 0, "delta": {}, "finish_reason": _stop(step)}
    yield encode_chunk({**head, "choices": [last]})
    if has_usage:
        yield encode_chunk({**head, "choices": [], "usage": _usage(step.tokens)})
    yield END


def chat_body(step: Answer, name: str, model: str) -> Mapping[str, Any]:
    """The whole answer in one object."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for index, part in enumerate(blocks_in(step)):
        match part:
            case Text():
                message["content"] = (message["content"] or "") + words_of(part)
            case Thinking():
                message["reasoning_content"] = words_of(part)
            case Call():
                message.setdefault("tool_calls", []).append(_call(part, f"{name}_{index}"))
            case Raw():
                message.update(part.fields)
    choice = {"index": 0, "message": message, "finish_reason": _stop(step)}
    head = {**_head(name, model), "object": "chat.completion"}
    return {**head, "choices": [choice], "usage": _usage(step.tokens)}


def encode_chunk(data: Fields) -> bytes:
    """A server-sent event without a name."""
    return f"data: {json.dumps(data)}\n\n".encode()


def _all_deltas(step: Answer, name: str) -> Iterator[Fields | Pause]:
    yield {"role": "assistant", "content": ""}
    calls = 0
    for index, part in numbered(step):
        if isinstance(part, Gate | Cut | Break):
            yield part
        elif isinstance(part, Call):
            yield from _call_deltas(part, calls, f"{name}_{index}")
            calls += 1
        else:
            yield from _deltas(part)


def _deltas(part: Block) -> Iterator[Fields | Pause]:
    match part:
        case Raw():
            yield part.fields
        case Text() | Thinking():
            name = "content" if isinstance(part, Text) else "reasoning_content"
            for said in part.pieces:
                yield {name: said} if isinstance(said, str) else said
        case Call():
            raise AssertionError("calls are numbered by who asks")


def _call_deltas(part: Call, number: int, place: str) -> Iterator[Fields]:
    kind, said = _words_for(part)
    opened = _call(part, place)
    yield {"tool_calls": [{"index": number, **opened, kind: {**opened[kind], said: ""}}]}
    for piece in halves(written_input(part)):
        yield {"tool_calls": [{"index": number, kind: {said: piece}}]}


def _call(part: Call, place: str) -> dict[str, Any]:
    kind, said = _words_for(part)
    called = {"name": part.name, said: written_input(part)}
    return {"id": part.id or f"call_sim_{place}", "type": kind, kind: called}


def _words_for(part: Call) -> tuple[str, str]:
    """What a call of this kind is, and what its input is called."""
    return ("custom", "input") if isinstance(part.input, str) else ("function", "arguments")


def _stop(step: Answer) -> str:
    has_calls = any(isinstance(part, Call) for part in step.parts)
    return step.stop or ("tool_calls" if has_calls else "stop")


def _head(name: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl_sim_{name}", "created": 0, "model": model}


def _usage(tokens: Tokens) -> Fields:
    return {
        "prompt_tokens": tokens.whole_input,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        "completion_tokens": tokens.output,
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.whole_input + tokens.output,
    }
