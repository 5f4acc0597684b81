"""Simulates the OpenAI Responses API, streamed or whole.

script = [answer(call("exec_command", cmd="ls")), answer("It ", gate, "works.")]
with ResponsesServer(script) as server:
    start_codex(base_url=f"{server.url}/v1", ...)
"""

import json
from collections.abc import Iterator, Sequence

from steadyrun.testing.model_servers.content import ModelAnswer
from steadyrun.testing.model_servers.faults import Break, Pause, Refusal
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.openai_common import answer_models, build_error
from steadyrun.testing.model_servers.openai_responses_stream import (
    build_failed_event,
    build_response,
    stream_response,
)
from steadyrun.testing.model_servers.protocol import (
    Fields,
    ModelRequest,
    collect_texts,
    collect_user_texts,
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


class ResponsesApi:
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
        return answer_models(request)

    def stream_events(self, step: ModelAnswer, ask: ModelRequest) -> Iterator[bytes | Pause]:
        return stream_response(step, ask.name, ask.model)

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        return build_response(step, ask.name, ask.model)

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        return build_error(refusal)

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        return build_failed_event(error, ask.name, ask.model)


RESPONSES_API = ResponsesApi()


class ResponsesServer(ModelServer):
    """The Responses API on 127.0.0.1."""

    apis = (RESPONSES_API,)


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
