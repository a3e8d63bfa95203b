"""`Tracing` against a real receiver, one that refuses, and none."""

import logging
import socket
import threading
import time
from typing import Any

import pytest

from engine.tracing import tracing as module
from engine.tracing.endpoint import open_tracing
from engine.tracing.tracing import Tracing
from tests.helpers.collector import ERROR, Collector
from tests.helpers.collector import collector as collector  # the fixture
from tests.helpers.patience import PATIENCE

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")


def make_spans(tracing: Tracing, number: int, headers: dict[str, str] | None = None) -> None:
    for _ in range(number):
        now = tracing.ns(time.monotonic())
        span = tracing.start("x", tracing.context(headers or {}), now, {"a": 1})
        tracing.end(span, now, {}, None)


def test_a_span_arrives_with_its_parts_times_and_attributes(collector: Collector) -> None:
    tracing = open_tracing(collector.url, {"service.instance.id": "w1"})
    at = time.monotonic()
    start = tracing.ns(at)
    context = tracing.context({"Traceparent": PARENT, "tracestate": "a=1,b=2"})
    span = tracing.start("whole", context, start, {"gen_ai.request.model": "m"})
    tracing.child(span, "part", start + 5, start + 9, {"parts": ["x", "y"]})
    tracing.end(span, start + 20, {"n": 2, "seconds": 0.5}, "queue_full")
    tracing.close()
    whole, part = collector.only("whole"), collector.only("part")
    assert (whole.trace_id, whole.parent_id, whole.trace_state) == (TRACE, SPAN, "a=1,b=2")
    assert (whole.start, whole.end, whole.status) == (start, start + 20, ERROR)
    attributes = {"gen_ai.request.model": "m", "n": 2, "seconds": 0.5, "error.type": "queue_full"}
    assert whole.attributes == attributes
    assert (part.trace_id, part.parent_id) == (TRACE, whole.span_id)
    assert (part.start, part.end, part.attributes) == (start + 5, start + 9, {"parts": ["x", "y"]})
    assert whole.resource["service.name"] == "parley"
    assert whole.resource["service.instance.id"] == "w1"
    assert abs(start - time.time_ns()) < PATIENCE * 1e9
    assert (tracing.num_sent, tracing.num_dropped) == (2, 0)


