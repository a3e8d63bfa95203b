"""Each name that documents about vLLM and TensorRT-LLM describe, called as they write it.

`SIGNATURES` are theirs, word for word. What becomes of a call here is a row of docs/engine.md: a
name with a call of its own below is in that table, and the other way round.
"""

import argparse
import asyncio
import inspect
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import engine as package
from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    AsyncLLMWorker,
    EngineArgs,
    EngineDeadError,
    GenerationTask,
    LoRARequest,
    PoolingParams,
    RequestManager,
    RequestOutput,
    RequestOutputKind,
    RequestStatus,
    SamplingParams,
    StreamGenerationTask,
    StreamingRequest,
    TaskStatus,
    ValidationError,
    stream_generate,
    stream_generation_handler,
)
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import build_oracle_model, oracle_answer

FIRST = 41  # the last token of a prompt, which says what a greedy answer is
TABLE = (ROOT / "docs" / "engine.md").read_text().partition("\n### Documents about vLLM")[2]
CELLS = re.findall(r"^\| `([\w.]+)` \| (works|differs|refused|missing) \|(.*)\|$", TABLE, re.M)
ROWS = {name: what for name, what, _ in CELLS}

SIGNATURES = {
    "AsyncLLMEngine": "worker_use_ray engine_use_ray args log_requests max_log_len "
    "start_engine_loop",
    "from_engine_args": "engine_args",
    "generate": "prompt sampling_params request_id prompt_token_ids lora_request prefix_pos",
    "encode": "prompt pooling_params request_id prompt_token_ids lora_request",
    "abort": "request_id",
    "add_request": "request_id prompt params arrival_time prompt_token_ids lora_request "
    "trace_headers prompt_adapter_request priority",
    "get_tokenizer": "lora_request",
    "do_log_stats": "scheduler_outputs model_output",
    "add_logger": "logger_name logger",
    "remove_logger": "logger_name",
    "reset_prefix_cache": "device",
    "sleep": "level",
    "wake_up": "tags",
    "add_lora": "lora_request",
    "collective_rpc": "method timeout args kwargs",
    "stream_generate": "engine prompt sampling_params request_id",
    "RequestManager.add_request": "request_id prompt sampling_params prompt_token_ids "
    "arrival_time lora_request",
    "RequestManager.abort_request": "request_id",
    "RequestManager.get_request_status": "request_id",
    "StreamingRequest": "request_id prompt sampling_params arrival_time lora_request",
}
Call = Callable[[AsyncLLM], Awaitable[None]]
CALLS: dict[str, Call] = {}


def documented(*names: str) -> Callable[[Call], Call]:
    def register(call: Call) -> Call:
        CALLS.update(dict.fromkeys(names, call))
        return call

    return register


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


async def text(outputs: AsyncIterator[RequestOutput]) -> str:
    *_, last = [output async for output in outputs]
    return last.outputs[0].text


def start(folder: Path) -> AsyncLLM:
    """As the page of `AsyncLLMEngine` builds one."""
    return AsyncLLMEngine(
        False, False, str(folder), log_requests=True, num_gpu_blocks_override=300, threads=1
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("oracle"), vocab=2000, max_positions=2048)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[AsyncLLM]:
    engine = start(model)
    yield engine
    engine.shutdown()


def test_page_and_calls_name_the_same() -> None:
    assert set(ROWS) == set(CALLS)
    assert [name for name, _, _ in CELLS] == list(ROWS)  # none twice


