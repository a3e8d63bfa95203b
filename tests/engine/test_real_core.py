"""The client half against the real core process, in both modes: owned, and joined."""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    CoreProcess,
    CoreState,
    EngineDeadError,
    EngineGenerateError,
    EngineStartError,
    LoRARequest,
    PrivateDirectory,
    RequestOutputKind,
    RequestProgress,
    SamplingParams,
    UnsupportedModelError,
)
from engine.tracing.tracing import Tracing
from tests.engine.helpers.lora.adapters import build_adapter
from tests.helpers.patience import PATIENCE
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import build_oracle_model, build_tiny_model, oracle_answer

DELTA = RequestOutputKind.DELTA
FIRST = 41  # the last token of the oracle's prompt


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, output_kind=DELTA)


async def read(
    engine: AsyncLLM, params: SamplingParams, request_id: str, prompt: list[int] | None = None
) -> str:
    outputs = engine.generate(prompt or [FIRST], params, request_id)
    return "".join([output.outputs[0].text async for output in outputs])


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("oracle"), vocab=2000, max_positions=2048)


@pytest.fixture(scope="module")
def arguments(oracle: Path) -> AsyncEngineArgs:
    return AsyncEngineArgs(str(oracle), num_gpu_blocks_override=300, threads=1)


@pytest.fixture(scope="module")
def owned(arguments: AsyncEngineArgs) -> Iterator[AsyncLLM]:
    engine = AsyncLLM.from_engine_args(arguments)
    yield engine
    engine.shutdown()


@pytest.fixture
async def engine(owned: AsyncLLM) -> AsyncIterator[AsyncLLM]:
    """The module's engine; after each test nothing may be left in it or in its core."""
    yield owned
    assert owned.get_num_unfinished_requests() == 0
    metrics = await owned.metrics()
    assert (metrics["num_running"], metrics["num_waiting"]) == (0, 0)
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


async def test_answers_count_however_many_there_are(engine: AsyncLLM) -> None:
    prompts = [[FIRST + n] for n in range(20)]
    readers = [read(engine, greedy(50), f"r{n}", prompt) for n, prompt in enumerate(prompts)]
    answers = await asyncio.gather(*readers)
    assert answers == [oracle_answer(prompt[-1], 50) for prompt in prompts]


async def test_slow_reader_gets_everything_merged(engine: AsyncLLM) -> None:
    stream = await engine.add_request("slow", [FIRST], greedy(100))
    await read(engine, greedy(150), "fast")
    outputs = [output async for output in stream]
    assert len(outputs) == 1
    assert outputs[0].outputs[0].text == oracle_answer(FIRST, 100)


async def test_stop_keeps_the_text_and_frees_the_blocks(engine: AsyncLLM) -> None:
    text = ""
    async for output in engine.generate([FIRST], greedy(1000), "r"):
        text += output.outputs[0].text
        if len(text) >= 80:
            await engine.abort("r")
    completion = output.outputs[0]
    assert completion.finish_reason == "abort"
    assert output.metrics is not None and output.metrics.core_confirmed
    assert oracle_answer(FIRST, 1000).startswith(text)
    assert engine.stats is not None
    assert engine.stats.num_blocks_free == engine.stats.num_blocks_total


async def test_aborts_at_random_moments_leak_nothing(engine: AsyncLLM) -> None:
    rng = random.Random(0)

    async def ask_and_stop(name: str) -> None:
        text, patience = "", rng.randrange(12)
        async for output in engine.generate([FIRST], greedy(1900), name):
            text += output.outputs[0].text
            patience -= 1
            if patience <= 0 or rng.random() < 0.05:
                await engine.abort(name)
        assert oracle_answer(FIRST, 1900).startswith(text)
        assert output.outputs[0].finish_reason == "abort"

    for round_number in range(5):
        await asyncio.gather(*[ask_and_stop(f"{round_number}-{n}") for n in range(12)])


async def test_resumed_answer_goes_on_where_it_was(engine: AsyncLLM) -> None:
    seeded = SamplingParams(temperature=1.5, seed=7, max_tokens=40, output_kind=DELTA)
    whole = [o async for o in engine.generate([FIRST], seeded, "whole")]
    ids = [token_id for output in whole for token_id in output.outputs[0].token_ids]
    text = "".join(output.outputs[0].text for output in whole)
    assert engine.resumed_text([FIRST], seeded, ids) == text
    for cut in (1, 17, 39):
        assert text.startswith(engine.resumed_text([FIRST], seeded, ids[:cut]))
        resumed = engine.generate([FIRST], seeded, "rest", resume_token_ids=ids[:cut])
        rest = "".join([output.outputs[0].text async for output in resumed])
        assert rest and text.endswith(rest)


