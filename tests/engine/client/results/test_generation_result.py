"""`generate_async`: read in the engine's loop, in another one, in a thread, and not at all."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    EngineDeadError,
    EngineGenerateError,
    GenerationResult,
    SamplingParams,
    ValidationError,
)
from engine.ipc import Abort, AddRequest
from tests.engine.helpers.connected_engine import PROMPT, A, B, C, receive, settle
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_oracle_model, oracle_answer

FIRST = 41


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


# ---- on a core with a script


async def test_a_stream_has_all_so_far_and_what_is_new(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    result = engine.generate_async(PROMPT, greedy(3), streaming=True)
    request = await receive(core, AddRequest)
    seen = []
    core.emit(request.request_id, A)
    async for step in result:
        assert step is result
        (answer,) = step.outputs
        seen.append((answer.text, answer.text_diff, answer.token_ids_diff, answer.length))
        if len(seen) == 1:
            core.emit(request.request_id, B, C, finish="length")
    assert seen == [("a", "a", [A], 1), ("abc", "bc", [B, C], 3)]
    assert result.finished and result.outputs[0].finish_reason == "length"
    assert (result.prompt_token_ids, result.error) == (PROMPT, None)


async def test_without_streaming_it_is_awaited(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(2))
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A)
    core.emit(request.request_id, B, finish="length")
    assert await result is result
    assert result.outputs[0].text == result.outputs[0].text_diff == "ab"
    assert await result.aresult() is result  # at once


async def test_a_reader_who_gives_up_loses_nothing(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(9), streaming=True)
    request = await receive(core, AddRequest)
    for token_id in (A, B):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await result._aresult_step()
        core.emit(request.request_id, token_id)
        await result._aresult_step()
    core.emit(request.request_id, C, finish="length")
    assert (await result).outputs[0].text == "abc"


async def test_an_abort_keeps_the_text(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(9), streaming=True)
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A)
    await result._aresult_step()
    result.abort()
    result.abort()
    assert await receive(core, Abort) == Abort([request.request_id])
    core.emit(request.request_id, finish="abort")
    await result
    assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("a", "abort")
    result.abort()  # of what has ended: nothing
    await engine.check_health()
    assert not [each for each in core.received() if isinstance(each, Abort)]


async def test_an_abort_before_the_engine_knows_the_request_counts(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    result = engine.generate_async(PROMPT, greedy(9))
    result.abort()
    request = await receive(core, AddRequest)
    assert await receive(core, Abort) == Abort([request.request_id])
    core.emit(request.request_id, finish="abort")
    assert (await result).outputs[0].finish_reason == "abort"


async def test_letting_go_of_it_aborts(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(9))
    request = await receive(core, AddRequest)
    del result
    gc.collect()
    assert await receive(core, Abort) == Abort([request.request_id])
    assert engine.get_num_unfinished_requests() == 0


async def test_a_request_that_fails_raises(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(9))
    request = await receive(core, AddRequest)
    core.emit(request.request_id, finish="error", error=("request_timeout", "too late"))
    for _ in range(2):
        with pytest.raises(EngineGenerateError, match="too late"):
            await result
    with pytest.raises(EngineGenerateError, match="too late"):
        await anext(result)
    assert result.error is not None and result.error.code == "request_timeout"


async def test_bad_input_is_refused_when_it_is_read(engine: AsyncLLM, core: ScriptedCore) -> None:
    wrong: Any = "high"
    for inputs, priority in (([], 0), (PROMPT, wrong)):
        result = engine.generate_async(inputs, greedy(1), priority=priority)
        for _ in range(2):
            with pytest.raises(ValidationError):
                await result
            with pytest.raises(ValidationError):
                await anext(result)
            with pytest.raises(ValidationError):
                await asyncio.to_thread(result.result)
            with pytest.raises(ValidationError):
                await asyncio.to_thread(next, result)
    with pytest.raises(ValidationError, match="lora_request"):
        await engine.generate_async(PROMPT, greedy(1), lora_request=object())  # type: ignore[arg-type]  # what is no adapter
    assert engine.get_num_unfinished_requests() == 0


async def test_its_own_loop_must_not_wait_for_it(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(9))
    with pytest.raises(RuntimeError, match="await it instead"):
        result.result()
    result.abort()
    request = await receive(core, AddRequest)
    core.emit(request.request_id, finish="abort")
    await result


def test_without_an_event_loop_there_must_be_one_given(model: Path, address: str) -> None:
    with ScriptedCore(address):
        engine = AsyncLLM.connect(address, model=str(model))
        with pytest.raises(RuntimeError, match="no running event loop"):
            engine.generate_async(PROMPT, greedy(1))
        engine.shutdown()


async def test_a_thread_may_wait_for_it(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(2), streaming=True)
    request = await receive(core, AddRequest)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(result.result, 0.01)
    core.emit(request.request_id, A)
    core.emit(request.request_id, B, finish="length")
    assert await asyncio.to_thread(result.result, PATIENCE) is result
    assert result.outputs[0].text == "ab"


async def test_a_killed_core_raises_in_its_readers(engine: AsyncLLM, core: ScriptedCore) -> None:
    result = engine.generate_async(PROMPT, greedy(9), streaming=True)
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A)
    await result._aresult_step()
    await asyncio.to_thread(core.kill)
    with pytest.raises(EngineDeadError):
        await result
    assert result.outputs[0].text == "a" and result.finished


async def test_the_next_core_goes_on_with_it(core: ScriptedCore, address: str, model: Path) -> None:
    engine = AsyncLLM.connect(address, model=str(model))
    await engine.wait_ready(PATIENCE)
    result = engine.generate_async(PROMPT, greedy(2), streaming=True)
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A)
    await result._aresult_step()
    await asyncio.to_thread(core.kill)
    await settle(lambda: not engine.is_ready)
    with ScriptedCore(address, epoch=2) as following:
        again = await receive(following, AddRequest)
        assert again.resume_token_ids == [A]
        following.emit(again.request_id, B, finish="length")
        assert (await result).outputs[0].text == "ab"
        engine.shutdown()


# ---- on a real core, whose loop is in a thread


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = build_oracle_model(tmp_path_factory.mktemp("oracle"), vocab=2000, max_positions=2048)
    with LLM.from_engine_args(
        AsyncEngineArgs(str(folder), num_gpu_blocks_override=300, threads=1)
    ) as llm:
        yield llm


@pytest.fixture
async def free(llm: LLM) -> AsyncIterator[LLM]:
    """After each test nothing may be left in the core."""
    yield llm
    metrics = await asyncio.to_thread(llm.get_metrics)
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


def test_a_plain_loop_reads_a_stream(llm: LLM) -> None:
    result = llm.generate_async([FIRST], greedy(30), streaming=True)
    pieces = [step.outputs[0].text_diff for step in result]
    assert "".join(pieces) == result.outputs[0].text == oracle_answer(FIRST, 30)


def test_results_are_waited_for_in_any_order(llm: LLM) -> None:
    results = [llm.generate_async([FIRST + n], greedy(10)) for n in range(5)]
    for n in reversed(range(5)):
        assert results[n].result(PATIENCE).outputs[0].text == oracle_answer(FIRST + n, 10)


async def test_another_event_loop_awaits_and_iterates(free: LLM) -> None:
    async def read(result: GenerationResult) -> str:
        return "".join([step.outputs[0].text_diff async for step in result])

    whole = free.generate_async([FIRST], greedy(20))
    streams = [free.generate_async([FIRST], greedy(20), streaming=True) for _ in range(3)]
    texts = await asyncio.gather(*map(read, streams))
    assert texts == [oracle_answer(FIRST, 20)] * 3
    assert (await whole).outputs[0].text == oracle_answer(FIRST, 20)


async def test_another_event_loop_aborts(free: LLM) -> None:
    result = free.generate_async([FIRST], greedy(1900), streaming=True)
    await result._aresult_step()
    result.abort()
    answer = (await result).outputs[0]
    assert answer.finish_reason == "abort"
    assert oracle_answer(FIRST, 1900).startswith(answer.text)


@pytest.mark.slow
def test_a_shutdown_raises_in_a_reader_and_in_later_ones(llm: LLM) -> None:
    other = LLM.from_engine_args(
        AsyncEngineArgs(llm.model_config.model, num_gpu_blocks_override=300, threads=1)
    )
    result = other.generate_async([FIRST], greedy(1900), streaming=True)
    result._result_step()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            result.result()
        except EngineDeadError as error:
            errors.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    other.shutdown()
    reader.join()
    assert len(errors) == 1
    with pytest.raises(EngineDeadError):
        other.generate_async([FIRST], greedy(1))
