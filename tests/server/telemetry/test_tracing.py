"""`AnswerTrace`: what its spans say, and that only the first end counts."""

import time
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from engine.tracing.tracing import Tracing
from server.telemetry.metrics import Metrics, SpanCollector
from server.telemetry.tracing import AnswerTracing
from tests.helpers.collector import ERROR, Collector
from tests.helpers.collector import collector as collector  # these two are fixtures
from tests.helpers.collector import tracing as tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
USAGE = {"input_tokens": 5, "cached_tokens": 3, "output_tokens": 2}
SETTINGS = {"temperature": 0.5, "top_k": None, "seed": 7, "system": "my mother", "stop": ["tea"]}


@pytest.fixture
def answers(tracing: Tracing) -> AnswerTracing:
    return AnswerTracing(tracing, "m")


def request(*headers: tuple[str, str]) -> HTTPConnection:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return HTTPConnection({"type": "http", "headers": raw})


@pytest.mark.parametrize(
    ("headers", "parent"),
    [
        ([("traceparent", PARENT)], (SPAN, "")),
        (
            [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")],
            (SPAN, "a=1,b=2"),
        ),
        ([("traceparent", PARENT), ("traceparent", PARENT)], ("", "")),
        ([("tracestate", "a=1")], ("", "")),
        ([], ("", "")),
    ],
)
def test_a_request_names_one_parent_and_its_states(
    headers: list[tuple[str, str]],
    parent: tuple[str, str],
    answers: AnswerTracing,
    collector: Collector,
    tracing: Tracing,
) -> None:
    answers.begin("ses_A", None, None, request(*headers)).leave("lost")
    tracing.close()
    span = collector.only("chat m")
    assert (span.parent_id, span.trace_state) == parent


def test_a_frame_comes_before_the_request_even_if_it_is_malformed(
    answers: AnswerTracing, collector: Collector, tracing: Tracing
) -> None:
    for traceparent in (f"00-{'1' * 32}-{'2' * 16}-01", "malformed"):
        answers.begin("ses_A", traceparent, None, request(("traceparent", PARENT))).leave("lost")
    tracing.close()
    assert [span.parent_id for span in collector.spans] == ["2" * 16, ""]


def test_what_ends_an_answer_is_said_once_and_settings_without_their_texts(
    answers: AnswerTracing, collector: Collector, tracing: Tracing
) -> None:
    trace = answers.begin("ses_A", None, None, None)
    trace.asked("resp_A", SETTINGS)
    trace.wrote(time.monotonic(), 2)
    trace.wrote(time.monotonic(), 3)
    trace.end("completed", "eos", USAGE, time.monotonic())
    trace.end("failed", "engine_error", USAGE, None)
    trace.refuse("queue_full")
    trace.leave("ended")
    tracing.close()
    span = collector.only("chat m")
    e2e = span.attributes.pop("gen_ai.latency.e2e")
    assert 0 < span.attributes.pop("gen_ai.latency.time_to_first_token") <= e2e
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "parley",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.conversation.id": "ses_A",
        "gen_ai.response.id": "resp_A",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.response.finish_reasons": ["eos"],
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "parley.response.status": "completed",
    }
    assert span.status == 0
    write = collector.only("write").attributes
    assert write.pop("parley.write.seconds") >= 0
    assert write == {"parley.write.calls": 2, "parley.write.entries": 5}


def test_an_answer_with_an_adapter_names_the_model_that_it_makes(
    answers: AnswerTracing, collector: Collector, tracing: Tracing
) -> None:
    trace = answers.begin("ses_A", None, None, None)
    trace.asked("resp_A", {**SETTINGS, "model": "poet"})
    trace.end("completed", "eos", USAGE, time.monotonic())
    tracing.close()
    attributes = collector.only("chat m").attributes
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "poet"


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        (("completed", "eos"), 0, None),
        (("incomplete", "max_output_tokens"), 0, None),
        (("cancelled", "client_cancelled"), 0, None),
        (("failed", "engine_error"), ERROR, "engine_error"),
    ],
)
def test_only_a_failure_is_an_error(
    end: tuple[str, str],
    status: int,
    error: str | None,
    answers: AnswerTracing,
    collector: Collector,
    tracing: Tracing,
) -> None:
    answers.begin("ses_A", None, None, None).end(*end, USAGE, None)
    tracing.close()
    span = collector.only("chat m")
    assert (span.status, span.attributes.get("error.type")) == (status, error)


def test_the_next_owner_goes_on_in_the_trace_and_counts_no_token_of_the_one_before(
    answers: AnswerTracing, collector: Collector, tracing: Tracing
) -> None:
    first_token = time.monotonic()
    before = answers.begin("ses_A", PARENT, "a=1", None)
    stored: dict[str, Any] = {**before.headers, "prompt_hash": "x"}
    after = answers.resume("ses_A", "resp_A", 2, stored)
    before.leave("handed_over")
    after.end("completed", "eos", USAGE, first_token)
    answers.resume("ses_A", "resp_B", 2, {}).leave("lost")  # the one before did no tracing
    tracing.close()
    gone, ended, other = collector.spans
    assert gone.attributes["parley.response.status"] == "handed_over"
    assert (ended.trace_id, ended.parent_id, ended.trace_state) == (TRACE, gone.span_id, "a=1")
    assert ended.attributes["parley.fence"] == 2
    assert "gen_ai.latency.time_to_first_token" not in ended.attributes
    assert other.parent_id == ""


def test_metrics_count_the_spans(answers: AnswerTracing, tracing: Tracing) -> None:
    metrics = Metrics()
    metrics.registry.register(SpanCollector(tracing))
    answers.begin("ses_A", None, None, None).leave("lost")
    tracing.close()
    answers.begin("ses_A", None, None, None).leave("lost")
    assert b"parley_trace_spans_sent_total 1.0" in metrics.render()
    assert b"parley_trace_spans_dropped_total 1.0" in metrics.render()