def test_what_does_not_just_work_has_a_reason() -> None:
    for name, what, reason in CELLS:
        assert (what == "works") == (not reason.strip()), name


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_documented_order(name: str) -> None:
    owner: Any = package if hasattr(package, name.partition(".")[0]) else AsyncLLM
    for part in name.split("."):
        owner = getattr(owner, part)
    ours = [each for each in inspect.signature(owner).parameters if each != "self"]
    theirs = SIGNATURES[name].split()
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("name", CALLS)
async def test_each_name_does_what_the_page_says(name: str, engine: AsyncLLM) -> None:
    if ROWS[name] == "refused":
        with pytest.raises(NotImplementedError, match=name):
            await CALLS[name](engine)
    elif ROWS[name] == "missing":
        with pytest.raises(AttributeError, match=name):
            await CALLS[name](engine)
    else:
        await CALLS[name](engine)
    assert engine.get_num_unfinished_requests() == 0


async def test_an_engine_that_was_called_into_being_says_that_its_core_was_killed(
    model: Path,
) -> None:
    engine = start(model)
    async with asyncio.timeout(PATIENCE):
        outputs = engine.generate([FIRST], greedy(1500), "r")
        await anext(outputs)
        assert engine.is_running and engine.dead_error is None
        assert engine._parts.core is not None
        engine._parts.core.process.kill()
        with pytest.raises(EngineDeadError):
            await text(outputs)
    assert engine.errored and engine.is_stopped and not engine.is_running
    assert isinstance(engine.dead_error, EngineDeadError)
    with pytest.raises(RuntimeError):
        await engine.check_health()
    engine.shutdown()


# ---- AsyncLLMEngine: requests


@documented("AsyncLLMEngine")
async def call_the_class(engine: AsyncLLM) -> None:
    """The module's engine was built by it; what it does not take it names."""
    assert await text(engine.generate([FIRST], greedy(3), "r")) == oracle_answer(FIRST, 3)
    for arguments in ((True, False, "m"), (False, True, "m"), (False, False, object())):
        with pytest.raises(NotImplementedError):
            AsyncLLMEngine(*arguments)


@documented("from_engine_args", "shutdown")
async def start_from_arguments(engine: AsyncLLM) -> None:
    arguments = AsyncEngineArgs(
        model=engine.model_config.model,
        tensor_parallel_size=1,
        max_num_seqs=10,
        enforce_eager=True,
        num_gpu_blocks_override=300,
        threads=1,
    )
    other = AsyncLLMEngine.from_engine_args(arguments)
    try:
        prompts = [[FIRST + n] for n in range(4)]
        answers = [text(other.generate(p, greedy(5), f"req-{p[0]}")) for p in prompts]
        assert await asyncio.gather(*answers) == [oracle_answer(FIRST + n, 5) for n in range(4)]
    finally:
        other.shutdown()
    assert other.is_stopped


@documented("generate", "SamplingParams", "RequestOutputKind")
async def stream_a_few_tokens(engine: AsyncLLM) -> None:
    params = SamplingParams(
        max_tokens=4, temperature=0.0, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA
    )
    named = engine.generate(request_id="a", prompt=[FIRST], sampling_params=params)
    outputs = [output async for output in named]
    assert "".join(output.outputs[0].text for output in outputs) == oracle_answer(FIRST, 4)
    assert [output.finished for output in outputs].index(True) == len(outputs) - 1
    six = engine.generate(None, greedy(2), 0, [FIRST], None, None)
    assert await text(six) == oracle_answer(FIRST, 2)
    tutorial: Any = ("b", [FIRST], greedy(2))
    with pytest.warns(DeprecationWarning, match="order"):
        assert await text(engine.generate(*tutorial)) == oracle_answer(FIRST, 2)
    with pytest.warns(DeprecationWarning, match="prefix_pos"):
        await text(engine.generate([FIRST], greedy(2), "c", prefix_pos=1))


@documented("encode")
async def encode_a_text(engine: AsyncLLM) -> None:
    (output,) = [one async for one in engine.encode(None, PoolingParams(), "r", [FIRST], None)]
    assert output.finished and output.prompt_token_ids == [FIRST]
    assert math.hypot(*output.outputs.data) == pytest.approx(1)


