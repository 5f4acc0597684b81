"""What does the OpenAI Responses API say? Its wire: answers in items, streamed or whole.

script = [answer(call("exec_command", cmd="ls")), answer("It ", gate, "works.")]
with ResponsesServer(script) as server:
    start_codex(base_url=f"{server.url}/v1", ...)
"""

import json
from collections.abc import Iterator, Sequence

from steadyrun.testing.model_servers.content import Answer
from steadyrun.testing.model_servers.faults import Break, Pause, Refusal
from steadyrun.testing.model_servers.http_server import Reply, Request
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.openai_common import list_models, refuse
from steadyrun.testing.model_servers.openai_responses_stream import (
    failed_event,
    response_body,
    response_events,
)
from steadyrun.testing.model_servers.protocol import (
    Ask,
    Fields,
    body_of,
    is_post_to,
    since_last,
    texts_in,
    texts_of_user,
)

RESPONSES = "/v1/responses"
OURS = (
    "message",
    "additional_tools",
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
)
# what Codex puts before the user's words, in the user's name
REMINDERS = ("<environment_context>", "<turn_aborted>", "# AGENTS.md", "<user_instructions>")


class ResponsesWire:
    """The OpenAI Responses API."""

    def read(self, request: Request) -> Ask | None:
        if not is_post_to(request, RESPONSES):
            return None
        body = body_of(request)
        messages = _items(body.get("input"))
        news = tuple(since_last(messages, _is_the_models))
        results = tuple(item for item in news if str(item.get("type")).endswith("_output"))
        return Ask(
            request,
            is_main=_is_conversation(request),
            tools=tuple(_tools([*(body.get("tools") or ()), *_brought(messages)])),
            messages=messages,
            news=news,
            results=results,
            outputs=tuple("\n".join(texts_in(result.get("output"))) for result in results),
            said="\n".join(texts_of_user(news, REMINDERS)),
        )

    def look_up(self, request: Request) -> Reply | None:
        if "upgrade" in request.headers:
            return Reply(426, (b"{}",))  # no web socket here: Codex then takes HTTP at once
        return list_models(request)

    def events(self, step: Answer, ask: Ask) -> Iterator[bytes | Pause]:
        return response_events(step, ask.name, ask.model)

    def body(self, step: Answer, ask: Ask) -> Fields:
        return response_body(step, ask.name, ask.model)

    def refuse(self, refusal: Refusal) -> tuple[int, Fields]:
        return refuse(refusal)

    def break_off(self, error: Break, ask: Ask) -> bytes:
        return failed_event(error, ask.name, ask.model)


RESPONSES_WIRE = ResponsesWire()


class ResponsesServer(ModelServer):
    """The Responses API on 127.0.0.1."""

    wires = (RESPONSES_WIRE,)


def _items(given: str | Sequence[Fields] | None) -> Sequence[Fields]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given or ()


def _is_the_models(item: Fields) -> bool:
    is_ours = item.get("type", "message") in OURS
    return not is_ours or item.get("role") == "assistant"


def _brought(messages: Sequence[Fields]) -> Iterator[Fields]:
    """The tools among the messages, as Codex has them for its newest models."""
    for item in messages:
        if item.get("type") == "additional_tools":
            yield from item.get("tools") or ()


def _tools(tools: Sequence[Fields]) -> Iterator[str]:
    """Their names, those of a namespace's too; what has none is known by its type."""
    for tool in tools:
        yield str(tool.get("name") or tool.get("type", ""))
        yield from _tools(tool.get("tools") or ())


def _is_conversation(request: Request) -> bool:
    """Codex tells what it asks for; all but turns and compactions is its own business."""
    try:
        told = json.loads(request.headers.get("x-codex-turn-metadata", "{}"))
    except ValueError:
        return True
    return told.get("request_kind", "turn") in ("turn", "compaction")
