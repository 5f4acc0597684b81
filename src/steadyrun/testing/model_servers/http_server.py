"""Serves HTTP on 127.0.0.1 with threads, and records all requests.

It is independent of the API: `respond` returns an `HttpReply` for every `HttpRequest`. The pieces
of a reply are bytes and pauses. Each piece of a stream is sent as one chunk.
"""

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from steadyrun.testing.model_servers.faults import TIMEOUT_SECONDS, Cut, StreamGate

RequestFate = Literal["open", "answered", "cut", "left"]
SECRET_HEADERS = frozenset({"authorization", "x-api-key", "proxy-authorization", "cookie"})
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class HttpRequest:
    """A request: header names in lower case, without secret headers, with the decoded body."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class HttpReply:
    """A reply. `held` is a gate before the first byte. With status None, no byte is sent."""

    status: int | None
    pieces: tuple[bytes | StreamGate | Cut, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    is_stream: bool = False
    held: StreamGate | None = None


class ClientDisconnected(Exception):
    """The client closed the connection, or the server is closing."""


class HttpServer:
    """A server that runs inside its `with` block. All requests are in `requests`.

    An exception of `respond` is answered with 400, which no CLI retries, and raised again at the
    end of the block.
    """

    def __init__(
        self, respond: Callable[[HttpRequest], HttpReply], log: Path | None = None
    ) -> None:
        self._respond = respond
        self._log = log
        self._changed = threading.Condition()
        self._requests: list[HttpRequest] = []
        self._fates: dict[int, RequestFate] = {}
        self._failures: list[BaseException] = []
        self._closing = threading.Event()
        self._http = _Http(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(POLL_SECONDS,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self._failures:
            raise self._failures[0]

    def close(self) -> None:
        """Drop every connection and end every thread."""
        self._closing.set()
        self._http.shutdown()
        self._http.drop_all()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def requests(self) -> tuple[HttpRequest, ...]:
        with self._changed:
            return tuple(self._requests)

    def find_fate(self, number: int) -> RequestFate:
        """Return the fate of a request: open, answered, cut by the server, left by the client."""
        with self._changed:
            return self._fates[number]

    def wait_until(self, is_true: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait for a condition that only requests and their fates can change."""
        with self._changed:
            if not self._changed.wait_for(is_true, seconds):
                raise TimeoutError(f"not within {seconds} s; requests so far: {self._summarize()}")

    def record_request(
        self, method: str, path: str, headers: Mapping[str, str], body: Any
    ) -> HttpRequest:
        """Record a request. The thread of its connection calls this and the next three methods."""
        with self._changed:
            request = HttpRequest(len(self._requests), method, path, headers, body)
            self._requests.append(request)
            self._fates[request.number] = "open"
            if self._log is not None:
                with self._log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(asdict(request)) + "\n")
            self._changed.notify_all()
        return request

    def make_reply(self, request: HttpRequest) -> HttpReply:
        try:
            return self._respond(request)
        except Exception as error:  # noqa: BLE001 (raised again where the test sees it)
            with self._changed:
                self._failures.append(error)
            failed = {"type": "error", "error": {"type": "script_failed", "message": repr(error)}}
            return HttpReply(400, (json.dumps(failed).encode(),))

    def settle(self, request: HttpRequest, fate: RequestFate) -> None:
        with self._changed:
            self._fates[request.number] = fate
            self._changed.notify_all()

    def pass_gate(self, gate: StreamGate, connection: socket.socket) -> None:
        """Wait at a gate while the client is connected."""
        gate.reach()
        while not gate.wait(POLL_SECONDS):
            if self._closing.is_set() or _is_disconnected(connection):
                raise ClientDisconnected

    def _summarize(self) -> str:
        return ", ".join(f"{r.method} {r.path} {self._fates[r.number]}" for r in self._requests)


def _is_disconnected(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


class _Http(ThreadingHTTPServer):
    """The listening socket and its open connections."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, owner: HttpServer) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def drop_all(self) -> None:
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke without a request."""


class _Handler(BaseHTTPRequestHandler):
    """One connection: any number of requests, one after the other."""

    protocol_version = "HTTP/1.1"
    server: _Http

    def do_POST(self) -> None:
        self._serve()

    do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

    def _serve(self) -> None:
        owner = self.server.owner
        request = owner.record_request(
            self.command, self.path, self._read_headers(), self._read_body()
        )
        reply = owner.make_reply(request)
        try:
            is_whole = self._send(reply)
        except (ClientDisconnected, OSError):
            self._end(request, "left")
        else:
            if is_whole:
                owner.settle(request, "answered")
            else:
                self._end(request, "cut")

    def _end(self, request: HttpRequest, fate: RequestFate) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.server.owner.settle(request, fate)

    def _read_headers(self) -> dict[str, str]:
        headers = {name.lower(): value for name, value in self.headers.items()}
        return {name: value for name, value in headers.items() if name not in SECRET_HEADERS}

    def _read_body(self) -> Any:
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            return json.loads(content) if content else None
        except ValueError:
            return content.decode("utf-8", "replace")

    def _send(self, reply: HttpReply) -> bool:
        """Send a reply; False if the reply cuts the connection."""
        if reply.held is not None:
            self.server.owner.pass_gate(reply.held, self.connection)
        if reply.status is None:
            return False
        self._send_head(reply)
        for piece in reply.pieces:
            if isinstance(piece, Cut):
                return False
            if isinstance(piece, StreamGate):
                self.server.owner.pass_gate(piece, self.connection)
            elif self.command != "HEAD":
                self._send_piece(piece, reply.is_stream)
        if reply.is_stream:
            self.wfile.write(b"0\r\n\r\n")
        return True

    def _send_head(self, reply: HttpReply) -> None:
        self.send_response(reply.status or 200)
        kind = "text/event-stream" if reply.is_stream else "application/json"
        length = sum(len(piece) for piece in reply.pieces if isinstance(piece, bytes))
        framing = (
            {"transfer-encoding": "chunked"} if reply.is_stream else {"content-length": str(length)}
        )
        for name, value in {"content-type": kind, **framing, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_piece(self, piece: bytes, is_stream: bool) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_stream else piece)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base's name)
        """Print nothing, because `requests` has all requests."""
