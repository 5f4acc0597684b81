"""Answers the requests of a CLI from a script, for one or several APIs."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from steadyrun.testing.model_servers.anthropic import MessagesApi
from steadyrun.testing.model_servers.content import answer
from steadyrun.testing.model_servers.faults import Refusal
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest, HttpServer
from steadyrun.testing.model_servers.openai_chat import ChatApi
from steadyrun.testing.model_servers.openai_responses import ResponsesApi
from steadyrun.testing.model_servers.protocol import (
    ModelApi,
    ModelRequest,
    ServerStep,
    ServerSteps,
    build_refusal,
    build_reply,
)

# The step of a request, or a function that returns it.
StepSource = ServerStep | Callable[[ModelRequest], ServerStep]


class Script:
    """Selects the step that answers a request. Several threads may request steps at once.

    A script is a list of steps, one for each main request, or a function that answers all requests.
    A function in the list answers one request; it may return another function.
    """

    def __init__(self, steps: ServerSteps, fallback: StepSource | None = None) -> None:
        self._steps = [] if callable(steps) else list(steps)
        self._fallback = steps if callable(steps) else fallback
        self._place = 0
        self._lock = threading.Lock()

    def next_step(self, ask: ModelRequest) -> ServerStep:
        """Return the step for a request, or a refusal if there are no more steps."""
        with self._lock:
            place, self._place = self._place, self._place + 1
        step = self._steps[place] if place < len(self._steps) else self._fallback
        while callable(step):
            step = step(ask)
        if step is None:
            return Refusal("invalid", message=f"the script has no step number {place + 1}")
        return step

    @property
    def unused(self) -> int:
        """The number of steps that were not used yet."""
        with self._lock:
            return max(0, len(self._steps) - self._place)


class ModelServer(HttpServer):
    """Model APIs on 127.0.0.1. `script` answers main requests, `fallback` those after its end.

    Side requests of a CLI get the answer of `side` and use no step.
    """

    apis: Sequence[ModelApi]

    def __init__(
        self,
        script: ServerSteps,
        *,
        fallback: StepSource | None = None,
        side: Callable[[ModelRequest], ServerStep] = lambda ask: answer('{"title": "Simulated"}'),
        log: Path | None = None,
    ) -> None:
        super().__init__(self._build_reply, log)
        self.script = Script(script, fallback)
        self._side = side

    @property
    def model_requests(self) -> tuple[ModelRequest, ...]:
        """All requests to the model, main and side."""
        read = [wire.read_request(request) for request in self.requests for wire in self.apis]
        return tuple(ask for ask in read if ask is not None)

    @property
    def main_requests(self) -> tuple[ModelRequest, ...]:
        return tuple(ask for ask in self.model_requests if ask.is_main)

    @property
    def side_requests(self) -> tuple[ModelRequest, ...]:
        return tuple(ask for ask in self.model_requests if not ask.is_main)

    def wait_for_main_request(self, count: int) -> ModelRequest:
        """Wait until this many main requests arrived, and return the last of them."""
        self.wait_until(lambda: len(self.main_requests) >= count)
        return self.main_requests[count - 1]

    def _build_reply(self, request: HttpRequest) -> HttpReply:
        for wire in self.apis:
            reply = wire.answer_lookup(request)
            if reply is not None:
                return reply
        for wire in self.apis:
            ask = wire.read_request(request)
            if ask is not None:
                step = self.script.next_step(ask) if ask.is_main else self._side(ask)
                return build_reply(wire, step, ask)
        if request.method != "POST":
            return HttpReply(200, (b"{}",))
        return build_refusal(self.apis[0], Refusal("not_found", message=f"no path {request.path}"))


class MessagesServer(ModelServer):
    """The Messages API on 127.0.0.1."""

    apis = (MessagesApi(),)


class ResponsesServer(ModelServer):
    """The Responses API on 127.0.0.1."""

    apis = (ResponsesApi(),)


class ChatServer(ModelServer):
    """The Chat Completions API on 127.0.0.1."""

    apis = (ChatApi(),)


class AllApisServer(ModelServer):
    """The Messages, Responses and Chat Completions APIs on 127.0.0.1, with one script."""

    apis = (MessagesApi(), ResponsesApi(), ChatApi())
