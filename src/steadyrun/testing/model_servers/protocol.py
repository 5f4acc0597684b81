"""Defines the contract of a simulated API: how it reads a request and encodes a step.

`build_reply` is the same for all APIs: it hangs, refuses, streams in pieces or answers whole.
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
    """A decoded request to the model. Messages, new items and results have the API's format."""

    request: HttpRequest
    is_main: bool
    """Whether it belongs to a conversation, and is not a side request of the CLI."""
    tools: tuple[str, ...]
    messages: Sequence[Fields]
    new_items: tuple[Fields, ...]
    """The items since the last answer of the model, including system messages."""
    results: tuple[Fields, ...]
    """The tool results among the new items."""
    outputs: tuple[str, ...]
    """The texts of these results."""
    user_text: str
    """The user's texts among the new items, one per line, without reminders of the CLI."""

    @property
    def body(self) -> Fields:
        return read_body(self.request)

    @property
    def name(self) -> str:
        """The part that makes the ids of its answer unique."""
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
    """An API: its requests, answers and errors."""

    def read_request(self, request: HttpRequest) -> ModelRequest | None:
        """Decode a request to the model; None if it is not one of this API."""

    def answer_lookup(self, request: HttpRequest) -> HttpReply | None:
        """Answer a request that needs no model, such as a list of models; else None."""

    def stream_events(self, step: ModelAnswer, ask: ModelRequest) -> Iterator[bytes | Pause]:
        """Encode an answer as a stream."""

    def build_body(self, step: ModelAnswer, ask: ModelRequest) -> Fields:
        """Build an answer as one object."""

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        """Build the status and the body of a refusal."""

    def build_break(self, error: Break, ask: ModelRequest) -> bytes:
        """Encode the event that ends a stream with an error."""


def build_reply(wire: ModelApi, step: ServerStep, ask: ModelRequest) -> HttpReply:
    """Build the HTTP reply of a step, streamed or whole as requested."""
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
    """Build a reply of one body. Its pauses come first, and a break becomes an error status."""
    waits: list[StreamGate | Cut] = []
    for pause in iter_pauses(step):
        if isinstance(pause, Break):
            return build_refusal(wire, Refusal(pause.fault, message=pause.message))
        waits.append(pause)
    body = json.dumps(wire.build_body(step, ask)).encode()
    return HttpReply(200, (*waits, body), step.headers, held=step.held)


def encode_event(data: Fields) -> bytes:
    """Encode a server-sent event that is named by its type."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def read_body(request: HttpRequest) -> Fields:
    """Return the body if it is an object, else an empty one."""
    return request.body if isinstance(request.body, dict) else {}


def is_post_to(request: HttpRequest, path: str) -> bool:
    return request.method == "POST" and request.path.partition("?")[0] == path


def take_new_items(
    messages: Sequence[Fields], is_model: Callable[[Fields], bool]
) -> Sequence[Fields]:
    """Return the messages after the last one of the model."""
    last = max((n for n, message in enumerate(messages) if is_model(message)), default=-1)
    return messages[last + 1 :]


def collect_texts(content: Any) -> tuple[str, ...]:
    """Collect the texts of a content, which is a string or a list of typed parts."""
    if isinstance(content, str):
        return (content,)
    return tuple(str(part["text"]) for part in content or () if "text" in part)


def collect_user_texts(
    messages: Sequence[Fields], reminders: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield the user's texts in these messages, without reminders of the CLI."""
    for message in messages:
        if message.get("role") == "user":
            texts = [text.strip() for text in collect_texts(message.get("content"))]
            yield from (text for text in texts if not text.startswith(reminders))