@documented("abort")
async def abort_a_stream(engine: AsyncLLM) -> None:
    outputs = engine.generate([FIRST], greedy(1500), "r")
    await anext(outputs)
    await engine.abort("r")
    *_, last = [output async for output in outputs]
    assert last.finished and last.outputs[0].finish_reason == "abort"
    await engine.abort("r")
    await engine.abort("never was")


@documented("add_request")
async def add_by_position(engine: AsyncLLM) -> None:
    stream = await engine.add_request("r", None, greedy(3), 12.5, [FIRST], None, {}, None, 1)
    assert await text(stream) == oracle_answer(FIRST, 3)
    pooled = await engine.add_request("r", None, PoolingParams(), 12.5, [FIRST], None, {}, None, 1)
    output: Any = await pooled.get()
    assert output.finished and len(output.outputs.data) == 256


@documented("get_num_unfinished_requests")
async def count_what_is_open(engine: AsyncLLM) -> None:
    stream = await engine.add_request("r", [FIRST], greedy(1500))
    number: Any = engine.get_num_unfinished_requests()
    assert await number == 1
    stream.close()


# ---- AsyncLLMEngine: what it knows


@documented(
    "get_model_config",
    "get_vllm_config",
    "get_parallel_config",
    "get_decoding_config",
    "get_scheduler_config",
    "get_lora_config",
)
async def ask_for_configurations(engine: AsyncLLM) -> None:
    config = await engine.get_vllm_config()
    assert await engine.get_model_config() == config.model_config
    assert config.model_config.get_vocab_size() == 2000
    assert await engine.get_scheduler_config() == config.scheduler_config
    assert await engine.get_decoding_config() == config.decoding_config
    assert (await engine.get_parallel_config()).tensor_parallel_size == 1
    lora_config: Any = engine.get_lora_config()
    assert await lora_config is config.lora_config is None


@documented("get_tokenizer", "get_input_preprocessor")
async def ask_for_the_text_s_side(engine: AsyncLLM) -> None:
    tokenizer: Any = engine.get_tokenizer(None)
    words = oracle_answer(FIRST, 3)
    ids = (await tokenizer).encode(words)
    assert ids == [FIRST + 1, FIRST + 2, FIRST + 3]
    preprocessor = await engine.get_input_preprocessor()
    assert preprocessor.preprocess(words)["prompt_token_ids"] == ids


@documented("check_health", "is_running", "is_stopped", "errored", "dead_error")
async def ask_how_it_is(engine: AsyncLLM) -> None:
    await engine.check_health()
    assert (engine.is_running, engine.is_stopped, engine.errored) == (True, False, False)
    assert engine.dead_error is None


@documented("is_tracing_enabled")
async def ask_for_what_is_off(engine: AsyncLLM) -> None:
    assert await engine.is_tracing_enabled() is False


# ---- AsyncLLMEngine: its calls


@documented("start_background_loop", "shutdown_background_loop")
async def begin_and_end(engine: AsyncLLM) -> None:
    assert engine._parts.directory is not None
    address, folder = engine._parts.directory.address, engine.model_config.model
    other = AsyncLLM.connect(address, model=folder)
    await other.start_background_loop()
    await other.wait_ready(PATIENCE)
    assert await text(other.generate([FIRST], greedy(2), "r")) == oracle_answer(FIRST, 2)
    await other.shutdown_background_loop()
    assert other.is_stopped and other.dead_error is not None


@documented("do_log_stats", "add_logger", "remove_logger")
async def log_the_load(engine: AsyncLLM) -> None:
    heard: list[Any] = []

    class Logger:
        def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
            heard.append(iteration_stats.num_generation_tokens)

        def log(self) -> None:
            heard.append("log")

    await engine.add_logger("mine", Logger())
    await text(engine.generate([FIRST], greedy(6), "r"))
    await engine.do_log_stats(None, None)
    await engine.remove_logger("mine")
    await text(engine.generate([FIRST], greedy(6), "r"))
    assert heard.pop() == "log" and sum(heard) == 6


