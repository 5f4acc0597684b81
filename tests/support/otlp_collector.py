"""A collector in this process: real HTTP, and what was sent read as the protocol says.

with collecting() as collector:
    …  # export to collector.endpoint
    spans = collector.wait(3)
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATIENCE_SECONDS = 40.0


@dataclass(frozen=True)
class Seen:
    """A span as it arrived."""

    span: Span
    resource: dict[str, Any]
    scope: str

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.key: _value(each.value) for each in self.span.attributes}

    @property
    def is_error(self) -> bool:
        return bool(self.span.status.code == self.span.status.STATUS_CODE_ERROR)


class Collector:
    """What was sent, and how it shall be answered."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.status = 200
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.raw = b""
        # The values of gauges by their names, as they came last.
        self.gauges: dict[str, float] = {}
        self._seen: list[Seen] = []
        self._news = threading.Condition()

    def wait(self, count: int) -> list[Seen]:
        """All spans that came, once there are so many."""
        return self.until(lambda: len(self._seen) >= count)

    def until_asked(self, times: int = 1) -> None:
        self.until(lambda: len(self.asked) >= times)

    def until(self, is_it: Any) -> list[Seen]:
        with self._news:
            assert self._news.wait_for(is_it, PATIENCE_SECONDS), [seen.name for seen in self._seen]
            return list(self._seen)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        with self._news:
            if path.endswith("/v1/metrics"):
                self.gauges |= dict(_read_gauges(body))
                self._news.notify_all()
                return self.status
            self.asked.append((path, headers))
            if self.status == 200:
                self.raw += body
                self._seen += _read(body)
            self._news.notify_all()
            return self.status


def _read_gauges(body: bytes) -> Iterator[tuple[str, float]]:
    for part in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for metric in (each for scope in part.scope_metrics for each in scope.metrics):
            [point] = metric.gauge.data_points
            yield metric.name, point.as_double or point.as_int


def _read(body: bytes) -> Iterator[Seen]:
    for part in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {each.key: _value(each.value) for each in part.resource.attributes}
        for scope in part.scope_spans:
            yield from (Seen(span, resource, scope.scope.name) for span in scope.spans)


def _value(value: AnyValue) -> Any:
    return getattr(value, str(value.WhichOneof("value")))


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(collector.take(self.path, headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing of this belongs into the output of tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
