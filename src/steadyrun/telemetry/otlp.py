"""How are spans brought to an OpenTelemetry collector? By OTLP over HTTP.

The only module that knows the packages of the extra `otel`: imported only where an endpoint is set.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from steadyrun.lib.task_group import task_group
from steadyrun.model.secret import Secret
from steadyrun.runtime.deps import Deps
from steadyrun.telemetry.exporter import Exporter
from steadyrun.telemetry.spans import SpanData
from steadyrun.version import __version__

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
# Of an attribute, in characters; more is cut off.
LONGEST_TEXT = 32_768
_PATH = "/v1/traces"
_SEND_SECONDS = 5.0
# What the end of a daemon waits for the collector, at most.
_LAST_SECONDS = 2.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_KINDS = {"client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}


@asynccontextmanager
async def export_spans(
    endpoint: str,
    headers: Mapping[str, Secret],
    deps: Deps,
    *,
    content: bool,
    kinds: Mapping[str, str],
) -> AsyncIterator[None]:
    """Export what happens until the block ends, and what is left then, if it can be done soon."""
    collector = OtlpCollector(endpoint, headers)
    exporter = Exporter(deps.store, collector, deps.scrubber, content=content, kinds=kinds)
    await exporter.begin()
    try:
        async with task_group() as tasks:
            tasks.start_soon(exporter.run)
            yield
            exporter.end()
            tasks.cancel_scope.deadline = anyio.current_time() + _LAST_SECONDS
    finally:
        collector.close()


class OtlpCollector:
    """A `Collector`. Its provider of tracers is its own: whoever uses this process has another."""

    def __init__(self, endpoint: str, headers: Mapping[str, Secret]) -> None:
        # What the packages log has no place among our facts; `send` says whether it failed.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        self._ids, self._ended = _GivenIds(), _EndedSpans()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": "steadyrun", "service.version": __version__}),
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=SpanLimits(max_span_attribute_length=LONGEST_TEXT),
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("steadyrun", __version__, schema_url=SCHEMA)
        self._exporter = OTLPSpanExporter(
            endpoint=build_address(endpoint),
            headers={name: value.reveal() for name, value in headers.items()},
            timeout=_SEND_SECONDS,
        )

    def send(self, spans: Sequence[SpanData]) -> bool:
        for span in spans:
            self._make(span)
        return self._exporter.export(self._ended.take()) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self, span: SpanData) -> None:
        self._ids.trace, self._ids.span = span.trace, span.id
        made = self._tracer.start_span(
            span.name,
            context=_build_context(span),
            kind=_KINDS[span.kind],
            attributes=span.attributes,
            start_time=_to_nanoseconds(span.start),
        )
        if span.is_error:
            made.set_status(StatusCode.ERROR)
        made.end(_to_nanoseconds(span.end))


class _GivenIds(IdGenerator):
    """Ids are not drawn: a span that is told again has the id it had."""

    trace = span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _EndedSpans(SpanProcessor):
    """Keeps spans that have ended until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        taken, self._spans = self._spans, []
        return taken


def build_address(endpoint: str) -> str:
    """Where traces go, at an endpoint that takes more than those."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


def _build_context(span: SpanData) -> Context:
    if span.parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(span.trace, span.parent, is_remote=False, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _to_nanoseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
