"""Simulates the Chat Completions API, streamed or whole."""

import json
from collections.abc import Iterator, Sequence
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
from steadyrun.testing.model_servers.faults import Break, Pause, Refusal
from steadyrun.testing.model_servers.http_server import HttpRequest
from steadyrun.testing.model_servers.openai_common import OpenAIApi
from steadyrun.testing.model_servers.protocol import (
    Fields,
    ModelRequest,
    collect_texts,
    collect_user_texts,
    is_post_to,
    read_body,
    take_new_items,
)

CHAT = "/v1/chat/completions"
END = b"data: [DONE]\n\n"


class ChatApi(OpenAIApi):
    """The Chat Completions API."""

    def read_request(self, request: HttpRequest) -> ModelRequest | None:
        if not is_post_to(request, CHAT):
            return None
        body = read_body(request)
        messages: Sequence[Fields] = body.get("messages") or ()
        new_items = tuple(take_new_items(messages, lambda message: message["role"] == "assistant"))
        results = tuple(message for message in new_items if message["role"] == "tool")
        return ModelRequest(
            request,
            is_main=True,
            tools=tuple(_list_tools(body.get("tools") or ())),
            messages=messages,
            new_items=new_items,
            results=results,
            outputs=tuple("\n".join(collect_texts(result.get("content"))) for result in results),
            user_text="\n".join(collect_user_texts(new_items)),
        )

    def stream_events(self, step: ModelAnswer, ask: ModelRequest) -> Iterator[bytes | Pause]:
        head = {**_build_head(ask), "object": "chat.completion.chunk"}
        for delta in _stream_all_deltas(step, ask.name):
            if isinstance(delta, Pause):
                yield delta
            else:
                choice = {"index": 0, "delta": delta, "finish_reason": None}
                yield _encode_chunk({**head, "choices": [choice]})
        last = {"index": 0, "delta": {}, "finish_reason": _find_stop(step)}
        yield _encode_chunk({**head, "choices": [last]})
        if (ask.body.get("stream_options") or {}).get("include_usage"):
            yield _encode_chunk({**head, "choices": [], "usage": _build_usage(step.tokens)})
        yield END

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for index, part in enumerate(iter_blocks(step)):
            match part:
                case TextBlock():
                    message["content"] = (message["content"] or "") + join_text(part)
                case ThinkingBlock():
                    message["reasoning_content"] = join_text(part)
                case CallBlock():
                    message.setdefault("tool_calls", []).append(
                        _build_call(part, f"{ask.name}_{index}")
                    )
                case RawBlock():
                    message.update(part.fields)
        choice = {"index": 0, "message": message, "finish_reason": _find_stop(step)}
        head = {**_build_head(ask), "object": "chat.completion"}
        return {**head, "choices": [choice], "usage": _build_usage(step.tokens)}

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        _, body = self.build_error(Refusal(error.fault, message=error.message))
        return _encode_chunk(body) + END


def _list_tools(tools: Sequence[Fields]) -> Iterator[str]:
    for tool in tools:
        yield str(tool.get(str(tool.get("type")), {}).get("name", ""))


def _encode_chunk(data: Fields) -> bytes:
    """Encode a server-sent event without a name."""
    return f"data: {json.dumps(data)}\n\n".encode()


def _stream_all_deltas(step: ModelAnswer, name: str) -> Iterator[Fields | Pause]:
    yield {"role": "assistant", "content": ""}
    calls = 0
    for index, part in number_parts(step):
        if isinstance(part, Pause):
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
    return step.stop or ("tool_calls" if step.has_calls else "stop")


def _build_head(ask: ModelRequest) -> dict[str, Any]:
    return {"id": f"chatcmpl_sim_{ask.name}", "created": 0, "model": ask.model}


def _build_usage(tokens: AnswerTokens) -> Fields:
    return {
        "prompt_tokens": tokens.whole_input,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        "completion_tokens": tokens.output,
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.whole_input + tokens.output,
    }
