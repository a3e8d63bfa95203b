"""Answers as traces: a real server and a real receiver of OTLP, however the answer ends."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import begin, owner_and_other, run_of
from tests.helpers.collector import ERROR, Collector, Span
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = pytest.mark.slow

SETTINGS = {"temperature": 0, "max_output_tokens": 20}
LONG = {"temperature": 0, "max_output_tokens": 1000}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
ENVIRONMENT = TESTING | {"PARLEY_PACE": "100", "OTEL_BSP_SCHEDULE_DELAY": "20"}
NEVER_THERE = ("t00", "Bearer")  # the beginnings of words of the oracle, and of a credential


@pytest.fixture(scope="module")
def _collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(
    _collector: Collector, oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    environment = {"PARLEY_WORKERS": "2", "PARLEY_OTLP_ENDPOINT": _collector.url}
    data = tmp_path_factory.mktemp("traced") / "data"
    server = Server(data, oracle_model, None, **ENVIRONMENT, **environment)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def collector(_collector: Collector) -> Iterator[Collector]:
    """None of what it was sent in a test was written by anybody."""
    yield _collector
    sent = b"".join(_collector.bodies)
    assert b"chat.oracle" not in sent and not any(word.encode() in sent for word in NEVER_THERE)
    _collector.spans.clear()
    _collector.bodies.clear()


def answer_span(collector: Collector, response_id: str, number: int = 0) -> Span:
    """What this answer's worker said of it when it had ended; all its parts have come by then."""

    def find() -> list[Span] | None:
        found = [
            s for s in collector.spans if s.attributes.get("gen_ai.response.id") == response_id
        ]
        return found if len(found) > number else None

    spans: list[Span] = collector.wait(find, f"the span of {response_id}")
    return spans[number]


def parts(collector: Collector, whole: Span) -> dict[str, list[Span]]:
    """By name. None leaves the whole, and those that follow each other do so without a gap."""
    children = collector.children(whole)
    for part in children:
        assert whole.start <= part.start <= part.end <= whole.end, part.name
    found: dict[str, list[Span]] = {}
    for part in children:
        found.setdefault(part.name, []).append(part)
    return found


def check_engine(collector: Collector, request: Span, *phases: str) -> None:
    children = [part for part in collector.children(request) if part.name != "detokenize"]
    assert tuple(child.name for child in children) == phases
    for earlier, later in itertools.pairwise(children):
        assert request.start <= earlier.start <= earlier.end == later.start <= later.end
    assert children[-1].end <= request.end


async def test_an_answer_over_a_websocket_is_one_trace_under_its_askers_span(
    traced: Server, collector: Collector
) -> None:
    async with Client(traced) as client:
        session = await client.new_session()
        response = await client.ask(
            session,
            oracle_word(3),
            settings=SETTINGS | {"system": oracle_word(9), "stop": [oracle_word(4000)]},
            traceparent=PARENT,
            tracestate="vendor=1",
        )
        answer = await client.done(response)
        assert answer.done is not None
    whole = await asyncio.to_thread(answer_span, collector, response)
    assert (whole.trace_id, whole.parent_id, whole.trace_state) == (TRACE, SPAN, "vendor=1")
    assert whole.name.startswith("chat ") and whole.status == 0
    found = parts(collector, whole)
    assert set(found) == {"admission", "prompt", "store", "llm_request", "write"}
    (admission,), (prompt,), (begun, ended) = found["admission"], found["prompt"], found["store"]
    (request,), (write,) = found["llm_request"], found["write"]
    assert whole.start == admission.start and admission.end == prompt.start
    assert prompt.end == begun.start and begun.end <= request.start
    assert request.end <= ended.start and write.end <= ended.end
    assert begun.attributes["parley.store.call"] == "begin"
    assert ended.attributes["parley.store.call"] == "finish"
    check_engine(collector, request, "queue", "prefill", "decode")
    assert request.attributes["gen_ai.request.id"] == response
    usage = answer.done["response"]["usage"]
    shown = whole.attributes
    assert shown["gen_ai.usage.input_tokens"] == usage["input_tokens"]
    assert shown["gen_ai.usage.output_tokens"] == usage["output_tokens"] == 20
    assert shown["gen_ai.conversation.id"] == session
    assert shown["gen_ai.request.max_tokens"] == 20
    assert shown["gen_ai.response.finish_reasons"] == ["max_output_tokens"]
    assert shown["parley.response.status"] == "incomplete"
    assert 0 < shown["gen_ai.latency.time_to_first_token"] < shown["gen_ai.latency.e2e"]
    assert whole.resource["service.name"] == "parley"
    assert whole.resource["service.instance.id"]
    assert traced.metric("parley_trace_spans_dropped_total") == 0


