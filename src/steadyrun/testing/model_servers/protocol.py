"""What must an API's wire say of itself? How it reads a request, and how it writes a step.

`reply_with` is the rest, which is the same for all: hang, refuse, stream in pieces or answer whole.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from steadyrun.testing.model_servers.content import Answer, pauses_in
from steadyrun.testing.model_servers.faults import Break, Cut, Gate, Hang, Pause, Refusal
from steadyrun.testing.model_servers.http_server import Reply, Request

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """A request for an answer, read. Messages, news and results are in the wire's own words."""

    request: Request
    is_main: bool
    """Is this the conversation, or a sub-agent's, and no question of the CLI's own?"""
    tools: tuple[str, ...]
    messages: Sequence[Fields]
    news: tuple[Fields, ...]
    """What has come since the model spoke last, the system's too."""
    results: tuple[Fields, ...]
    """The tool results among the news."""
    outputs: tuple[str, ...]
    """The texts of these results."""
    said: str
    """The user's own texts among the news, one a line; no reminders of the CLI's."""

    @property
    def body(self) -> Fields:
        return body_of(self.request)

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


Step = Answer | Refusal | Hang
Steps = Sequence[Step | Callable[[Ask], Step]] | Callable[[Ask], Step]


class Wire(Protocol):
    """An API: its requests, its answers, its errors."""

    def read(self, request: Request) -> Ask | None:
        """The request as one for an answer; None where it is none on this wire."""

    def look_up(self, request: Request) -> Reply | None:
        """What the API says without its model: models listed, tokens counted; else None."""

    def events(self, step: Answer, ask: Ask) -> Iterator[bytes | Pause]:
        """An answer as a stream."""

    def body(self, step: Answer, ask: Ask) -> Fields:
        """An answer in one object."""

    def refuse(self, refusal: Refusal) -> tuple[int, Fields]:
        """The status and the body of a refusal."""

    def break_off(self, error: Break, ask: Ask) -> bytes:
        """The event that ends a stream with an error."""


def reply_with(wire: Wire, step: Step, ask: Ask) -> Reply:
    """A step as HTTP, in the shape that was asked for."""
    if isinstance(step, Hang):
        return Reply(None, held=step.gate)
    if isinstance(step, Refusal):
        return refused(wire, step)
    if ask.is_stream:
        pieces = tuple(_until_broken(wire, wire.events(step, ask), ask))
        return Reply(200, pieces, step.headers, is_stream=True, held=step.held)
    return _unstreamed(wire, step, ask)


def refused(wire: Wire, refusal: Refusal) -> Reply:
    status, body = wire.refuse(refusal)
    return Reply(status, (json.dumps(body).encode(),), refusal.headers, held=refusal.held)


def _until_broken(
    wire: Wire, pieces: Iterator[bytes | Pause], ask: Ask
) -> Iterator[bytes | Gate | Cut]:
    for piece in pieces:
        if isinstance(piece, Break):
            yield wire.break_off(piece, ask)
            return
        yield piece


def _unstreamed(wire: Wire, step: Answer, ask: Ask) -> Reply:
    """The same in one body; its pauses stand before it, a break is an error's status."""
    waits: list[Gate | Cut] = []
    for pause in pauses_in(step):
        if isinstance(pause, Break):
            return refused(wire, Refusal(pause.fault, message=pause.message))
        waits.append(pause)
    body = json.dumps(wire.body(step, ask)).encode()
    return Reply(200, (*waits, body), step.headers, held=step.held)


def encode_event(data: Fields) -> bytes:
    """A server-sent event that is named by its type."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def body_of(request: Request) -> Fields:
    """The body, where it is an object."""
    return request.body if isinstance(request.body, dict) else {}


def is_post_to(request: Request, path: str) -> bool:
    return request.method == "POST" and request.path.partition("?")[0] == path


def since_last(messages: Sequence[Fields], is_model: Callable[[Fields], bool]) -> Sequence[Fields]:
    """The messages after the model's last one."""
    last = max((n for n, message in enumerate(messages) if is_model(message)), default=-1)
    return messages[last + 1 :]


def texts_in(content: Any) -> tuple[str, ...]:
    """The texts of a message's content: a string, or a list of typed parts."""
    if isinstance(content, str):
        return (content,)
    return tuple(str(part["text"]) for part in content or () if "text" in part)


def texts_of_user(messages: Sequence[Fields], reminders: tuple[str, ...] = ()) -> Iterator[str]:
    """What the user says in these messages, without what a CLI puts between it."""
    for message in messages:
        if message.get("role") == "user":
            texts = [text.strip() for text in texts_in(message.get("content"))]
            yield from (text for text in texts if not text.startswith(reminders))
