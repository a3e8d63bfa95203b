"""`Collector`: a small receiver of OTLP over HTTP, which keeps the spans that it was sent."""

import gzip
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from engine.tracing.endpoint import open_tracing
from engine.tracing.tracing import Tracing
from tests.helpers.patience import PATIENCE

ERROR = 2  # the code of a span's status


@dataclass(frozen=True)
class Span:
    """One span as it came. Ids are in hexadecimal, as in a `traceparent`; times in nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str  # "" without one
    trace_state: str
    start: int
    end: int
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


class Collector:
    """Answers each message with `status`. Use as a context manager."""

    def __init__(self) -> None:
        self.status = 200
        self.num_messages = 0
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []  # of all messages, also of those that it refused
        self.spans: list[Span] = []
        self._arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path.partition("?")[0] == "/v1/traces"
                status = collector.take(body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        with self._arrived:
            self.num_messages += 1
            self.headers.append(headers)
            self.bodies.append(body)
            if self.status == 200:
                self.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self._arrived.notify_all()
            return self.status

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Block until the condition is true of what has come, and return its value."""
        with self._arrived:
            assert self._arrived.wait_for(condition, PATIENCE), (what, self.names)
            return condition()

    def await_named(self, name: str, number: int = 1) -> list[Span]:
        """The first so many spans of this name, once they are there."""
        found: list[Span] = self.wait(
            lambda: len(self.named(name)) >= number and self.named(name), name
        )
        return found[:number]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> Span:
        (span,) = self.named(name)
        return span

    def children(self, parent: Span) -> list[Span]:
        """In the order in which they began."""
        of_parent = [
            span
            for span in self.spans
            if (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)
        ]
        return sorted(of_parent, key=lambda span: (span.start, span.end))

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


def _spans(message: ExportTraceServiceRequest) -> list[Span]:
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            trace_state=span.trace_state,
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            status=span.status.code,
            attributes=_plain(span.attributes),
            resource=_plain(resource_spans.resource.attributes),
        )
        for resource_spans in message.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def tracing(collector: Collector) -> Iterator[Tracing]:
    """Sends its spans to the collector."""
    tracing = open_tracing(collector.url)
    yield tracing
    tracing.close()
