"""How does an answer look on the Responses wire? As events of a stream, or as one body."""

from collections.abc import Iterator
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
from steadyrun.testing.model_servers.openai_common import ERRORS
from steadyrun.testing.model_servers.protocol import Fields, encode_event


def response_events(step: Answer, name: str, model: str) -> Iterator[bytes | Pause]:
    """The events of a stream; `name` makes the ids of this answer its own."""
    opened = _response(name, model, "in_progress")
    yield _event("response.created", response=opened)
    yield _event("response.in_progress", response=opened)
    for index, part in numbered(step):
        if isinstance(part, Gate | Cut | Break):
            yield part
        else:
            yield from _item_events(part, index, f"{name}_{index}")
    whole = response_body(step, name, model)
    yield _event(f"response.{whole['status']}", response=whole)


def failed_event(error: Break, name: str, model: str) -> bytes:
    """The event that ends a stream with an error."""
    known = ERRORS[error.fault]
    told = {"code": known.code or known.type, "message": error.message or known.message}
    return _event("response.failed", response={**_response(name, model, "failed"), "error": told})


def response_body(step: Answer, name: str, model: str) -> dict[str, Any]:
    """The whole answer in one object; a stop is why it is not complete."""
    items = [_item(part, f"{name}_{index}") for index, part in enumerate(blocks_in(step))]
    return {
        **_response(name, model, "incomplete" if step.stop else "completed"),
        "incomplete_details": {"reason": step.stop} if step.stop else None,
        "output": items,
        "usage": _usage(step.tokens),
    }


def _event(kind: str, **fields: Any) -> bytes:
    return encode_event({"type": kind, **fields})


def _item_events(part: Block, index: int, place: str) -> Iterator[bytes | Pause]:
    done = _item(part, place)
    at = {"item_id": done.get("id", ""), "output_index": index}
    yield _event("response.output_item.added", output_index=index, item=_opened(part, done))
    match part:
        case Text():
            yield from _text_events(part, {**at, "content_index": 0})
        case Thinking():
            yield from _summary_events(part, {**at, "summary_index": 0})
        case Call():
            yield from _call_events(part, at)
        case Raw():
            pass
    yield _event("response.output_item.done", output_index=index, item=done)


def _text_events(part: Text, at: Fields) -> Iterator[bytes | Pause]:
    words = words_of(part)
    yield _event("response.content_part.added", **at, part=_text(""))
    yield from _deltas("response.output_text.delta", part, at)
    yield _event("response.output_text.done", **at, text=words)
    yield _event("response.content_part.done", **at, part=_text(words))


def _summary_events(part: Thinking, at: Fields) -> Iterator[bytes | Pause]:
    kind, words = "response.reasoning_summary", words_of(part)
    yield _event(f"{kind}_part.added", **at, part=_summary(""))
    yield from _deltas(f"{kind}_text.delta", part, at)
    yield _event(f"{kind}_text.done", **at, text=words)
    yield _event(f"{kind}_part.done", **at, part=_summary(words))


def _deltas(kind: str, part: Text | Thinking, at: Fields) -> Iterator[bytes | Pause]:
    for said in part.pieces:
        yield _event(kind, **at, delta=said) if isinstance(said, str) else said


def _call_events(part: Call, at: Fields) -> Iterator[bytes]:
    is_custom, written = isinstance(part.input, str), written_input(part)
    kind = "response.custom_tool_call_input" if is_custom else "response.function_call_arguments"
    for piece in halves(written):
        yield _event(f"{kind}.delta", **at, delta=piece)
    yield _event(f"{kind}.done", **at, **{"input" if is_custom else "arguments": written})


def _item(part: Block, place: str) -> dict[str, Any]:
    """An output item, whole."""
    match part:
        case Raw():
            return dict(part.fields)
        case Call():
            return _call(part, place)
        case Thinking():
            summary = [_summary(words_of(part))]
            return {"type": "reasoning", "id": f"rs_sim_{place}", "summary": summary}
        case Text():
            phase = {"phase": part.phase} if part.phase else {}
            said = {"role": "assistant", "content": [_text(words_of(part))], **phase}
            ident = f"msg_sim_{place}"
            return {"type": "message", "id": ident, "status": "completed", **said}


def _call(part: Call, place: str) -> dict[str, Any]:
    is_custom = isinstance(part.input, str)
    return {
        "type": "custom_tool_call" if is_custom else "function_call",
        "id": f"{'ctc' if is_custom else 'fc'}_sim_{place}",
        "status": "completed",
        "call_id": part.id or f"call_sim_{place}",
        "name": part.name,
        "input" if is_custom else "arguments": written_input(part),
        **({"namespace": part.namespace} if part.namespace else {}),
    }


def _opened(part: Block, done: dict[str, Any]) -> dict[str, Any]:
    """The item as it is before anything has been said."""
    match part:
        case Raw():
            return done
        case Text():
            return {**done, "status": "in_progress", "content": []}
        case Thinking():
            return {**done, "summary": []}
        case Call():
            said = "input" if isinstance(part.input, str) else "arguments"
            return {**done, "status": "in_progress", said: ""}


def _text(words: str) -> Fields:
    return {"type": "output_text", "text": words, "annotations": []}


def _summary(words: str) -> Fields:
    return {"type": "summary_text", "text": words}


def _response(name: str, model: str, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_sim_{name}",
        "object": "response",
        "status": status,
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }


def _usage(tokens: Tokens) -> Fields:
    cached = {"cached_tokens": tokens.cache_read, "cache_write_tokens": tokens.cache_write}
    return {
        "input_tokens": tokens.whole_input,
        "input_tokens_details": cached,
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.whole_input + tokens.output,
    }
