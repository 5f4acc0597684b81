"""What does an OpenAI-compatible API say? Its wire: Chat Completions, streamed or whole."""

from collections.abc import Iterator, Sequence

from steadyrun.testing.model_servers.content import Answer
from steadyrun.testing.model_servers.faults import Break, Pause, Refusal
from steadyrun.testing.model_servers.http_server import Reply, Request
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.openai_chat_stream import (
    END,
    chat_body,
    chat_events,
    encode_chunk,
)
from steadyrun.testing.model_servers.openai_common import list_models, refuse
from steadyrun.testing.model_servers.protocol import (
    Ask,
    Fields,
    body_of,
    is_post_to,
    since_last,
    texts_in,
    texts_of_user,
)

CHAT = "/v1/chat/completions"


class ChatWire:
    """The Chat Completions API."""

    def read(self, request: Request) -> Ask | None:
        if not is_post_to(request, CHAT):
            return None
        body = body_of(request)
        messages: Sequence[Fields] = body.get("messages") or ()
        news = tuple(since_last(messages, lambda message: message["role"] == "assistant"))
        results = tuple(message for message in news if message["role"] == "tool")
        return Ask(
            request,
            is_main=True,
            tools=tuple(_tools(body.get("tools") or ())),
            messages=messages,
            news=news,
            results=results,
            outputs=tuple("\n".join(texts_in(result.get("content"))) for result in results),
            said="\n".join(texts_of_user(news)),
        )

    def look_up(self, request: Request) -> Reply | None:
        return list_models(request)

    def events(self, step: Answer, ask: Ask) -> Iterator[bytes | Pause]:
        has_usage = bool((ask.body.get("stream_options") or {}).get("include_usage"))
        return chat_events(step, ask.name, ask.model, has_usage=has_usage)

    def body(self, step: Answer, ask: Ask) -> Fields:
        return chat_body(step, ask.name, ask.model)

    def refuse(self, refusal: Refusal) -> tuple[int, Fields]:
        return refuse(refusal)

    def break_off(self, error: Break, ask: Ask) -> bytes:
        _, body = refuse(Refusal(error.fault, message=error.message))
        return encode_chunk(body) + END


CHAT_WIRE = ChatWire()


class ChatServer(ModelServer):
    """The Chat Completions API on 127.0.0.1."""

    wires = (CHAT_WIRE,)


def _tools(tools: Sequence[Fields]) -> Iterator[str]:
    for tool in tools:
        yield str(tool.get(str(tool.get("type")), {}).get("name", ""))