async def test_the_upgrade_names_the_parent_of_answers_whose_frames_name_none(
    traced: Server, collector: Collector
) -> None:
    async with Client(traced, headers={"traceparent": PARENT, "tracestate": "a=1"}) as client:
        session = await client.new_session()
        first = await client.ask(session, oracle_word(1), settings=SETTINGS)
        await client.done(first)
        other = f"00-{'1' * 32}-{'2' * 16}-01"
        second = await client.ask(session, oracle_word(1), settings=SETTINGS, traceparent=other)
        await client.done(second)
        third = await client.ask(session, oracle_word(1), settings=SETTINGS, traceparent="?")
        await client.done(third)
    spans = [await asyncio.to_thread(answer_span, collector, r) for r in (first, second, third)]
    assert [span.parent_id for span in spans] == [SPAN, "2" * 16, ""]
    assert [span.trace_state for span in spans] == ["a=1", "", ""]


async def test_a_request_over_http_names_the_parent(traced: Server, collector: Collector) -> None:
    async with Http(traced) as http:
        session = (await http.new_session())["id"]
        created = await http.post(
            f"/v1/sessions/{session}/responses",
            {"input": oracle_word(1), "settings": SETTINGS},
            headers={"Idempotency-Key": "traced", "traceparent": PARENT},
        )
    whole = await asyncio.to_thread(answer_span, collector, created.json()["id"])
    assert (whole.trace_id, whole.parent_id) == (TRACE, SPAN)
    assert parts(collector, whole)["llm_request"]


async def test_a_stop_is_a_part_until_the_engine_has_released_the_answer(
    traced: Server, collector: Collector
) -> None:
    async with Client(traced) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(1), settings=LONG)
        await client.deltas(response, 3)
        await client.send("stop", response_id=response)
        assert (await client.done(response)).done is not None
    whole = await asyncio.to_thread(answer_span, collector, response)
    found = parts(collector, whole)
    (stop,), (request,) = found["stop"], found["llm_request"]
    assert stop.attributes == {
        "parley.stop.by": "user",
        "parley.stop.reason": "client_cancelled",
        "parley.engine": "released",
    }
    assert request.start < stop.start <= request.end <= stop.end <= found["store"][-1].start
    assert request.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert whole.attributes["parley.response.status"] == "cancelled" and whole.status == 0


async def test_what_is_refused_is_an_error_and_what_waits_has_its_turn(
    traced: Server, collector: Collector
) -> None:
    async with Client(traced) as client:
        session = await client.new_session()
        first = await client.ask(session, oracle_word(1), settings=LONG)
        refused = await client.reply(
            "response.create",
            session_id=session,
            idempotency_key="second",
            input=oracle_word(2),
            traceparent=PARENT,
        )
        assert refused["error"]["code"] == "response_in_progress"
        queued = await client.ask(session, oracle_word(2), settings=SETTINGS, on_busy="queue")
        await client.deltas(first, 3)
        await client.send("stop", response_id=first)
        await client.done(queued)

    def find() -> list[Span]:
        return [span for span in collector.spans if span.parent_id == SPAN]

    (refusal,) = await asyncio.to_thread(collector.wait, find, "the refusal")
    assert (refusal.status, refusal.attributes["error.type"]) == (ERROR, "response_in_progress")
    assert refusal.attributes["parley.response.status"] == "refused"
    assert set(parts(collector, refusal)) == {"admission", "prompt"}
    ended = await asyncio.to_thread(answer_span, collector, first)
    waited = await asyncio.to_thread(answer_span, collector, queued)
    found = parts(collector, waited)
    (turn,), (begun, _) = found["turn"], found["store"]
    assert turn.start == begun.end and ended.end <= turn.end
    assert found["prompt"][-1].start == turn.end  # the history had moved on
    assert found["prompt"][-1].end <= found["llm_request"][0].start


