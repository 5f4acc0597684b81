"""Sends spans and metrics to an OpenTelemetry collector by OTLP over HTTP.

Only this module imports the packages of the extra `otel`, and only if an endpoint is set.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import anyio.to_thread
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
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
from steadyrun.model.health import HealthMeasure, HealthReading
from steadyrun.model.secret import Secret
from steadyrun.runtime.deps import Deps
from steadyrun.telemetry.exporter import Exporter
from steadyrun.telemetry.spans import SpanData
from steadyrun.version import __version__

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
# The longest value of an attribute, in characters; more is cut off.
LONGEST_TEXT = 32_768
_PATH = "/v1/traces"
_METRICS_PATH = "/v1/metrics"
_METRICS_SECONDS = 60.0
# The name, the unit and the description of each measure.
_GAUGES: dict[HealthMeasure, tuple[str, str, str]] = {
    "loop_seconds": ("steadyrun.daemon.loop_delay", "s", "Delay of the event loop"),
    "commit_seconds": ("steadyrun.daemon.commit_time", "s", "Longest commit of the store"),
    "queue_seconds": ("steadyrun.daemon.queue_age", "s", "Age of the oldest item that could run"),
    "memory_bytes": ("steadyrun.daemon.memory", "By", "Resident memory"),
}
_SEND_SECONDS = 5.0
# How long the end of the daemon waits for the collector.
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
    """Export spans until the block ends, and then the remaining ones within a short time."""
    collector = OtlpCollector(endpoint, headers)
    exporter = Exporter(deps.store, collector.send, deps.scrubber, content=content, kinds=kinds)
    await exporter.begin()
    try:
        async with task_group() as tasks:
            tasks.start_soon(exporter.run)
            yield
            exporter.end()
            tasks.cancel_scope.deadline = anyio.current_time() + _LAST_SECONDS
    finally:
        collector.close()


@asynccontextmanager
async def export_metrics(
    endpoint: str, headers: Mapping[str, Secret], read: Callable[[], Sequence[HealthReading]]
) -> AsyncIterator[None]:
    """Export what the daemon measures of itself, once a minute and at the end of the block. The
    values are read in a thread of the exporter."""
    exporter = OTLPMetricExporter(
        endpoint=build_address(endpoint, _METRICS_PATH),
        headers=_reveal(headers),
        timeout=_SEND_SECONDS,
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=_METRICS_SECONDS * 1000)
    provider = MeterProvider([reader], resource=_build_resource(), shutdown_on_exit=False)
    meter = provider.get_meter("steadyrun", __version__)

    def read_measure(measure: HealthMeasure, _: CallbackOptions) -> list[Observation]:
        return [Observation(each.value) for each in read() if each.measure == measure]

    for measure, (name, unit, description) in _GAUGES.items():
        callbacks = [partial(read_measure, measure)]
        meter.create_observable_gauge(name, callbacks, unit=unit, description=description)
    try:
        yield
    finally:
        shutdown = partial(provider.shutdown, timeout_millis=_LAST_SECONDS * 1000)
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            await anyio.to_thread.run_sync(shutdown, abandon_on_cancel=True)


class OtlpCollector:
    """Sends spans with a tracer provider of its own, apart from that of the program."""

    def __init__(self, endpoint: str, headers: Mapping[str, Secret]) -> None:
        # Log records of the packages are dropped; `send` returns whether it failed.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        self._ids, self._ended = _GivenIds(), _EndedSpans()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=_build_resource(),
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=SpanLimits(max_span_attribute_length=LONGEST_TEXT),
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("steadyrun", __version__, schema_url=SCHEMA)
        self._exporter = OTLPSpanExporter(
            endpoint=build_address(endpoint),
            headers=_reveal(headers),
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
    """Uses given ids instead of random ones: a span that is sent twice has the same id."""

    trace = span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _EndedSpans(SpanProcessor):
    """Collects ended spans until they are sent."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        taken, self._spans = self._spans, []
        return taken


def build_address(endpoint: str, path: str = _PATH) -> str:
    """Build the address of traces, or of another path, at an endpoint or its address of traces."""
    return endpoint.rstrip("/").removesuffix(_PATH) + path


def _build_resource() -> Resource:
    return Resource.create({"service.name": "steadyrun", "service.version": __version__})


def _reveal(headers: Mapping[str, Secret]) -> dict[str, str]:
    return {name: value.reveal() for name, value in headers.items()}


def _build_context(span: SpanData) -> Context:
    if span.parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(span.trace, span.parent, is_remote=False, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _to_nanoseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