def test_a_span_names_itself_as_the_parent_of_others(collector: Collector) -> None:
    tracing = open_tracing(collector.url)
    now = tracing.ns(time.monotonic())
    context = tracing.context({"traceparent": PARENT, "tracestate": "a=1"})
    span = tracing.start("x", context, now, {})
    headers = tracing.headers(span)
    tracing.end(span, now, {}, None)
    tracing.close()
    assert headers == {"traceparent": collector.only("x").traceparent, "tracestate": "a=1"}


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",  # what only a later version may have
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01" + " " * 600,
        "é" * 40,
    ],
)
def test_a_malformed_parent_is_ignored_without_a_word(
    traceparent: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = open_tracing(collector.url)
    make_spans(tracing, 1, {"traceparent": traceparent, "tracestate": "a=1"})
    tracing.close()
    span = collector.only("x")
    assert (span.parent_id, span.trace_state) == ("", "")
    assert span.trace_id != TRACE
    assert not caplog.records


@pytest.mark.parametrize(
    ("headers", "parent_id"),
    [
        ({"traceparent": PARENT.encode()}, ""),
        ({b"traceparent": PARENT}, ""),
        ({"traceparent": [PARENT]}, ""),
        ({1: 2, b"x": "y", "traceparent": PARENT, "tracestate": None}, SPAN),
    ],
)
def test_headers_that_are_no_text_are_ignored(
    headers: Any, parent_id: str, collector: Collector
) -> None:
    tracing = open_tracing(collector.url)
    make_spans(tracing, 1, headers)
    tracing.close()
    assert collector.only("x").parent_id == parent_id


def test_a_malformed_state_leaves_the_parent(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = open_tracing(collector.url)
    for state in ("=", "a=1," * 500, "A B=\u00e9"):
        make_spans(tracing, 1, {"traceparent": PARENT, "tracestate": state})
    tracing.close()
    assert {(span.trace_id, span.parent_id) for span in collector.spans} == {(TRACE, SPAN)}
    assert not caplog.records


def test_a_later_version_may_say_more(collector: Collector) -> None:
    tracing = open_tracing(collector.url)
    make_spans(tracing, 1, {"traceparent": f"01-{TRACE}-{SPAN}-01-more"})
    tracing.close()
    assert collector.only("x").parent_id == SPAN


def test_what_the_caller_does_not_sample_is_not_sent(collector: Collector) -> None:
    tracing = open_tracing(collector.url)
    make_spans(tracing, 3, {"traceparent": f"00-{TRACE}-{SPAN}-00"})
    make_spans(tracing, 1)
    tracing.close()
    assert len(collector.spans) == 1 and (tracing.num_sent, tracing.num_dropped) == (1, 0)


def test_the_standard_variables_count(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=alice")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    tracing = open_tracing(collector.url)
    make_spans(tracing, 1)
    tracing.close()
    resource = collector.only("x").resource
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("chat", "test")
    assert collector.headers[0]["x-tenant"] == "alice"
    assert collector.headers[0]["Content-Encoding"] == "gzip"


def test_of_a_collector_that_refuses_one_line_is_logged_until_it_takes_spans_again(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = open_tracing(collector.url)
    collector.status = 400
    for number in range(1, 4):
        make_spans(tracing, 1)
        collector.wait(lambda: collector.num_messages == number, "a message")  # noqa: B023  (waits)
    collector.status = 200
    make_spans(tracing, 1)
    collector.wait(lambda: collector.spans, "a span")
    tracing.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"spans cannot be sent to {collector.url}/v1/traces: they are dropped meanwhile"
    )
    assert (tracing.num_sent, tracing.num_dropped) == (1, 3)


def test_a_collector_that_is_away_holds_nobody_up_and_what_is_too_much_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes connections and says nothing: the worst that a collector can do."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing = open_tracing(f"http://127.0.0.1:{silent.getsockname()[1]}")
        make_spans(tracing, 8)
        silent.accept()[0].detach()  # the first message is on its way; its socket stays open
        make_spans(tracing, 100)
        assert tracing.num_dropped >= 100 - 8
        began = time.monotonic()
        tracing.close(0.05)
        assert time.monotonic() - began < PATIENCE / 2  # its timeout alone is 10 s, 3 times


def test_after_the_close_spans_are_counted_as_dropped_and_nothing_is_raised(
    collector: Collector,
) -> None:
    tracing = open_tracing(collector.url)
    make_spans(tracing, 1)
    tracing.close()
    tracing.close()
    make_spans(tracing, 2)
    assert (tracing.num_sent, tracing.num_dropped) == (1, 2)


def test_others_who_use_opentelemetry_still_hear_of_their_own_trouble(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = open_tracing(collector.url)
    make_spans(tracing, 1)
    tracing.close()
    for name in module.LOUD:
        logging.getLogger(name).warning("theirs")
    assert [record.getMessage() for record in caplog.records] == ["theirs"] * len(module.LOUD)


def test_moments_keep_their_order_when_the_wall_clock_is_set_back(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracing = open_tracing(collector.url)
    first = tracing.ns(1.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert tracing.ns(1.5) - first == 500_000_000
    tracing.follow_clock()
    assert tracing.ns(1.5) < first
    tracing.close()


def test_its_threads_end_with_it(collector: Collector) -> None:
    before = set(threading.enumerate())
    tracing = open_tracing(collector.url)
    make_spans(tracing, 1)
    tracing.close()
    ours = [thread for thread in threading.enumerate() if "Otel" in thread.name]
    assert set(ours) <= before


def test_a_header_that_cannot_be_read_is_left_out_and_not_shown(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=one,authorization: Bearer hunter2")
    tracing = open_tracing(f"{collector.url}?api-key=hunter3")
    collector.status = 400
    make_spans(tracing, 1)
    headers = collector.wait(lambda: collector.headers, "a message")[0]
    assert {name.lower(): text for name, text in headers.items()}["x-key"] == "one"
    tracing.close()
    assert "what is not name=value is left out" in caplog.text
    assert "spans cannot be sent" in caplog.text
    assert "hunter" not in caplog.text
