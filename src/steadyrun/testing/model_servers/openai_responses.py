"""Simulates the OpenAI Responses API, streamed or whole.

script = [answer(call("exec_command", cmd="ls")), answer("It ", gate, "works.")]
with ResponsesServer(script) as server:
    start_codex(base_url=f"{server.url}/v1", ...)
"""

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
from steadyrun.testing.model_servers.faults import Break, Pause
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest
from steadyrun.testing.model_servers.openai_common import ERRORS, OpenAIApi
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

RESPONSES = "/v1/responses"
CLIENT_ITEMS = (
    "message",
    "additional_tools",
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
)
# The beginnings of texts that Codex adds to the user's messages.
REMINDERS = ("<environment_context>", "<turn_aborted>", "# AGENTS.md", "<user_instructions>")


class ResponsesApi(OpenAIApi):
    """The OpenAI Responses API."""

    def read_request(self, request: HttpRequest) -> ModelRequest | None:
        if not is_post_to(request, RESPONSES):
            return None
        body = read_body(request)
        messages = _list_items(body.get("input"))
        new_items = tuple(take_new_items(messages, _is_model_item))
        results = tuple(item for item in new_items if str(item.get("type")).endswith("_output"))
        return ModelRequest(
            request,
            is_main=_is_conversation(request),
            tools=tuple(
                _list_tools([*(body.get("tools") or ()), *_list_additional_tools(messages)])
            ),
            messages=messages,
            new_items=new_items,
            results=results,
            outputs=tuple("\n".join(collect_texts(result.get("output"))) for result in results),
            user_text="\n".join(collect_user_texts(new_items, REMINDERS)),
        )

    def answer_lookup(self, request: HttpRequest) -> HttpReply | None:
        if "upgrade" in request.headers:
            return HttpReply(426, (b"{}",))  # no web socket: Codex then uses HTTP at once
        return super().answer_lookup(request)

    def stream_events(self, step: ModelAnswer, ask: ModelRequest) -> Iterator[bytes | Pause]:
        opened = _build_head(ask, "in_progress")
        yield _encode("response.created", response=opened)
        yield _encode("response.in_progress", response=opened)
        for index, part in number_parts(step):
            if isinstance(part, Pause):
                yield part
            else:
                yield from _stream_item(part, index, f"{ask.name}_{index}")
        whole = self.build_body(step, ask)
        yield _encode(f"response.{whole['status']}", response=whole)

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        """Build an answer as one object; a stop reason marks it as incomplete."""
        items = [_build_item(part, f"{ask.name}_{n}") for n, part in enumerate(iter_blocks(step))]
        return {
            **_build_head(ask, "incomplete" if step.stop else "completed"),
            "incomplete_details": {"reason": step.stop} if step.stop else None,
            "output": items,
            "usage": _build_usage(step.tokens),
        }

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        fault = ERRORS[error.fault]
        details = {"code": fault.code or fault.type, "message": error.message or fault.message}
        return _encode("response.failed", response={**_build_head(ask, "failed"), "error": details})


def _list_items(given: str | Sequence[Fields] | None) -> Sequence[Fields]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given or ()


def _is_model_item(item: Fields) -> bool:
    is_ours = item.get("type", "message") in CLIENT_ITEMS
    return not is_ours or item.get("role") == "assistant"


def _list_additional_tools(messages: Sequence[Fields]) -> Iterator[Fields]:
    """Yield the tools among the messages, where Codex puts them for its newest models."""
    for item in messages:
        if item.get("type") == "additional_tools":
            yield from item.get("tools") or ()


def _list_tools(tools: Sequence[Fields]) -> Iterator[str]:
    """Yield the names of tools, also in namespaces; a tool without a name has its type."""
    for tool in tools:
        yield str(tool.get("name") or tool.get("type", ""))
        yield from _list_tools(tool.get("tools") or ())


def _is_conversation(request: HttpRequest) -> bool:
    """Whether a request is a turn or a compaction. Codex names the kind in a header."""
    try:
        metadata = json.loads(request.headers.get("x-codex-turn-metadata", "{}"))
    except ValueError:
        return True
    return metadata.get("request_kind", "turn") in ("turn", "compaction")


def _encode(kind: str, **fields: Any) -> bytes:
    return encode_event({"type": kind, **fields})