async def test_resumed_answer_that_had_filled_the_context_ends_at_once(engine: AsyncLLM) -> None:
    num_left = engine.model_config.max_model_len - 1
    resumed = engine.generate([FIRST], greedy(num_left), "r", resume_token_ids=[5] * num_left)
    (last,) = [output async for output in resumed]
    assert (last.outputs[0].finish_reason, last.outputs[0].token_ids) == ("length", [])


@pytest.mark.parametrize("word", ["t00045", " t00045 "])
async def test_bad_word_does_not_come(engine: AsyncLLM, word: str) -> None:
    assert "t00045" in await read(engine, greedy(10), "without")
    params = SamplingParams(temperature=0, max_tokens=10, bad_words=[word], output_kind=DELTA)
    text = await read(engine, params, "with")
    assert text.startswith("t00042 t00043 t00044") and "t00045" not in text


async def test_profile_of_the_core_is_written(engine: AsyncLLM, tmp_path: Path) -> None:
    await engine.start_profile(str(tmp_path / "trace"))
    await read(engine, greedy(5), "r")
    trace = Path(await engine.stop_profile())
    assert b"aten::" in await asyncio.to_thread(trace.read_bytes)
    await engine.check_health()


async def test_model_runner_is_reached_by_name(engine: AsyncLLM) -> None:
    with pytest.raises(EngineGenerateError, match="no_such_method"):
        await engine.collective_rpc("no_such_method")
    with pytest.raises(EngineGenerateError):
        await engine.collective_rpc("execute", args=("nonsense",))
    assert await read(engine, greedy(5), "r") == oracle_answer(FIRST, 5)


async def test_stop_string_ends_the_answer(engine: AsyncLLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=500, stop="50 t00", output_kind=DELTA)
    assert await read(engine, params, "r") == "t00042 t00043 t00044 t00045 t00046 t00047 " + (
        "t00048 t00049 t000"
    )


async def test_two_clients_share_a_core(owned: AsyncLLM, oracle: Path) -> None:
    address = owned._parts.directory
    assert address is not None
    other = AsyncLLM.connect(address.address, model=str(oracle))
    await other.wait_ready(PATIENCE)
    answers = await asyncio.gather(read(owned, greedy(60), "same"), read(other, greedy(60), "same"))
    assert set(answers) == {oracle_answer(FIRST, 60)}
    stream = await other.add_request("left", [FIRST], greedy(1000))
    await stream.get()
    other.shutdown()
    metrics = await owned.metrics()
    while metrics["num_running"]:  # the abort is in the socket still
        metrics = await owned.metrics()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


async def test_each_answer_of_several_is_that_of_its_own_seed(tmp_path: Path) -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(build_tiny_model(tmp_path)), threads=1))
    prompt = list(range(3, 100))

    async def ask(kind: RequestOutputKind, n: int, seed: int) -> list[str]:
        params = SamplingParams(n=n, seed=seed, max_tokens=30, output_kind=kind)
        answers = [""] * n
        async for output in engine.generate(prompt, params, f"{kind}-{n}-{seed}"):
            for completion in output.outputs:
                earlier = answers[completion.index] if kind is DELTA else ""
                answers[completion.index] = earlier + completion.text
        return answers

    several = await asyncio.gather(*(ask(kind, 4, 70) for kind in RequestOutputKind))
    num_computed = (await engine.metrics())["prompt_tokens_total"]
    assert num_computed < 3 * len(prompt)  # of twelve answers, which share the prompt's blocks
    alone = [(await ask(DELTA, 1, 70 + index))[0] for index in range(4)]
    assert several == [alone] * 3
    assert len(set(alone)) == 4
    assert not engine.output_processor.parent_requests
    engine.shutdown()


async def test_joined_deltas_are_the_final_text(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), threads=1))

    async def compare(seed: int) -> None:
        texts = []
        for kind in (DELTA, RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE):
            params = SamplingParams(
                seed=seed, max_tokens=40, stop=["th", "\n", "ou r"], output_kind=kind
            )
            outputs = [o async for o in engine.generate("Hello", params, f"{seed}-{kind}")]
            is_delta = kind is DELTA
            parts = [output.outputs[0].text for output in outputs]
            texts.append("".join(parts) if is_delta else parts[-1])
        assert texts[0] == texts[1] == texts[2]

    await asyncio.gather(*map(compare, range(34)))
    engine.shutdown()


