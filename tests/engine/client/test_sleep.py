"""`AsyncLLM.sleep` with real cores: the memory they give back, and the answers afterwards."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    EngineDeadError,
    EngineGenerateError,
    RequestOutputKind,
    RequestProgress,
    RetryableRequestError,
    SamplingParams,
)
from tests.engine.test_real_core import Supervised
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_oracle_model, build_tiny_model, oracle_answer

pytestmark = pytest.mark.slow

FIRST = 41  # the last token of the oracle's prompt
MIB = 1 << 20
CACHE_BYTES = 200 * MIB


def params(number: int = 0, max_tokens: int = 40) -> SamplingParams:
    """Greedy, or random with a seed."""
    return SamplingParams(
        temperature=float(number > 0),
        seed=number,
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=3,
        output_kind=RequestOutputKind.DELTA,
    )


async def read(engine: AsyncLLM, number: int = 0, **options: Any) -> tuple[list[int], list[Any]]:
    """Tokens and logprobs of one answer."""
    ids: list[int] = []
    logprobs: list[Any] = []
    prompt = [5 + each % 90 for each in range(70 + number)]
    async for output in engine.generate(prompt, params(number, **options), f"r{number}"):
        ids += output.outputs[0].token_ids
        logprobs += output.outputs[0].logprobs or []
    return ids, logprobs


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


async def grow(pid: int, at_least: int) -> None:
    """Return when the resident size has: a cache's memory is taken while nobody waits."""
    async with asyncio.timeout(PATIENCE):
        while resident(pid) < at_least:  # noqa: ASYNC110  (the system announces nothing)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "model_impl", ["fused", pytest.param("transformers", marks=pytest.mark.slow)]
)
async def test_memory_falls_by_the_cache_and_then_by_the_weights(
    model_impl: str, tmp_path: Path
) -> None:
    """The oracle's weights are two matrices of [vocabulary, 256], in float32."""
    folder = build_oracle_model(tmp_path, vocab=100_000)
    weights = 2 * 100_000 * 256 * 4
    arguments = AsyncEngineArgs(
        str(folder), kv_cache_memory_bytes=CACHE_BYTES, threads=1, model_impl=model_impl
    )
    engine = AsyncLLM.from_engine_args(arguments)
    assert engine._parts.core is not None
    pid = engine._parts.core.pid
    greedy = SamplingParams(temperature=0, max_tokens=20)

    async def answer() -> str:
        (output,) = [output async for output in engine.generate([FIRST], greedy, "r")]
        return output.outputs[0].text

    greedy.output_kind = RequestOutputKind.FINAL_ONLY
    try:
        sizes = []
        for _ in range(3):
            assert await answer() == oracle_answer(FIRST, 20)
            await engine.sleep(1)
            without_cache = resident(pid)
            await engine.wake_up()
            await grow(pid, without_cache + int(0.95 * CACHE_BYTES))
            await engine.sleep(1)
            assert resident(pid) < without_cache + 0.15 * CACHE_BYTES
            await engine.sleep(2)
            without_weights = resident(pid)
            assert without_cache - without_weights > 0.9 * weights
            await engine.wake_up(tags=["weights"])
            assert resident(pid) < without_weights + weights + 0.5 * CACHE_BYTES
            await engine.wake_up(tags=["kv_cache"])
            sizes.append(without_weights)
        assert sizes[2] < sizes[0] + 0.3 * weights  # nothing large stays from sleep to sleep
    finally:
        engine.shutdown()


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    folder = build_tiny_model(tmp_path_factory.mktemp("tiny"))
    arguments = AsyncEngineArgs(str(folder), threads=1, num_gpu_blocks_override=200)
    supervised = Supervised(arguments, stall_seconds=PATIENCE)
    yield supervised
    supervised.close()


@pytest.fixture
async def supervised(core: Supervised) -> AsyncIterator[Supervised]:
    """The module's; each test leaves it awake, with a core and without a request."""
    await core.wait_ready()
    yield core
    assert core.engine.get_num_unfinished_requests() == 0
    assert await core.engine.is_paused() is False


async def test_kept_answers_have_the_same_tokens_and_logprobs(supervised: Supervised) -> None:
    engine = supervised.engine
    numbers = range(6)
    expected = await asyncio.gather(*(read(engine, number) for number in numbers))
    asking = [asyncio.create_task(read(engine, number)) for number in numbers]
    for level in (1, 2, 1, 2):
        await engine.sleep(level, mode="keep")
        await engine.wake_up()
    assert await asyncio.gather(*asking) == expected
    await engine.sleep(2)
    await engine.wake_up()
    assert await asyncio.gather(*(read(engine, number) for number in numbers)) == expected


async def test_sleep_ends_answers_with_what_they_have(supervised: Supervised) -> None:
    engine = supervised.engine
    expected, _ = await read(engine, max_tokens=400)
    asking = asyncio.create_task(read(engine, max_tokens=400))
    while not engine.stats or not engine.stats.num_running:  # noqa: ASYNC110  (it is polled)
        await asyncio.sleep(0.001)
    await engine.sleep()
    ids, _ = await asking
    assert expected[: len(ids)] == ids
    with pytest.raises(RetryableRequestError, match="asleep"):
        await read(engine)
    await engine.wake_up()


