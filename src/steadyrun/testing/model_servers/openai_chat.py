"""Simulates the Chat Completions API, streamed or whole."""

from collections.abc import Iterator, Sequence

from steadyrun.testing.model_servers.content import ModelAnswer
from steadyrun.testing.model_servers.faults import Break, Pause, Refusal
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.openai_chat_stream import (
    END,
    build_chat,
    encode_chunk,
    stream_chat,
)
from steadyrun.testing.model_servers.openai_common import answer_models, build_error
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


class ChatApi:
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

    def answer_lookup(self, request: HttpRequest) -> HttpReply | None:
        return answer_models(request)

    def stream_events(self, step: ModelAnswer, ask: ModelRequest) -> Iterator[bytes | Pause]:
        has_usage = bool((ask.body.get("stream_options") or {}).get("include_usage"))
        return stream_chat(step, ask.name, ask.model, has_usage=has_usage)

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        return build_chat(step, ask.name, ask.model)

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        return build_error(refusal)

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        _, body = build_error(Refusal(error.fault, message=error.message))
        return encode_chunk(body) + END


CHAT_API = ChatApi()


class ChatServer(ModelServer):
    """The Chat Completions API on 127.0.0.1."""

    apis = (CHAT_API,)


def _list_tools(tools: Sequence[Fields]) -> Iterator[str]:
    for tool in tools:
        yield str(tool.get(str(tool.get("type")), {}).get("name", ""))
