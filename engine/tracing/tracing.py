"""`Tracing`: spans on their way to a collector, by OTLP over HTTP, from a thread of its own.

The one file that touches OpenTelemetry's packages. Nobody waits for the collector: spans that have
ended wait in a queue with a bound, and beyond it, or if the collector does not take them, they are
dropped and counted.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

logger = logging.getLogger(__name__)

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

MAX_WAITING = 2048  # spans; OpenTelemetry's own default
MAX_BATCH = 512  # spans in one message
CLOSE_SECONDS = 1.0  # for what is still to be sent
MAX_STEP_NS = 1_000_000  # that the wall clock may leave ours by, before ours follows it
HEADERS = ("traceparent", "tracestate")
LOUD = (  # of OpenTelemetry's loggers: what a collector that is away, or a client, makes them say
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.trace.span",
)

READS_HEADERS = "opentelemetry.util.re"


class Tracing:
    """All methods return at once, but for `close`. Times are nanoseconds since 1970, as `ns` says.

    `attributes` are those of the process. Raises `ValueError` for `OTEL_*` variables that
    OpenTelemetry refuses.
    """

    def __init__(self, url: str, attributes: Mapping[str, str]) -> None:
        for name in LOUD:
            logging.getLogger(name).addFilter(_is_not_ours)
        logging.getLogger(READS_HEADERS).addFilter(_hide_header)
        max_waiting = _max_waiting()
        self._counts = _Counts(max_waiting)
        self._exporter = _Exporter(url, self._counts)
        self._processor = _Processor(self._exporter, self._counts, max_waiting)
        # Not at the interpreter's exit: that would wait for a collector that is away.
        provider = TracerProvider(resource=_resource(attributes), shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("parley")
        self._propagator = TraceContextTextMapPropagator()
        self._ahead_ns = _wall_ahead_ns()

    @property
    def num_sent(self) -> int:
        """Spans that the collector has taken."""
        return self._counts.num_sent

    @property
    def num_dropped(self) -> int:
        """Spans that nobody will see."""
        return self._counts.num_dropped

    def ns(self, at: float) -> int:
        """A moment of `time.monotonic()` on the wall clock, in the order of all such moments."""
        return self._ahead_ns + round(at * 1e9)

    def context(self, headers: Mapping[Any, Any]) -> Context:
        """The span that the W3C's headers name; nobody's if they are malformed, or missing."""
        given = {
            name.lower(): value
            for name, value in headers.items()
            if isinstance(name, str) and isinstance(value, str)
        }
        _ours.are_speaking = True
        try:
            return self._propagator.extract({n: given[n] for n in HEADERS if n in given})
        finally:
            _ours.are_speaking = False

    def headers(self, span: Span) -> dict[str, str]:
        """How another process names this span as the parent of its own."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers, set_span_in_context(span, Context()))
        return headers

    def start(self, name: str, parent: Context, start_ns: int, attributes: Attributes) -> Span:
        """A span for what somebody has asked of us. Its attributes never hold what users write."""
        return self._tracer.start_span(
            name, parent, SpanKind.SERVER, attributes, start_time=start_ns
        )

    def child(
        self,
        parent: Span,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None = None,
    ) -> None:
        """A part of a span, which is over."""
        span = self._tracer.start_span(
            name,
            set_span_in_context(parent, Context()),
            attributes=attributes,
            start_time=start_ns,
        )
        span.end(max(start_ns, end_ns))

    def end(self, span: Span, end_ns: int, attributes: Attributes, error: str | None) -> None:
        """`error` is a word of few, not a message: messages quote what users wrote."""
        span.set_attributes(attributes)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_ns)

    def follow_clock(self) -> None:
        """Take up a change of the wall clock. Between two calls moments keep their order."""
        ahead_ns = _wall_ahead_ns()
        if abs(ahead_ns - self._ahead_ns) > MAX_STEP_NS:
            self._ahead_ns = ahead_ns

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what waits, for so long at most, and end the thread. Blocks. Idempotent."""
        self._counts.close()
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(seconds)
        self._exporter.shutdown()


class _Counts:
    """Of spans: those that wait, and what became of the others. The threads share it."""

    def __init__(self, max_waiting: int) -> None:
        self.num_sent = 0
        self.num_dropped = 0
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._lock = threading.Lock()

    def enter(self) -> bool:
        """Whether there is room for one more; one for which there is none is dropped."""
        with self._lock:
            has_room = self._num_waiting < self._max_waiting
            self._num_waiting += has_room
            self.num_dropped += not has_room
        return has_room

    def close(self) -> None:
        """There is no room any more."""
        self._max_waiting = 0

    def leave(self, number: int) -> None:
        """They wait no more: they are being sent."""
        with self._lock:
            self._num_waiting -= number

    def settle(self, number: int, is_sent: bool) -> None:
        with self._lock:
            self.num_sent += number if is_sent else 0
            self.num_dropped += 0 if is_sent else number


class _Processor(BatchSpanProcessor):
    """OpenTelemetry's queue and thread. A span for which there is no room never gets there."""

    def __init__(self, exporter: SpanExporter, counts: _Counts, max_waiting: int) -> None:
        super().__init__(exporter, max_waiting, max_export_batch_size=min(MAX_BATCH, max_waiting))
        self._counts = counts

    def on_end(self, span: ReadableSpan) -> None:
        is_sampled = span.context is not None and span.context.trace_flags.sampled
        if is_sampled and self._counts.enter():
            super().on_end(span)


class _Exporter(SpanExporter):
    """Sends batches, in the processor's thread. Of a collector that is away it warns once."""

    def __init__(self, url: str, counts: _Counts) -> None:
        self._where = urlsplit(url)._replace(query="", fragment="").geturl()  # a key may be there
        _ours.are_speaking = True
        try:
            self._otlp = OTLPSpanExporter(endpoint=url)
        finally:
            _ours.are_speaking = False
        self._counts = counts
        self._has_warned = False
        self._is_closed = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._counts.leave(len(spans))
        result = SpanExportResult.FAILURE
        _ours.are_speaking = True
        try:
            with suppress(Exception):  # of any kind: the spans are lost, and counted
                result = self._otlp.export(spans)
        finally:
            _ours.are_speaking = False
        is_sent = result is SpanExportResult.SUCCESS
        self._counts.settle(len(spans), is_sent)
        if not is_sent and not self._has_warned:
            logger.warning("spans cannot be sent to %s: they are dropped meanwhile", self._where)
        self._has_warned = not is_sent
        return result

    def shutdown(self) -> None:
        if self._is_closed.acquire(blocking=False):
            self._otlp.shutdown()  # type: ignore[no-untyped-call]  # the library has no types there


class _Ours(threading.local):
    """Whether OpenTelemetry does something for us in this thread: for others it may speak."""

    are_speaking = False


_ours = _Ours()


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not _ours.are_speaking


def _hide_header(record: logging.LogRecord) -> bool:
    """One that cannot be read is a password, perhaps; OpenTelemetry says all of it."""
    if _ours.are_speaking:
        record.msg = "OTEL_EXPORTER_OTLP_HEADERS: what is not name=value is left out"
        record.args = ()
    return True


def _max_waiting() -> int:
    with suppress(ValueError):
        return max(1, int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", MAX_WAITING)))
    return MAX_WAITING


def _resource(attributes: Mapping[str, str]) -> Resource:
    """Who makes the spans; what the environment says takes precedence."""
    ours = Resource.create({"service.name": "parley", **attributes})
    return ours.merge(OTELResourceDetector().detect())


def _wall_ahead_ns() -> int:
    return time.time_ns() - time.monotonic_ns()
