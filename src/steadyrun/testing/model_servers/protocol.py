"""What must an API's wire say of itself? How it reads a request, and how it writes a step.

`reply_with` is the rest, which is the same for all: hang, refuse, stream in pieces or answer whole.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from steadyrun.testing.model_servers.content import ModelAnswer, iter_pauses
from steadyrun.testing.model_servers.faults import Break, Cut, Hang, Pause, Refusal, StreamGate
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class ModelRequest:
    """A request for an answer, read. Messages, news and results are in the wire's own words."""

    request: HttpRequest
    is_main: bool
    """Is this the conversation, or a sub-agent's, and no question of the CLI's own?"""
    tools: tuple[str, ...]
    messages: Sequence[Fields]
    new_items: tuple[Fields, ...]
    """What has come since the model spoke last, the system's too."""
    results: tuple[Fields, ...]
    """The tool results among the news."""
    outputs: tuple[str, ...]
    """The texts of these results."""
    user_text: str
    """The user's own texts among the news, one a line; no reminders of the CLI's."""

    @property
    def body(self) -> Fields:
        return read_body(self.request)

    @property
    def name(self) -> str:
        """What makes the ids of its answer its own."""
        return str(self.request.number)

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True


ServerStep = ModelAnswer | Refusal | Hang
ServerSteps = (
    Sequence[ServerStep | Callable[[ModelRequest], ServerStep]]
    | Callable[[ModelRequest], ServerStep]
)


class ModelApi(Protocol):
    """An API: its requests, its answers, its errors."""

    def read_request(self, request: HttpRequest) -> ModelRequest | None:
        """The request as one for an answer; None where it is none on this wire."""

    def answer_lookup(self, request: HttpRequest) -> HttpReply | None:
        """What the API says without its model: models listed, tokens counted; else None."""

    def stream_events(self, step: ModelAnswer, ask: ModelRequest) -> Iterator[bytes | Pause]:
        """An answer as a stream."""

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        """An answer in one object."""

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        """The status and the body of a refusal."""

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        """The event that ends a stream with an error."""


def build_reply(wire: ModelApi, step: ServerStep, ask: ModelRequest) -> HttpReply:
    """A step as HTTP, in the shape that was asked for."""
    if isinstance(step, Hang):
        return HttpReply(None, held=step.gate)
    if isinstance(step, Refusal):
        return build_refusal(wire, step)
    if ask.is_stream:
        pieces = tuple(_stop_at_break(wire, wire.stream_events(step, ask), ask))
        return HttpReply(200, pieces, step.headers, is_stream=True, held=step.held)
    return _build_whole_reply(wire, step, ask)


def build_refusal(wire: ModelApi, refusal: Refusal) -> HttpReply:
    status, body = wire.build_error(refusal)
    return HttpReply(status, (json.dumps(body).encode(),), refusal.headers, held=refusal.held)


def _stop_at_break(
    wire: ModelApi, pieces: Iterator[bytes | Pause], ask: ModelRequest
) -> Iterator[bytes | StreamGate | Cut]:
    for piece in pieces:
        if isinstance(piece, Break):
            yield wire.build_break(piece, ask)
            return
        yield piece


def _build_whole_reply(wire: ModelApi, step: ModelAnswer, ask: ModelRequest) -> HttpReply:
    """The same in one body; its pauses stand before it, a break is an error's status."""
    waits: list[StreamGate | Cut] = []
    for pause in iter_pauses(step):
        if isinstance(pause, Break):
            return build_refusal(wire, Refusal(pause.fault, message=pause.message))
        waits.append(pause)
    body = json.dumps(wire.build_body(step, ask)).encode()
    return HttpReply(200, (*waits, body), step.headers, held=step.held)


def encode_event(data: Fields) -> bytes:
    """A server-sent event that is named by its type."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def read_body(request: HttpRequest) -> Fields:
    """The body, where it is an object."""
    return request.body if isinstance(request.body, dict) else {}


def is_post_to(request: HttpRequest, path: str) -> bool:
    return request.method == "POST" and request.path.partition("?")[0] == path


def take_new_items(
    messages: Sequence[Fields], is_model: Callable[[Fields], bool]
) -> Sequence[Fields]:
    """The messages after the model's last one."""
    last = max((n for n, message in enumerate(messages) if is_model(message)), default=-1)
    return messages[last + 1 :]


def collect_texts(content: Any) -> tuple[str, ...]:
    """The texts of a message's content: a string, or a list of typed parts."""
    if isinstance(content, str):
        return (content,)
    return tuple(str(part["text"]) for part in content or () if "text" in part)


def collect_user_texts(
    messages: Sequence[Fields], reminders: tuple[str, ...] = ()
) -> Iterator[str]:
    """What the user says in these messages, without what a CLI puts between it."""
    for message in messages:
        if message.get("role") == "user":
            texts = [text.strip() for text in collect_texts(message.get("content"))]
            yield from (text for text in texts if not text.startswith(reminders))