def _stream_item(part: AnswerBlock, index: int, place: str) -> Iterator[bytes | Pause]:
    done = _build_item(part, place)
    at = {"item_id": done.get("id", ""), "output_index": index}
    yield _encode(
        "response.output_item.added", output_index=index, item=_build_open_item(part, done)
    )
    match part:
        case TextBlock():
            yield from _stream_text(part, {**at, "content_index": 0})
        case ThinkingBlock():
            yield from _stream_summary(part, {**at, "summary_index": 0})
        case CallBlock():
            yield from _stream_call(part, at)
        case RawBlock():
            pass
    yield _encode("response.output_item.done", output_index=index, item=done)


def _stream_text(part: TextBlock, at: Fields) -> Iterator[bytes | Pause]:
    words = join_text(part)
    yield _encode("response.content_part.added", **at, part=_build_text(""))
    yield from _stream_deltas("response.output_text.delta", part, at)
    yield _encode("response.output_text.done", **at, text=words)
    yield _encode("response.content_part.done", **at, part=_build_text(words))


def _stream_summary(part: ThinkingBlock, at: Fields) -> Iterator[bytes | Pause]:
    kind, words = "response.reasoning_summary", join_text(part)
    yield _encode(f"{kind}_part.added", **at, part=_build_summary(""))
    yield from _stream_deltas(f"{kind}_text.delta", part, at)
    yield _encode(f"{kind}_text.done", **at, text=words)
    yield _encode(f"{kind}_part.done", **at, part=_build_summary(words))


def _stream_deltas(
    kind: str, part: TextBlock | ThinkingBlock, at: Fields
) -> Iterator[bytes | Pause]:
    for piece in part.pieces:
        yield _encode(kind, **at, delta=piece) if isinstance(piece, str) else piece


def _stream_call(part: CallBlock, at: Fields) -> Iterator[bytes]:
    is_custom, written = isinstance(part.input, str), encode_input(part)
    kind = "response.custom_tool_call_input" if is_custom else "response.function_call_arguments"
    for piece in split_in_two(written):
        yield _encode(f"{kind}.delta", **at, delta=piece)
    yield _encode(f"{kind}.done", **at, **{"input" if is_custom else "arguments": written})


def _build_item(part: AnswerBlock, place: str) -> dict[str, Any]:
    """Build a complete output item."""
    match part:
        case RawBlock():
            return dict(part.fields)
        case CallBlock():
            return _build_call(part, place)
        case ThinkingBlock():
            summary = [_build_summary(join_text(part))]
            return {"type": "reasoning", "id": f"rs_sim_{place}", "summary": summary}
        case TextBlock():
            phase = {"phase": part.phase} if part.phase else {}
            content = {"role": "assistant", "content": [_build_text(join_text(part))], **phase}
            ident = f"msg_sim_{place}"
            return {"type": "message", "id": ident, "status": "completed", **content}


def _build_call(part: CallBlock, place: str) -> dict[str, Any]:
    is_custom = isinstance(part.input, str)
    return {
        "type": "custom_tool_call" if is_custom else "function_call",
        "id": f"{'ctc' if is_custom else 'fc'}_sim_{place}",
        "status": "completed",
        "call_id": part.id or f"call_sim_{place}",
        "name": part.name,
        "input" if is_custom else "arguments": encode_input(part),
        **({"namespace": part.namespace} if part.namespace else {}),
    }


def _build_open_item(part: AnswerBlock, done: dict[str, Any]) -> dict[str, Any]:
    """Build an output item before its first delta."""
    match part:
        case RawBlock():
            return done
        case TextBlock():
            return {**done, "status": "in_progress", "content": []}
        case ThinkingBlock():
            return {**done, "summary": []}
        case CallBlock():
            key = "input" if isinstance(part.input, str) else "arguments"
            return {**done, "status": "in_progress", key: ""}


def _build_text(words: str) -> Fields:
    return {"type": "output_text", "text": words, "annotations": []}


def _build_summary(words: str) -> Fields:
    return {"type": "summary_text", "text": words}


def _build_head(ask: ModelRequest, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_sim_{ask.name}",
        "object": "response",
        "status": status,
        "model": ask.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }


def _build_usage(tokens: AnswerTokens) -> Fields:
    cached = {"cached_tokens": tokens.cache_read, "cache_write_tokens": tokens.cache_write}
    return {
        "input_tokens": tokens.whole_input,
        "input_tokens_details": cached,
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.whole_input + tokens.output,
    }
