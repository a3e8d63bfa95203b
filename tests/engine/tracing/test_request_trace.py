"""Requests as spans: against a core with a script, and real ones, one of which is killed."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    LoRARequest,
    PoolingParams,
    RequestOutputKind,
    SamplingParams,
)
from engine.errors import EngineDeadError, ValidationError
from engine.ipc import AddRequest
from engine.tracing.tracing import Tracing
from tests.engine.helpers.connected_engine import DELTA, PROMPT, A, B, receive
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.engine.test_real_core import Supervised
from tests.helpers.collector import ERROR, Collector, Span
from tests.helpers.collector import collector as collector  # these two are fixtures
from tests.helpers.collector import tracing as tracing
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_oracle_model, oracle_answer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
SECRET = "mum's maiden name"


@pytest.fixture
async def engine(core: ScriptedCore, model: Path, tracing: Tracing) -> AsyncIterator[AsyncLLM]:
    engine = AsyncLLM.connect(core.address, model=str(model), tracing=tracing)
    await engine.wait_ready(PATIENCE)
    yield engine
    engine.shutdown()


async def read(engine: AsyncLLM, *args: Any, **options: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [output async for output in engine.generate(*args, **options)]


def request_span(collector: Collector, tracing: Tracing) -> Span:
    """The one request, once all spans have come."""
    tracing.close()
    return collector.only("llm_request")


def check_parts(collector: Collector, span: Span, *names: str) -> None:
    """One follows the other, without a gap, and none leaves the whole."""
    parts = [part for part in collector.children(span) if part.name != "detokenize"]
    assert tuple(part.name for part in parts) == names
    assert parts[0].start == span.start
    for earlier, later in itertools.pairwise(parts):
        assert earlier.start <= earlier.end == later.start
    assert parts[-1].start <= parts[-1].end <= span.end


async def test_an_answer_is_a_span_with_the_times_that_the_core_reports(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    asking = asyncio.create_task(read(engine, PROMPT, DELTA, 7, trace_headers=HEADERS))
    name = (await receive(core, AddRequest)).request_id
    scheduled = time.monotonic()
    first = time.monotonic()
    reported: Any = {
        "scheduled_ts": scheduled,
        "first_token_ts": first,
        "num_cached_tokens": 2,
    }
    core.emit(name, A, **reported)
    core.emit(name, B, finish="stop", **reported)
    outputs = await asking
    span = request_span(collector, tracing)
    assert (span.trace_id, span.parent_id, span.status) == (TRACE, SPAN, 0)
    check_parts(collector, span, "queue", "prefill", "decode")
    detokenize, decode = collector.only("detokenize"), collector.only("decode")
    assert decode.start <= detokenize.start < detokenize.end <= span.end
    took = detokenize.attributes["parley.detokenize.seconds"]
    assert 0 < round(took * 1e9) <= detokenize.end - detokenize.start + 1
    prefill = collector.only("prefill")
    assert (prefill.start, prefill.end) == (tracing.ns(scheduled), tracing.ns(first))
    metrics = outputs[-1].metrics
    latency = {
        "time_in_queue": scheduled - metrics.queued_ts,
        "time_in_model_prefill": first - scheduled,
        "time_in_model_decode": metrics.last_token_ts - first,
        "time_in_model_inference": metrics.last_token_ts - scheduled,
        "time_to_first_token": metrics.first_token_latency,
        "e2e": (span.end - span.start) / 1e9,
    }
    expected = {f"gen_ai.latency.{name}": seconds for name, seconds in latency.items()} | {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "parley",
        "gen_ai.request.id": "7",
        "gen_ai.request.model": engine.vllm_config.model_config.served_model_name,
        "gen_ai.response.model": engine.vllm_config.model_config.served_model_name,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.n": 1,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "parley.num_preemptions": 0,
        "parley.num_resubmits": 0,
    }
    assert span.attributes.pop("gen_ai.response.finish_reasons") == ["stop"]
    assert span.attributes == pytest.approx(expected)


async def test_the_model_of_an_answer_with_an_adapter_is_the_adapter(
    core: ScriptedCore, model: Path, collector: Collector, tracing: Tracing
) -> None:
    config = msgspec.structs.replace(core.ready.config, enable_lora=True)
    core.ready = msgspec.structs.replace(core.ready, config=config)
    core.utilities["add_lora"] = ["f" * 64, ""]
    core.on_add = lambda _, request: core.emit(request.request_id, A, finish="length")
    engine = AsyncLLM.connect(core.address, model=str(model), tracing=tracing)
    await engine.wait_ready(PATIENCE)
    lora = LoRARequest("pirate", 1, "/adapters/pirate")
    await read(engine, PROMPT, DELTA, "r", lora_request=lora)
    engine.shutdown()
    attributes = request_span(collector, tracing).attributes
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "pirate"


async def test_an_abort_before_the_first_token_has_the_phases_that_were_entered(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    asking = asyncio.create_task(read(engine, PROMPT, DELTA, "r"))
    name = (await receive(core, AddRequest)).request_id
    core.emit(name, scheduled_ts=time.monotonic(), num_computed_tokens=1)
    await engine.check_health()  # the core's message was taken by then
    await engine.abort("r")
    core.emit(name, finish="abort", scheduled_ts=time.monotonic())
    await asking
    span = request_span(collector, tracing)
    check_parts(collector, span, "queue", "prefill")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort"] and span.status == 0
    assert span.parent_id == "" and "gen_ai.latency.time_to_first_token" not in span.attributes


async def test_a_reader_that_leaves_ends_the_span_in_the_queue(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    asking = asyncio.create_task(read(engine, PROMPT, DELTA, "r"))
    await receive(core, AddRequest)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    span = request_span(collector, tracing)
    check_parts(collector, span, "queue")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort"]


async def test_an_error_of_the_core_is_the_status(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    asking = asyncio.create_task(read(engine, PROMPT, DELTA, "r"))
    name = (await receive(core, AddRequest)).request_id
    core.emit(name, finish="error", error=("request_timeout", SECRET))
    await asking
    span = request_span(collector, tracing)
    assert (span.status, span.attributes["error.type"]) == (ERROR, "request_timeout")


async def test_a_prompt_that_cannot_be_taken_is_an_error(
    engine: AsyncLLM, collector: Collector, tracing: Tracing
) -> None:
    with pytest.raises(ValidationError, match="1001 tokens"):
        await read(engine, [1] * 1001, DELTA, "r")
    span = request_span(collector, tracing)
    assert (span.status, span.attributes["error.type"]) == (ERROR, "ValidationError")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["error"]


async def test_the_death_of_the_engine_is_an_error(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    asking = asyncio.create_task(read(engine, PROMPT, DELTA, "r"))
    await receive(core, AddRequest)
    engine.shutdown()
    with pytest.raises(EngineDeadError):
        await asking
    span = request_span(collector, tracing)
    assert (span.status, span.attributes["error.type"]) == (ERROR, "EngineDeadError")


async def test_each_of_several_answers_is_a_span_and_so_is_an_embedding(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    core.on_add = lambda _, request: core.emit(request.request_id, A, finish="length")
    await read(engine, PROMPT, msgspec.structs.replace(DELTA, n=3, seed=1), "r")
    with pytest.raises(ValidationError, match="no embeddings"):  # of a core that has none
        await anext(engine.encode(PROMPT, PoolingParams(), "e", trace_headers=HEADERS))
    tracing.close()
    spans = collector.named("llm_request")
    assert [span.attributes["gen_ai.request.id"] for span in spans] == ["r", "r", "r", "e"]
    assert (spans[-1].trace_id, spans[-1].status) == (TRACE, ERROR)


async def test_an_arrival_that_the_caller_names_is_the_beginning(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    core.on_add = lambda _, request: core.emit(request.request_id, A, finish="length")
    arrival = time.time() - 5
    await read(engine, PROMPT, DELTA, "r", arrival_time=arrival)
    assert request_span(collector, tracing).start == pytest.approx(arrival * 1e9, abs=1e6)


@pytest.mark.parametrize("headers", ["00-x", 5, [("traceparent", "x")]])
async def test_headers_of_another_kind_are_refused_and_leave_nothing(
    headers: Any, engine: AsyncLLM
) -> None:
    with pytest.raises(ValidationError, match="trace_headers must be a mapping"):
        await read(engine, PROMPT, DELTA, "r", trace_headers=headers)
    assert engine.get_num_unfinished_requests() == 0


async def test_no_text_is_in_what_is_sent(
    engine: AsyncLLM, core: ScriptedCore, collector: Collector, tracing: Tracing
) -> None:
    answer = [A, B] * 6  # longer than what random ids may spell
    core.on_add = lambda _, request: core.emit(request.request_id, *answer, finish="length")
    outputs = await read(engine, SECRET, DELTA, "r")
    await read(engine, SECRET, msgspec.structs.replace(DELTA, stop=[SECRET]), "r")
    tracing.close()
    sent = b"".join(collector.bodies)
    assert b"llm_request" in sent and b"maiden" not in sent
    text = outputs[-1].outputs[0].text
    assert len(text) == 12 and text.encode() not in sent


async def test_without_tracing_headers_go_nowhere(core: ScriptedCore, model: Path) -> None:
    core.on_add = lambda _, request: core.emit(request.request_id, A, finish="length")
    engine = AsyncLLM.connect(core.address, model=str(model))
    await engine.wait_ready(PATIENCE)
    assert not await engine.is_tracing_enabled()
    assert len(await read(engine, PROMPT, DELTA, "r", trace_headers="anything")) == 1
    engine.shutdown()


# ---- real cores


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("oracle"), vocab=2000, max_positions=2048)


@pytest.mark.slow
async def test_an_engine_of_its_own_sends_spans_until_it_is_shut_down(
    oracle: Path, collector: Collector
) -> None:
    arguments = AsyncEngineArgs(str(oracle), threads=1, otlp_traces_endpoint=collector.url)
    engine = AsyncLLM.from_engine_args(arguments)
    assert await engine.is_tracing_enabled()
    params = SamplingParams(temperature=0, max_tokens=20, output_kind=RequestOutputKind.DELTA)
    outputs = await read(engine, [41], params, "r", trace_headers=HEADERS)
    assert "".join(o.outputs[0].text for o in outputs) == oracle_answer(41, 20)
    engine.shutdown()
    span = collector.only("llm_request")
    check_parts(collector, span, "queue", "prefill", "decode")
    assert (span.parent_id, span.attributes["gen_ai.usage.output_tokens"]) == (SPAN, 20)


@pytest.mark.slow  # tests/end_to_end/chat/test_tracing.py has the same of a whole server
async def test_a_request_whose_core_is_killed_stays_one_span(
    oracle: Path, collector: Collector, tracing: Tracing
) -> None:
    arguments = AsyncEngineArgs(str(oracle), threads=1, pace=100)  # it is not done when it dies
    supervised = Supervised(arguments, stall_seconds=PATIENCE, tracing=tracing)
    await supervised.wait_ready()
    params = SamplingParams(temperature=0, max_tokens=200, output_kind=RequestOutputKind.DELTA)
    text = ""
    async for output in supervised.engine.generate([41], params, "r", trace_headers=HEADERS):
        if not text:
            supervised.core.process.kill()
            await asyncio.to_thread(supervised.core.process.wait)
            await supervised.replace()
        text += output.outputs[0].text
    supervised.close()
    assert text == oracle_answer(41, 200)
    span = request_span(collector, tracing)
    check_parts(collector, span, "queue", "prefill", "decode")
    assert (span.status, span.attributes["parley.num_resubmits"]) == (0, 1)
    assert span.attributes["gen_ai.usage.output_tokens"] == 200
