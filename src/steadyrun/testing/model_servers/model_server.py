"""Answers the requests of a CLI from a script, for one or several APIs.

`MessagesServer`, `ResponsesServer` and `ChatServer` have one API, `AllApisServer` has all.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from steadyrun.testing.model_servers.content import answer
from steadyrun.testing.model_servers.faults import Refusal
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest, HttpServer
from steadyrun.testing.model_servers.protocol import (
    ModelApi,
    ModelRequest,
    ServerStep,
    ServerSteps,
    build_refusal,
    build_reply,
)
from steadyrun.testing.model_servers.script import Script


class ModelServer(HttpServer):
    """Model APIs on 127.0.0.1. `script` answers main requests, `fallback` those after its end.

    Side requests of a CLI get the answer of `side` and use no step.
    """

    apis: Sequence[ModelApi]

    def __init__(
        self,
        script: ServerSteps,
        *,
        fallback: ServerStep | Callable[[ModelRequest], ServerStep] | None = None,
        side: Callable[[ModelRequest], ServerStep] = lambda ask: answer('{"title": "Simulated"}'),
        log: Path | None = None,
    ) -> None:
        super().__init__(self._build_reply, log)
        self.script: Script[ModelRequest, ServerStep] = Script(script, fallback)
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