async def test_a_kept_request_is_aborted_while_the_engine_sleeps(supervised: Supervised) -> None:
    engine = supervised.engine
    await engine.sleep(2, mode="keep")
    stream = await engine.add_request("r", [FIRST], params())
    await engine.abort("r")
    (output,) = [output async for output in stream]
    assert output.outputs[0].finish_reason == "abort"
    assert output.metrics is not None and output.metrics.core_confirmed
    await engine.wake_up()


@pytest.mark.parametrize("level", [pytest.param(1, marks=pytest.mark.slow), 2])
async def test_the_core_after_one_that_was_killed_asleep_is_awake(
    supervised: Supervised, level: int
) -> None:
    engine = supervised.engine
    expected = await read(engine, 1)
    asking = asyncio.create_task(read(engine, 1))
    await asyncio.sleep(0)
    await engine.sleep(level, mode="keep")
    supervised.core.process.kill()
    await supervised.replace()
    assert await engine.is_sleeping() is await engine.is_paused() is False
    assert await asking == expected


async def test_a_core_that_is_killed_while_it_wakes_up_answers_nobody(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    await engine.sleep(2)
    waking = asyncio.create_task(engine.wake_up())
    await asyncio.sleep(0)
    supervised.core.process.kill()
    with pytest.raises(EngineDeadError):
        await waking
        raise EngineDeadError("it was awake already")
    await supervised.replace()
    await read(engine)


async def test_changed_weights_are_refused_and_the_engine_sleeps_on(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    expected = await read(engine)
    await engine.sleep(2)
    file = Path(supervised._config.model) / "model.safetensors"
    stamp = file.stat().st_mtime_ns
    os.utime(file, ns=(stamp, stamp + 1))
    with pytest.raises(EngineGenerateError, match=r"model\.safetensors: has changed since"):
        await engine.wake_up()
    assert await engine.is_sleeping() is True
    with pytest.raises(RetryableRequestError, match="asleep"):
        await read(engine)
    os.utime(file, ns=(stamp, stamp))
    await engine.wake_up()
    assert await read(engine) == expected


async def test_sleep_ends_when_the_process_that_asked_for_it_does(
    supervised: Supervised, tmp_path: Path
) -> None:
    script = (
        "import asyncio, sys\n"
        "from engine import AsyncLLM\n"
        "async def main():\n"
        "    engine = AsyncLLM.connect(sys.argv[1], model=sys.argv[2])\n"
        "    await engine.wait_ready()\n"
        "    await engine.sleep(2, mode='keep')\n"
        "    print('asleep', flush=True)\n"
        "    sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    engine, folder = supervised.engine, supervised._config.model
    expected = await read(engine)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, supervised.directory.address, folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and await process.stdout.readline() == b"asleep\n"
    asking = asyncio.create_task(read(engine))
    assert await engine.is_sleeping() is True
    process.kill()
    await process.wait()
    assert await asking == expected
    assert await engine.is_sleeping() is False


@pytest.mark.parametrize("wakes", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_an_owned_engine_shuts_down_asleep_and_while_it_wakes_up(
    tmp_path: Path, wakes: bool
) -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(build_tiny_model(tmp_path)), threads=1))
    await engine.sleep(2, mode="keep")
    stream = await engine.add_request("r", [FIRST], params())
    waking = asyncio.create_task(engine.wake_up()) if wakes else None
    await asyncio.sleep(0)
    core = engine._parts.core
    engine.shutdown()
    assert core is not None and core.poll() == 0
    with pytest.raises(EngineDeadError):
        await stream.get()
    if waking is not None:
        with pytest.raises(EngineDeadError):
            await waking


# ---- the engine that falls asleep by itself


@pytest.mark.slow
async def test_the_core_dies_while_it_wakes_up_for_a_request_and_the_next_one_answers(
    tmp_path: Path,
) -> None:
    folder = build_tiny_model(tmp_path)
    arguments = AsyncEngineArgs(str(folder), threads=1, sleep_after_seconds=0.1)
    supervised = Supervised(arguments, stall_seconds=PATIENCE)
    await supervised.wait_ready()
    engine = supervised.engine
    prompt = [5 + each % 90 for each in range(70)]

    async def ask(on_progress: Callable[[RequestProgress], None]) -> list[int]:
        ids: list[int] = []
        async for output in engine.generate(prompt, params(), "r", on_progress=on_progress):
            ids += output.outputs[0].token_ids
        return ids

    async def fall_asleep() -> None:
        async with asyncio.timeout(PATIENCE):
            while not await engine.is_sleeping():  # noqa: ASYNC110  (nothing announces it)
                await asyncio.sleep(0.01)

    await fall_asleep()
    assert await engine.is_paused() is False
    expected = await ask(lambda progress: None)
    killed = asyncio.Event()

    def kill(progress: RequestProgress) -> None:
        if progress.is_waking:
            supervised.core.process.kill()
            killed.set()

    async with asyncio.timeout(PATIENCE):
        while not killed.is_set():  # else it was awake before anybody here had heard of it
            await fall_asleep()
            asking = asyncio.create_task(ask(kill))
            dying = asyncio.create_task(killed.wait())
            await asyncio.wait((asking, dying), return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
    await supervised.replace()
    assert await asking == expected
    supervised.close()
