"""Where vLLM's generations of this class disagree, each point one test: what a caller may do."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import engine as package
from engine.client.args import AsyncEngineArgs, EngineArgs
from engine.client.async_llm import AsyncLLM, AsyncLLMEngine
from engine.client.parts import constructor_args
from engine.client.requests.iteration_stats import IterationStats
from engine.client.requests.stat_loggers import StatLoggers
from engine.errors import EngineDeadError, MaxQueuedTokensError, ValidationError
from engine.ipc import AddRequest, SchedulerStats
from engine.lora import LoRARequest
from engine.outputs import RequestOutput
from engine.pooling import EmbeddingRequestOutput, PoolingParams, PoolingRequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.small_tokenizers import build_chatml
from tests.engine.helpers.threaded_core import ThreadedCore, connected
from tests.helpers.patience import PATIENCE

PROMPT = [41, 42, 43]
GREEDY = SamplingParams(temperature=0, max_tokens=3, output_kind=RequestOutputKind.FINAL_ONLY)


@pytest.fixture
def core() -> Iterator[ThreadedCore]:
    with ThreadedCore() as core:
        yield core


@pytest.fixture
async def engine(core: ThreadedCore, tmp_path: Path) -> AsyncIterator[AsyncLLM]:
    async with connected(core, build_chatml(tmp_path)) as engine:
        yield engine


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    *_, output = [output async for output in outputs]
    return output


# ---- generate, encode, add_request


async def test_generate_takes_six_arguments_by_position(engine: AsyncLLM) -> None:
    output = await last(engine.generate("text", GREEDY, "r", PROMPT, None, None))
    assert (output.request_id, output.prompt, output.prompt_token_ids) == ("r", "text", PROMPT)


async def test_generate_takes_vllm_s_keywords(engine: AsyncLLM) -> None:
    outputs = engine.generate(
        PROMPT,
        GREEDY,
        request_id="r",
        prompt_text="shown",
        tokenization_kwargs=None,
        trace_headers={"traceparent": "00"},
        priority=1,
        data_parallel_rank=0,
        session_id="s",
        kv_hints=None,
        reasoning_ended=None,
        reasoning_parser_kwargs=None,
        resume_token_ids=None,
    )
    assert (await last(outputs)).prompt == "shown"


async def test_tutorial_s_prose_order_is_understood_with_a_warning(engine: AsyncLLM) -> None:
    arguments: Any = ("request-1", PROMPT, GREEDY)
    with pytest.warns(DeprecationWarning, match="order"):
        output = await last(engine.generate(*arguments))
    assert (output.request_id, output.prompt_token_ids) == ("request-1", PROMPT)


async def test_prefix_pos_is_accepted_with_a_warning(engine: AsyncLLM) -> None:
    with pytest.warns(DeprecationWarning, match="automatically"):
        await last(engine.generate(PROMPT, GREEDY, "r", prefix_pos=2))


async def test_mistyped_argument_is_an_error_at_the_first_iteration(engine: AsyncLLM) -> None:
    options: dict[str, Any] = {"priorty": 1}
    outputs = engine.generate(PROMPT, GREEDY, "r", **options)
    with pytest.raises(TypeError, match="priorty"):
        await anext(outputs)


@pytest.mark.parametrize("fourth", [[1, 2], LoRARequest("a", 1, "/a"), None])
async def test_encode_takes_ids_or_an_adapter_as_the_fourth(engine: AsyncLLM, fourth: Any) -> None:
    outputs = engine.encode("text", PoolingParams(), "r", fourth)
    if isinstance(fourth, LoRARequest):
        with pytest.raises(ValidationError, match="lora_request needs an engine"):
            await anext(outputs)
        return
    (output,) = [output async for output in outputs]
    assert output.prompt_token_ids == (fourth or engine.tokenizer.encode("text"))
    assert output.outputs.data == [1, len(output.prompt_token_ids)] and output.finished


async def test_add_request_takes_nine_arguments_by_position(engine: AsyncLLM) -> None:
    stream = await engine.add_request("r", "text", GREEDY, 123.5, PROMPT, None, None, None, 7)
    output = await last(stream)
    assert (output.prompt, output.prompt_token_ids) == ("text", PROMPT)
    assert output.metrics is not None and output.metrics.arrival_time == 123.5
    with pytest.raises(ValidationError, match="lora_request needs an engine"):
        await engine.add_request("r", PROMPT, GREEDY, None, None, LoRARequest("a", 1, "/a"))


async def test_a_rendered_prompt_says_when_it_came_in(engine: AsyncLLM) -> None:
    prompt: Any = {"type": "token", "prompt_token_ids": PROMPT, "arrival_time": 5.0}
    output = await last(engine.generate(prompt, GREEDY, "r"))
    assert output.metrics is not None and output.metrics.arrival_time == 5.0


@pytest.mark.parametrize("rank", [1, 7, -1, "0", True])
async def test_a_rank_that_there_is_not_is_refused(engine: AsyncLLM, rank: Any) -> None:
    with pytest.raises(ValidationError, match="data_parallel_rank must be 0"):
        await anext(engine.generate(PROMPT, GREEDY, "r", data_parallel_rank=rank))


async def test_min_tokens_beyond_the_context_are_refused(engine: AsyncLLM) -> None:
    room = engine.model_config.max_model_len - len(PROMPT)
    params = SamplingParams(min_tokens=room + 1, max_tokens=None)
    with pytest.raises(ValidationError, match=f"min_tokens must be at most {room}") as caught:
        await engine.add_request("r", PROMPT, params)
    assert caught.value.parameter == "min_tokens"
    stream = await engine.add_request("r", PROMPT, SamplingParams(min_tokens=room, max_tokens=None))
    stream.close()


async def test_a_queue_full_of_tokens_differs_from_one_full_of_requests(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"max_num_seqs": 1, "max_num_queued_tokens": 5}
    with ThreadedCore(**settings) as core:
        async with connected(core, build_chatml(tmp_path)) as engine:
            core.hold()
            streams = [await engine.add_request("0", PROMPT, GREEDY)]
            await asyncio.to_thread(core.is_in_step.wait)
            streams += [await engine.add_request(str(i), PROMPT, GREEDY) for i in (1, 2)]
            await core.release_after_message(2)
            with pytest.raises(MaxQueuedTokensError, match="tokens are waiting already"):
                await last(streams[2])
            for stream in streams[:2]:
                await last(stream)


async def test_add_request_refuses_adapters_by_name(engine: AsyncLLM) -> None:
    with pytest.raises(NotImplementedError, match="prompt_adapter_request"):
        await engine.add_request("r", PROMPT, GREEDY, prompt_adapter_request=object())
    adapter = LoRARequest("a", 1, "/a")
    for params in (GREEDY, PoolingParams()):
        with pytest.raises(ValidationError, match="lora_request needs an engine"):
            await engine.add_request("r", PROMPT, params, lora_request=adapter)
    other: Any = object()
    with pytest.raises(NotImplementedError, match="object"):
        await engine.add_request("r", PROMPT, other)


async def test_result_of_add_request_is_iterator_and_collector(engine: AsyncLLM) -> None:
    stream = await engine.add_request("r", PROMPT, GREEDY)
    assert stream.request_id == "r" and stream.get_nowait() is None
    assert (await stream.get()).finished
    stream.close()
    stream = await engine.add_request("r", PROMPT, GREEDY)
    assert aiter(stream) is stream
    assert (await anext(stream)).finished


# ---- ids, and the end after an abort


async def test_integer_id_is_echoed_and_aborted(core: ThreadedCore, engine: AsyncLLM) -> None:
    assert (await last(engine.generate("abc", GREEDY, 0))).request_id == 0
    core.hold()
    stream = await engine.add_request(0, PROMPT, GREEDY)
    await asyncio.to_thread(core.is_in_step.wait)
    await engine.abort(0)
    await core.release_after_message()
    output = await last(stream)
    assert (output.request_id, output.outputs[0].finish_reason) == (0, "abort")


async def test_id_in_flight_is_refused_until_its_abort(engine: AsyncLLM) -> None:
    first = await engine.add_request("r", PROMPT, GREEDY)
    with pytest.raises(ValueError, match="open already") as caught:
        await engine.add_request("r", PROMPT, GREEDY)
    assert isinstance(caught.value, ValidationError)
    await engine.abort("r")
    second = await engine.add_request("r", PROMPT, GREEDY)
    assert (await last(first)).outputs[0].finish_reason == "abort"
    assert (await last(second)).outputs[0].finish_reason == "length"


# ---- sync and async names


async def test_tokenizer_may_be_awaited_or_not(engine: AsyncLLM) -> None:
    tokenizer: Any = engine.get_tokenizer()
    assert await tokenizer is engine.get_tokenizer(None) is engine.tokenizer


async def test_number_of_requests_may_be_awaited_or_not(engine: AsyncLLM) -> None:
    stream = await engine.add_request("r", PROMPT, GREEDY)
    number: Any = engine.get_num_unfinished_requests()
    assert (number, await number) == (1, 1)
    stream.close()


async def test_configs_are_there_in_both_forms(engine: AsyncLLM) -> None:
    assert await engine.get_vllm_config() == engine.vllm_config
    assert await engine.get_model_config() == engine.model_config
    assert await engine.get_scheduler_config() == engine.scheduler_config
    assert (engine.model_config.max_model_len, engine.model_config.get_vocab_size()) == (200, 1000)
    scheduler = engine.scheduler_config
    assert (scheduler.max_num_batched_tokens, scheduler.policy) == (32, "fcfs")
    assert engine.vllm_config.cache_config.block_size == 4
    assert (await engine.get_parallel_config()).world_size == 1
    assert (await engine.get_decoding_config()).backend is None


async def test_preprocessor_and_tasks_are_available(engine: AsyncLLM) -> None:
    preprocessor = await engine.get_input_preprocessor()
    ids = engine.tokenizer.encode("hello")
    assert preprocessor.preprocess("hello") == {"prompt_token_ids": ids, "prompt": "hello"}
    assert await engine.get_supported_tasks() == ("generate", "embed")


async def test_load_is_known_before_a_request_is_made(core: ThreadedCore, engine: AsyncLLM) -> None:
    assert engine.get_num_queued_tokens() == 0
    core.hold()
    stream = await engine.add_request("r", PROMPT, GREEDY)
    assert engine.get_num_queued_tokens() == 3
    engine.check_admission(n=3, request_id="r")
    core.release()
    await last(stream)
    assert engine.get_num_queued_tokens() == 0


async def test_core_is_reached_by_vllm_s_names(core: ThreadedCore, engine: AsyncLLM) -> None:
    core.hold()
    stream = await engine.add_request("r", PROMPT, GREEDY)
    await asyncio.to_thread(core.is_in_step.wait)
    assert engine.output_processor.has_unfinished_requests()
    await engine.engine_core.abort_requests_async(list(engine.output_processor.request_states))
    await core.release_after_message()
    assert (await last(stream)).outputs[0].finish_reason == "abort"
    await engine.engine_core.add_request_async(AddRequest("foreign", PROMPT, GREEDY, 0.0))
    await engine.wait_for_requests_to_drain()


# ---- start and end


@pytest.mark.parametrize(
    ("arguments", "keywords", "named"),
    [
        ((object(), object(), True), {}, "objects of vLLM"),
        ((False, False, object(), object()), {}, "objects of vLLM"),
        ((), {"vllm_config": object(), "executor_class": object()}, "vllm_config"),
        ((False, False), {"model": "m", "placement_group": object()}, "placement_group"),
        ((True, False), {"model": "m"}, "worker_use_ray=True"),
        ((False, True, "m"), {}, "engine_use_ray=True"),
        ((False, False, "m"), {"tensor_parallel_size": 2}, "tensor_parallel_size=2"),
    ],
)
def test_constructor_refuses_by_name_what_is_not_there(
    arguments: tuple[Any, ...], keywords: dict[str, Any], named: str
) -> None:
    with pytest.raises(NotImplementedError, match=named):
        AsyncLLM(*arguments, **keywords)
    assert AsyncLLMEngine is AsyncLLM


def test_constructor_needs_a_model_and_knows_its_names() -> None:
    with pytest.raises(TypeError, match="needs a model"):
        AsyncLLMEngine(False, False, log_requests=False)
    with pytest.raises(TypeError, match="max_num_seq"):
        AsyncLLMEngine(False, False, model="m", max_num_seq=3)
    with pytest.raises(ValidationError, match="max_num_seqs"):
        AsyncLLMEngine(False, False, model="m", max_num_seqs=0)


@pytest.mark.parametrize(
    "args",
    [
        constructor_args(False, False, ("m",), {"lora_config": None, "max_num_seqs": 3}),
        constructor_args(False, False, (), {"model": "m", "max_num_seqs": 3}),
    ],
)
def test_constructor_s_arguments_are_those_of_the_engine(args: EngineArgs) -> None:
    assert args == AsyncEngineArgs("m", max_num_seqs=3)


async def test_background_loop_starts_and_ends(core: ThreadedCore, tmp_path: Path) -> None:
    engine = AsyncLLM.connect(core.address, model=str(build_chatml(tmp_path)))
    await engine.start_background_loop()
    await engine.start_background_loop()
    await engine.wait_ready(PATIENCE)
    assert engine.is_running and not engine.is_stopped and not engine.errored
    await engine.shutdown_background_loop()
    await engine.shutdown_background_loop()
    engine.shutdown()
    engine.shutdown(timeout=1.0)
    assert engine.is_stopped and engine.errored and not engine.is_running
    with pytest.raises(EngineDeadError):
        await engine.start_background_loop()


async def test_dead_engine_raises_a_runtime_error(core: ThreadedCore, tmp_path: Path) -> None:
    engine = AsyncLLM.connect(core.address, model=str(build_chatml(tmp_path)))
    await engine.wait_ready(PATIENCE)
    assert engine.dead_error is None
    engine.shutdown()
    with pytest.raises(RuntimeError) as caught:
        await engine.check_health()
    assert isinstance(caught.value, EngineDeadError)
    assert isinstance(engine.dead_error, EngineDeadError)


def test_stat_loggers_come_by_name_or_from_factories() -> None:
    calls: list[Any] = []

    class Logger:
        def __init__(self, config: Any, index: int) -> None:
            calls.append((config, index))

        def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
            calls.extend((scheduler_stats, iteration_stats))

        def log_engine_initialized(self) -> None:
            calls.append("initialized")

        def log(self) -> None:
            calls.append("log")

    config, stats, iteration = object(), SchedulerStats(1, 0, 0, 9, 8), IterationStats()
    givens: tuple[Any, ...] = ([Logger], {"mine": Logger(config, 0)})
    for given in givens:
        loggers = StatLoggers(log_lines=False)
        loggers.add_all(given, config)
        loggers.record(stats, iteration)
        loggers.log(None)
    once = ["initialized", stats, iteration, "log"]
    assert calls == [(config, 0), (config, 0), *once, *once]
    with pytest.raises(TypeError, match="log"):
        loggers.add("none", object())


# ---- names


def test_relics_are_accepted_and_ray_is_refused() -> None:
    AsyncEngineArgs(
        "m",
        worker_use_ray=False,
        engine_use_ray=False,
        disable_log_requests=True,
        max_log_len=10,
    )
    with pytest.raises(NotImplementedError, match="worker_use_ray=True is not"):
        AsyncEngineArgs("m", worker_use_ray=True)
    with pytest.raises(NotImplementedError, match="engine_use_ray=True is not"):
        AsyncEngineArgs("m", engine_use_ray=True)


def test_names_are_imported_from_the_package() -> None:
    names = (
        "AsyncLLM AsyncLLMEngine AsyncEngineArgs SamplingParams RequestOutputKind RequestOutput "
        "CompletionOutput PoolingParams TextPrompt TokensPrompt LoRARequest EngineDeadError "
        "PoolingRequestOutput EmbeddingRequestOutput"
    )
    for name in names.split():
        assert hasattr(package, name) and name in package.__all__
    assert EmbeddingRequestOutput is PoolingRequestOutput


def test_generate_and_encode_are_async_generators() -> None:
    assert inspect.isasyncgenfunction(AsyncLLM.generate)
    assert inspect.isasyncgenfunction(AsyncLLM.encode)
