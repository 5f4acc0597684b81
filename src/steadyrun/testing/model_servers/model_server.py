"""Which server does a CLI take for its model? One that speaks any of the wires, by one script.

A server of one wire is `MessagesServer`, `ResponsesServer` or `ChatServer`; `EveryServer` has all.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from steadyrun.testing.model_servers.content import answer
from steadyrun.testing.model_servers.faults import Refusal
from steadyrun.testing.model_servers.http_server import Reply, Request, Server
from steadyrun.testing.model_servers.protocol import Ask, Step, Steps, Wire, refused, reply_with
from steadyrun.testing.model_servers.script import Script


class ModelServer(Server):
    """Models' APIs on 127.0.0.1; `script` answers main requests, `rest` those after it.

    What a CLI asks by itself beside them gets an answer that harms nothing and eats no step.
    """

    wires: Sequence[Wire]

    def __init__(
        self,
        script: Steps,
        *,
        rest: Step | Callable[[Ask], Step] | None = None,
        side: Callable[[Ask], Step] = lambda ask: answer('{"title": "Simulated"}'),
        log: Path | None = None,
    ) -> None:
        super().__init__(self._answer, log)
        self.script: Script[Ask, Step] = Script(script, rest)
        self._side = side

    @property
    def asks(self) -> tuple[Ask, ...]:
        """All requests for answers, main and side."""
        read = [wire.read(request) for request in self.requests for wire in self.wires]
        return tuple(ask for ask in read if ask is not None)

    @property
    def main_asks(self) -> tuple[Ask, ...]:
        return tuple(ask for ask in self.asks if ask.is_main)

    @property
    def side_asks(self) -> tuple[Ask, ...]:
        return tuple(ask for ask in self.asks if not ask.is_main)

    def wait_for_main(self, count: int) -> Ask:
        """Wait until so many main requests have come; return the last of them."""
        self.wait_until(lambda: len(self.main_asks) >= count)
        return self.main_asks[count - 1]

    def _answer(self, request: Request) -> Reply:
        for wire in self.wires:
            reply = wire.look_up(request)
            if reply is not None:
                return reply
        for wire in self.wires:
            ask = wire.read(request)
            if ask is not None:
                step = self.script.next_step(ask) if ask.is_main else self._side(ask)
                return reply_with(wire, step, ask)
        if request.method != "POST":
            return Reply(200, (b"{}",))
        return refused(self.wires[0], Refusal("not_found", message=f"no path {request.path}"))