@documented("start_profile", "stop_profile")
async def record_a_profile(engine: AsyncLLM) -> None:
    await engine.start_profile()
    await text(engine.generate([FIRST], greedy(2), "r"))
    path = await engine.stop_profile()
    assert os.stat(path).st_size > 0
    os.unlink(path)


@documented("reset_mm_cache", "reset_prefix_cache")
async def forget_what_is_cached(engine: AsyncLLM) -> None:
    # So many that a busy machine cannot make the call come after the last one has ended.
    streams = [await engine.add_request(f"{n}", [FIRST], greedy(1500)) for n in range(32)]
    await streams[0].get()
    assert await engine.reset_prefix_cache() is False
    await engine.abort([f"{n}" for n in range(32)])
    for stream in streams:
        await text(stream)
    assert await engine.reset_prefix_cache(device="cpu") is True
    await engine.reset_mm_cache()


@documented("sleep", "wake_up", "is_sleeping")
async def sleep_and_wake_up(engine: AsyncLLM) -> None:
    sleep: Callable[..., Awaitable[object]] = engine.sleep
    wake_up: Callable[..., Awaitable[object]] = engine.wake_up
    for level, tags in ((1, None), (2, ["weights", "kv_cache"])):
        assert await sleep(level=level) is None
        assert await engine.is_sleeping() is True
        assert await wake_up(tags=tags) is None
        assert await engine.is_sleeping() is False
        assert await text(engine.generate([FIRST], greedy(3), "r")) == oracle_answer(FIRST, 3)


@documented("add_lora")
async def add_an_adapter(engine: AsyncLLM) -> None:
    with pytest.raises(ValidationError, match="enable_lora=True"):  # this engine was not
        await engine.add_lora(LoRARequest("a", 1, "/nowhere"))


@documented("collective_rpc")
async def call_the_worker(engine: AsyncLLM) -> None:
    assert await engine.collective_rpc("check_health", 5.0, (), {}) == [None]
    assert await engine.collective_rpc("get_supported_tasks") == [["generate", "embed"]]


# ---- beside the engine


@documented("EngineArgs", "AsyncEngineArgs")
async def describe_an_engine(engine: AsyncLLM) -> None:
    relics: dict[str, Any] = {
        "worker_use_ray": False,
        "engine_use_ray": False,
        "disable_log_requests": False,
        "max_log_len": None,
    }
    arguments = AsyncEngineArgs("m", **relics)
    assert isinstance(arguments, EngineArgs) and arguments == AsyncEngineArgs("m")
    for name in ("worker_use_ray", "engine_use_ray"):
        with pytest.raises(NotImplementedError, match=name):
            AsyncEngineArgs("m", **(relics | {name: True}))
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    read = parser.parse_args(["--model", "m", "--no-worker-use-ray"])
    assert AsyncEngineArgs.from_cli_args(read) == arguments


@documented("stream_generate")
async def stream_only_the_text(engine: AsyncLLM) -> None:
    pieces = [piece async for piece in stream_generate(engine, f"t{FIRST:05} ", greedy(8), "r")]
    assert "".join(pieces) == oracle_answer(FIRST, 8)


@documented(
    "RequestManager.add_request",
    "RequestManager.abort_request",
    "RequestManager.get_request_status",
    "RequestStatus",
)
async def keep_requests_by_id(engine: AsyncLLM) -> None:
    manager = RequestManager(engine)
    await manager.add_request("done", "", greedy(3), [FIRST], 1.0, None)
    await manager.add_request("stopped", "", greedy(1500), [FIRST])
    open_ones = (RequestStatus.WAITING, RequestStatus.RUNNING)
    assert await manager.get_request_status("stopped") in open_ones
    await manager.abort_request("stopped")
    assert await text(manager.stream("done")) == oracle_answer(FIRST, 3)
    assert [output async for output in manager.stream("stopped")][-1].finished
    assert await manager.get_request_status("done") is RequestStatus.COMPLETED
    assert await manager.get_request_status("stopped") is RequestStatus.CANCELLED
    documented_values = ["waiting", "running", "completed", "cancelled", "failed"]
    assert [each.value for each in RequestStatus] == documented_values