async def test_the_same_key_again_is_a_span_of_its_own(
    traced: Server, collector: Collector
) -> None:
    async with Client(traced) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(1), idempotency_key="k", settings=SETTINGS)
        await client.done(response)
        await client.ask(session, oracle_word(1), idempotency_key="k", settings=SETTINGS)
    first = await asyncio.to_thread(answer_span, collector, response)
    again = await asyncio.to_thread(answer_span, collector, response, 1)
    assert first.attributes["parley.response.status"] == "incomplete"
    assert again.attributes["parley.response.status"] == "replayed"
    assert first.trace_id != again.trace_id and not parts(collector, again)


@pytest.mark.row("S1")
async def test_a_killed_workers_answer_goes_on_in_the_same_trace(
    traced: Server, collector: Collector
) -> None:
    async with owner_and_other(traced) as (owner, other, pid):
        _, response = await begin(owner, other)
        traced.history.fault("kill -9 of the owner")
        os.kill(pid, signal.SIGKILL)
        await other.done(response)
        run = await run_of(traced, response)
    whole = await asyncio.to_thread(answer_span, collector, response)
    assert whole.attributes["parley.fence"] == 2
    _, trace_id, span_id, _ = run["traceparent"].split("-")
    assert (whole.trace_id, whole.parent_id) == (trace_id, span_id)
    assert {"prompt", "llm_request", "write", "store"} <= set(parts(collector, whole))


@pytest.mark.row("E1")
async def test_a_killed_core_is_no_gap_in_the_trace(traced: Server, collector: Collector) -> None:
    async with Client(traced) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(1), settings={**LONG, "seed": 1})
        await client.deltas(response, 3)
        traced.kill_child("engine.core")
        await client.deltas(response, 30)
        await client.send("stop", response_id=response)
        await client.done(response)
    whole = await asyncio.to_thread(answer_span, collector, response)
    (request,) = parts(collector, whole)["llm_request"]
    assert request.attributes["parley.num_resubmits"] == 1
    check_engine(collector, request, "queue", "prefill", "decode")


@pytest.mark.slow
async def test_a_collector_that_is_away_delays_no_answer_and_is_logged_once(
    new_server: Callable[..., Server],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    variables = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "4"}
    server = new_server(
        **ENVIRONMENT, **variables, PARLEY_OTLP_ENDPOINT=url, PARLEY_LOG_FORMAT="json"
    )

    def lines() -> list[str]:
        return [line for line in server.log(None).splitlines() if "spans cannot be sent" in line]

    async with Client(server) as client:
        session, num_dropped = await client.new_session(), 0.0
        while not lines() or num_dropped < 50:  # some in the queue, some on their way
            response = await client.ask(session, oracle_word(1), settings=SETTINGS)
            assert (await client.done(response)).final == oracle_answer(1, 20)
            await client.next("message.updated")
            num_dropped = server.metric("parley_trace_spans_dropped_total")
    assert server.metric("parley_trace_spans_sent_total") == 0
    (line,) = lines()
    assert json.loads(line)["level"] == "warning"
    assert "opentelemetry" not in server.log(None)


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://host/", "http://user:hunter2@host/"])
def test_an_endpoint_that_cannot_be_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    arguments = ["serve", "--otlp-endpoint", url, "--data-dir", str(tmp_path / "data")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
    done = subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        cwd=ROOT,
        env=environment | {"PARLEY_LOG_FORMAT": "json"},
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["error"].startswith("otlp_endpoint")
    assert b"hunter2" not in line