# ---- things that go wrong


def test_model_that_cannot_be_loaded_is_a_start_error(tmp_path: Path, oracle: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((oracle / name).read_bytes())
    with pytest.raises(EngineStartError):
        AsyncLLM.from_engine_args(AsyncEngineArgs(str(tmp_path)))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("chat_template.jinja", "{{", r"chat_template\.jinja: chat_template: "),  # found here
        ("generation_config.json", "[]", r"generation_config\.json: must hold"),  # by the core
    ],
)
def test_a_broken_folder_is_the_same_line_whichever_process_finds_it(
    file: str, content: str, words: str, tmp_path: Path, oracle: Path
) -> None:
    shutil.copytree(oracle, tmp_path / "model")
    (tmp_path / "model" / file).write_text(content)
    with pytest.raises(UnsupportedModelError, match=rf"^{tmp_path}/model/{words}") as caught:
        AsyncLLM.from_engine_args(AsyncEngineArgs(str(tmp_path / "model")))
    assert str(caught.value).isprintable()


async def test_killed_core_is_noticed_at_once_by_its_owner(arguments: AsyncEngineArgs) -> None:
    engine = AsyncLLM.from_engine_args(arguments)
    streams = [await engine.add_request(n, [FIRST], greedy(1900)) for n in range(3)]
    await streams[0].get()
    started = running_time()
    os.kill(engine.ready.pid, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(EngineDeadError):
            while True:
                await stream.get()
    assert engine.errored
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await read(engine, greedy(1), "late")
    assert running_time() - started < 2
    engine.shutdown()


class Supervised:
    """A core that a supervisor would watch, and one engine that is connected to it."""

    def __init__(
        self,
        arguments: AsyncEngineArgs,
        stall_seconds: float = 0.5,
        tracing: Tracing | None = None,
    ) -> None:
        self.directory = PrivateDirectory()
        self.states: list[CoreState] = []
        self._config = arguments.create_engine_config(self.directory.address)
        self.core = CoreProcess(self._config)
        self.engine = AsyncLLM.connect(
            self.directory.address,
            model=arguments.model,
            stall_seconds=stall_seconds,
            on_core_state=lambda state, reason: self.states.append(state),
            tracing=tracing,
        )

    async def wait_ready(self) -> None:
        await asyncio.to_thread(self.core.wait_ready)
        await self.engine.wait_ready(PATIENCE)

    async def replace(self) -> None:
        """As the supervisor does when the core is gone."""
        await asyncio.to_thread(self.core.terminate)
        self.core = await asyncio.to_thread(CoreProcess, self._config)
        await self.wait_ready()

    def close(self) -> None:
        self.engine.shutdown()
        self.core.terminate()
        self.directory.remove()


@pytest.fixture
async def supervised(arguments: AsyncEngineArgs) -> AsyncIterator[Supervised]:
    supervised = Supervised(arguments)
    await supervised.wait_ready()
    yield supervised
    supervised.close()


async def test_core_that_stops_and_goes_on_in_time_doubles_no_token(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    stream = await engine.add_request("frozen", [FIRST], greedy(400))
    text = (await stream.get()).outputs[0].text
    os.kill(supervised.core.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(PATIENCE):
            while engine.core_state is not CoreState.STALLED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(EngineDeadError):
            await engine.check_health()
    finally:
        os.kill(supervised.core.pid, signal.SIGCONT)
    await engine.wait_ready(PATIENCE)
    text += "".join([output.outputs[0].text async for output in stream])
    assert text == oracle_answer(FIRST, 400)
    assert CoreState.DEAD not in supervised.states


async def test_answers_go_on_bit_for_bit_in_the_next_core(tmp_path: Path) -> None:
    """Random text: a token lost, doubled or drawn anew would change all that follow."""
    model = build_tiny_model(tmp_path)
    supervised = Supervised(AsyncEngineArgs(str(model), threads=1, pace=40))
    await supervised.wait_ready()
    engine = supervised.engine
    every_params = [
        SamplingParams(temperature=0, max_tokens=60, output_kind=DELTA, ignore_eos=True),
        SamplingParams(
            seed=1,
            max_tokens=60,
            min_tokens=30,
            frequency_penalty=0.7,
            repetition_penalty=1.2,
            stop=["th", "ou r"],
            logprobs=2,
            output_kind=DELTA,
        ),
        *[SamplingParams(seed=n, max_tokens=60, top_k=20, output_kind=DELTA) for n in range(6)],
    ]

    async def ask(number: int, started: asyncio.Barrier | None = None) -> list[Any]:
        text, waited = "", False
        ids: list[int] = []
        logprobs: list[Any] = []
        outputs = engine.generate("Hello, how are you", every_params[number], f"r{number}")
        async for output in outputs:
            (completion,) = output.outputs
            text += completion.text
            ids += completion.token_ids
            logprobs += completion.logprobs or []
            if started is not None and not waited and len(ids) >= 5:
                waited = True
                await started.wait()
        assert output.metrics is not None
        resubmits = output.metrics.num_resubmits
        assert resubmits == (0 if started is None else 1)
        return [text, ids, completion.finish_reason, logprobs, completion.cumulative_logprob]

    numbers = range(len(every_params))
    undisturbed = await asyncio.gather(*map(ask, numbers))
    started = asyncio.Barrier(len(every_params) + 1)
    asking = [asyncio.create_task(ask(number, started)) for number in numbers]
    await started.wait()
    supervised.core.process.kill()
    await supervised.replace()
    disturbed = await asyncio.gather(*asking)
    supervised.close()
    for before, after in zip(undisturbed, disturbed, strict=True):
        assert before == after


@pytest.mark.slow
@pytest.mark.parametrize("is_adapted", [False, True])
async def test_logprobs_of_prompts_outlive_the_core_that_reads_them(
    is_adapted: bool, tmp_path: Path
) -> None:
    model = build_tiny_model(tmp_path / "model")
    lora = None
    if is_adapted:
        lora = LoRARequest("a", 1, str(build_adapter(tmp_path / "adapter", model)))
    arguments = AsyncEngineArgs(
        str(model), threads=1, max_num_batched_tokens=2, enable_lora=is_adapted
    )
    supervised = Supervised(arguments)
    await supervised.wait_ready()
    engine = supervised.engine
    prompt = [5 + number % 90 for number in range(300)]
    params = SamplingParams(
        n=2,
        seed=1,
        max_tokens=3,
        prompt_logprobs=20,
        prompt_logprob_token_ids=[[number, 3] for number in range(249)],
        prompt_logprob_start=50,
        output_kind=DELTA,
    )

    async def ask(
        name: str,
        is_read: Callable[[RequestProgress], None] | None = None,
        lora: LoRARequest | None = lora,
    ) -> list[Any]:
        outputs = engine.generate(prompt, params, name, lora_request=lora, on_progress=is_read)
        found = [(it.prompt_logprobs, it.prompt_token_id_logprobs) async for it in outputs]
        assert all(each == (None, None) for each in found[1:])
        logprobs, of_ids = found[0]
        return [logprobs, None if of_ids is None else of_ids.tolist()]

    expected, of_ids = await ask("undisturbed")
    assert expected is not None and len(expected) == len(prompt)
    assert of_ids is not None and [len(of_ids), len(of_ids[0])] == [249, 2]
    if is_adapted:
        assert await ask("plain", lora=None) != [expected, of_ids]
    half = asyncio.Event()
    asking = asyncio.create_task(
        ask("disturbed", lambda progress: half.set() if progress.num_computed_tokens > 99 else None)
    )
    aborted = asyncio.create_task(ask("aborted"))
    await half.wait()
    await engine.abort("aborted")
    supervised.core.process.kill()
    await supervised.replace()
    assert await asking == [expected, of_ids]
    assert await aborted == [None, None]
    metrics = await engine.metrics()
    supervised.close()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


async def test_the_worker_tells_of_its_model_and_its_cache(owned: AsyncLLM) -> None:
    (model,) = await owned.collective_rpc("get_model_inspection")
    assert model.startswith("LlamaForCausalLM(")
    (num_bytes,) = await owned.collective_rpc("get_cache_block_size_bytes")
    assert num_bytes == 16 * 2 * 16 * 4  # tokens, a key and a value, of one head, float32
    assert await owned.collective_rpc("check_health") == [None]
    assert await owned.collective_rpc("get_supported_tasks") == [["generate", "embed"]]
    assert await owned.collective_rpc("list_loras") == [[]]
    with pytest.raises(EngineGenerateError, match="the worker has no method 'launch'"):
        await owned.collective_rpc("launch")