@documented("StreamingRequest")
async def describe_a_request(engine: AsyncLLM) -> None:
    request = StreamingRequest("r", "text", greedy(1), 12.5, None)
    assert (request.request_id, request.arrival_time) == ("r", 12.5)


# ---- TensorRT-LLM


@documented("GenerationTask", "StreamGenerationTask", "stream_generation_handler")
async def step_through_a_task(engine: AsyncLLM) -> None:
    worker = AsyncLLMWorker(engine)
    given = GenerationTask(input_tokens=[FIRST], max_tokens=1500, temperature=0, num_logprobs=1)
    task = StreamGenerationTask.create_from_generation_task(given, streaming_step=5)
    assert await stream_generation_handler(worker, task) is TaskStatus.SUCCESS
    assert task.output_tokens and task.logprobs and task.request_handle is not None
    num_first = len(task.output_tokens)
    assert num_first >= 5 and not task.end_flag
    task.cancel_flag = True
    assert await stream_generation_handler(worker, task) is TaskStatus.SUCCESS
    assert task.end_flag and len(task.output_tokens) >= num_first
    assert task.output_str == oracle_answer(FIRST, len(task.output_tokens))


@documented("generate_async")
async def generate_as_tensorrt_does(engine: AsyncLLM) -> None:
    result = engine.generate_async([FIRST], sampling_params=greedy(9), streaming=True)
    pieces = [step.outputs[0].text_diff async for step in result]
    assert "".join(pieces) == result.outputs[0].text == oracle_answer(FIRST, 9)
    whole = await engine.generate_async([FIRST], greedy(9))
    assert whole.outputs[0].text == oracle_answer(FIRST, 9)


async def handle_as_the_readme_says(worker: AsyncLLMWorker, task: Any) -> TaskStatus:
    """The handler that the README asks a worker's author to write."""
    if task.request_handle is None:
        params, prompt = task.create_sampling_params(), task.input_tokens
        task.request_handle = worker.llm.generate_async(prompt, params, streaming=True)
    handle = task.request_handle
    wanted = len(task.output_tokens or ()) + task.streaming_step
    if task.cancel_flag:
        handle.abort()
        await handle.aresult()
    while not handle.finished and len(task.output_tokens or ()) < wanted:
        await anext(handle)
        task.output_tokens = handle.outputs[0].token_ids
    task.output_str = handle.outputs[0].text
    task.end_flag = handle.finished
    return TaskStatus.SUCCESS


async def test_a_handler_over_generate_async_streams_steps_and_cancels(engine: AsyncLLM) -> None:
    worker = AsyncLLMWorker(engine)
    worker.register_task_handler(StreamGenerationTask, handle_as_the_readme_says)
    task = StreamGenerationTask(input_tokens=[FIRST], max_tokens=1500, temperature=0)
    task.streaming_step = 5
    for number in range(1, 4):
        assert await worker.run_task(task) is TaskStatus.SUCCESS
        assert len(task.output_tokens or ()) >= 5 * number and not task.end_flag
    task.cancel_flag = True
    await worker.run_task(task)
    assert task.end_flag and task.output_str is not None
    assert oracle_answer(FIRST, 1500).startswith(task.output_str)
    assert engine.get_num_unfinished_requests() == 0


async def test_requests_are_logged_without_their_words(
    engine: AsyncLLM, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "engine.client.async_llm"):
        await text(engine.generate("private words", greedy(2), "logged-1"))
    assert "request logged-1: n=1" in caplog.text
    assert "private" not in caplog.text
