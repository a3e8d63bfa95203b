"""What an engine can be asked to do, through the real step loop with a scripted model."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.client.async_llm import AsyncLLM
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.iteration_stats import IterationStats
from engine.errors import (
    EngineDeadError,
    EngineGenerateError,
    RetryableRequestError,
    ValidationError,
)
from engine.ipc import SchedulerStats
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.small_tokenizers import build_chatml
from tests.engine.helpers.threaded_core import ThreadedCore, connected
from tests.helpers.patience import PATIENCE

FINAL = RequestOutputKind.FINAL_ONLY
PROMPT = [41, 42, 43]


class Worker:
    def add(self, one: int, two: int) -> int:
        return one + two


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, output_kind=FINAL, temperature=0)


@pytest.fixture
def core() -> Iterator[ThreadedCore]:
    with ThreadedCore(worker=Worker()) as core:
        yield core


@pytest.fixture
async def engine(core: ThreadedCore, tmp_path: Path) -> AsyncIterator[AsyncLLM]:
    async with connected(core, build_chatml(tmp_path)) as engine:
        yield engine


async def rest(stream: RequestOutputCollector) -> tuple[list[int], str | None]:
    """The ids still to come, and why they ended."""
    ids, reason = [], None
    async for output in stream:
        ids += output.outputs[0].token_ids
        reason = output.outputs[0].finish_reason
    return ids, reason


async def ask(engine: AsyncLLM, name: str, prompt: list[int] = PROMPT) -> int | None:
    """A short answer; how many tokens of its prompt were cached."""
    (output,) = [output async for output in engine.generate(prompt, params(2), name)]
    assert output.outputs[0].finish_reason == "length"
    return output.num_cached_tokens


# ---- pausing


async def test_pause_abort_ends_running_requests_with_what_they_have(
    core: ThreadedCore, engine: AsyncLLM
) -> None:
    core.hold()
    streams = [await engine.add_request(n, PROMPT, params(150)) for n in range(3)]
    await asyncio.to_thread(core.is_in_step.wait)
    while len(core.scheduler.running) < 3:
        await core.next_step()
    pausing = asyncio.create_task(engine.pause_generation(mode="abort"))
    await core.release_after_message()
    await pausing
    assert [(await rest(stream))[1] for stream in streams] == ["abort"] * 3
    await engine.resume_generation()


@pytest.mark.parametrize("mode", ["abort", "wait"])
async def test_new_request_is_refused_while_paused(engine: AsyncLLM, mode: Any) -> None:
    await engine.pause_generation(mode=mode)
    with pytest.raises(RetryableRequestError, match="paused"):
        await ask(engine, "r")
    several = SamplingParams(n=2, output_kind=FINAL)
    with pytest.raises(RetryableRequestError):
        _ = [output async for output in engine.generate(PROMPT, several, "n")]
    await engine.resume_generation()
    await ask(engine, "r")


async def test_pause_wait_returns_when_what_is_here_has_ended(
    core: ThreadedCore, engine: AsyncLLM
) -> None:
    core.hold()
    stream = await engine.add_request("r", PROMPT, params(20))
    await asyncio.to_thread(core.is_in_step.wait)
    pausing = asyncio.create_task(engine.pause_generation(mode="wait"))
    await core.release_after_message()
    await pausing
    assert engine.get_num_unfinished_requests() == 0
    ids, reason = await rest(stream)
    assert (len(ids), reason) == (20, "length")
    await engine.resume_generation()


async def test_pause_keep_holds_old_and_new_requests(core: ThreadedCore, engine: AsyncLLM) -> None:
    core.hold()
    old = await engine.add_request("old", PROMPT, params(20))
    await asyncio.to_thread(core.is_in_step.wait)
    pausing = asyncio.create_task(engine.pause_generation(mode="keep"))
    await core.release_after_message()
    await pausing
    new = await engine.add_request("new", PROMPT, params(5))
    num_steps = len(core.model.steps)
    await engine.check_health()
    await engine.check_health()
    assert len(core.model.steps) == num_steps and engine.get_num_unfinished_requests() == 2
    await engine.resume_generation()
    assert (await rest(old)) == (list(range(44, 64)), "length")
    assert (await rest(new)) == (list(range(44, 49)), "length")


async def test_pausing_twice_and_resuming_unpaused_do_nothing(engine: AsyncLLM) -> None:
    assert not await engine.is_paused()
    await engine.resume_generation()
    await engine.pause_generation()
    await engine.pause_generation(mode="keep")
    assert await engine.is_paused()
    await engine.resume_generation()
    assert not await engine.is_paused()
    await ask(engine, "r")


async def test_pause_holds_for_every_client(
    core: ThreadedCore, engine: AsyncLLM, tmp_path: Path
) -> None:
    async with connected(core, tmp_path) as other:
        await other.pause_generation()
        assert await engine.is_paused()
        with pytest.raises(RetryableRequestError):
            await ask(engine, "r")
        await engine.resume_generation()
        await ask(other, "r")


async def test_unknown_mode_is_refused(engine: AsyncLLM) -> None:
    mode: Any = "sideways"
    with pytest.raises(ValidationError, match="mode"):
        await engine.pause_generation(mode=mode)


async def test_draining_waits_for_the_last_request(core: ThreadedCore, engine: AsyncLLM) -> None:
    core.hold()
    stream = await engine.add_request("r", PROMPT, params(5))
    with pytest.raises(TimeoutError):
        await engine.wait_for_requests_to_drain(0.05)
    core.release()
    await engine.wait_for_requests_to_drain()
    assert (await rest(stream))[1] == "length"


# ---- sleep


async def test_sleep_refuses_requests_until_wake_up(engine: AsyncLLM) -> None:
    assert await engine.is_sleeping() is False
    await engine.sleep()
    assert await engine.is_sleeping() is await engine.is_paused() is True
    with pytest.raises(RetryableRequestError, match="asleep"):
        await ask(engine, "r")
    with pytest.raises(EngineGenerateError, match="wake_up"):
        await engine.resume_generation()
    await engine.check_health()
    await engine.wake_up()
    assert await engine.is_sleeping() is await engine.is_paused() is False
    await ask(engine, "r")


async def test_sleep_keep_holds_old_and_new_requests(core: ThreadedCore, engine: AsyncLLM) -> None:
    core.hold()
    old = await engine.add_request("old", PROMPT, params(20))
    await asyncio.to_thread(core.is_in_step.wait)
    sleeping = asyncio.create_task(engine.sleep(2, mode="keep"))
    await core.release_after_message()
    await sleeping
    new = await engine.add_request("new", PROMPT, params(5))
    await engine.wake_up(tags=["weights"])
    assert await engine.is_sleeping() and engine.get_num_unfinished_requests() == 2
    await engine.wake_up(tags=["kv_cache"])
    assert (await rest(old)) == (list(range(44, 64)), "length")
    assert (await rest(new)) == (list(range(44, 49)), "length")


async def test_sleep_holds_for_every_client_and_any_may_end_it(
    core: ThreadedCore, engine: AsyncLLM, tmp_path: Path
) -> None:
    async with connected(core, tmp_path) as other:
        await other.sleep()
        assert await engine.is_sleeping()
        with pytest.raises(RetryableRequestError, match="asleep"):
            await ask(engine, "r")
        await engine.wake_up()
        await ask(other, "r")


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("sleep", (3,), "level must be 0, 1 or 2, got 3"),
        ("sleep", ("1",), "level must be"),
        ("sleep", (True,), "level must be"),
        ("sleep", (1, "sideways"), "mode must be"),
        ("wake_up", (["weights", "loras"],), "tags must be a list of weights, kv_cache"),
        ("wake_up", ("weights",), "tags must be"),
        ("wake_up", ([["weights"]],), "tags must be"),
    ],
)
async def test_wrong_arguments_of_sleep_are_refused_by_name(
    engine: AsyncLLM, name: str, arguments: tuple[Any, ...], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        await getattr(engine, name)(*arguments)
    assert await engine.is_paused() is False


async def test_an_engine_that_is_shut_down_cannot_sleep(core: ThreadedCore, tmp_path: Path) -> None:
    engine = AsyncLLM.connect(core.address, model=str(build_chatml(tmp_path)))
    await engine.wait_ready(PATIENCE)
    await engine.sleep()
    engine.shutdown()
    for call in (engine.sleep, engine.wake_up, engine.is_sleeping):
        with pytest.raises(EngineDeadError):
            await call()


# ---- caches


@pytest.mark.parametrize(
    "arguments", [{}, {"device": "cuda:0"}, {"device": 0}, {"reset_connector": True}]
)
async def test_reset_prefix_cache_forgets_prefixes(
    engine: AsyncLLM, arguments: dict[str, Any]
) -> None:
    prompt = list(range(10, 23))
    assert [await ask(engine, "a", prompt), await ask(engine, "b", prompt)] == [0, 12]
    assert await engine.reset_prefix_cache(**arguments) is True
    assert await ask(engine, "c", prompt) == 0


@pytest.mark.parametrize(
    ("arguments", "options"), [((), {"reset_running_requests": True}), ((True,), {})]
)
async def test_reset_may_take_the_blocks_of_running_requests(
    core: ThreadedCore, engine: AsyncLLM, arguments: Any, options: Any
) -> None:
    core.hold()
    stream = await engine.add_request("r", PROMPT, params(20))
    await asyncio.to_thread(core.is_in_step.wait)
    resetting = asyncio.create_task(engine.reset_prefix_cache(*arguments, **options))
    await core.release_after_message()
    assert await resetting is True
    (output,) = [output async for output in stream]
    assert output.outputs[0].token_ids == list(range(44, 64))
    assert output.metrics is not None and output.metrics.num_preemptions == 1


async def test_caches_that_are_not_there_are_reset_at_once(engine: AsyncLLM) -> None:
    await engine.reset_mm_cache()
    await engine.reset_encoder_cache()


# ---- the worker, profiles, loggers


async def test_collective_rpc_gives_a_list_of_one(engine: AsyncLLM) -> None:
    assert await engine.collective_rpc("add", args=(1, 2)) == [3]
    assert await engine.collective_rpc("add", 5.0, (1,), {"two": 4}) == [5]


async def test_collective_rpc_fails_by_name(engine: AsyncLLM) -> None:
    with pytest.raises(EngineGenerateError, match="subtract"):
        await engine.collective_rpc("subtract")
    with pytest.raises(EngineGenerateError, match="TypeError"):
        await engine.collective_rpc("add", kwargs={"three": 3})
    function: Any = lambda worker: 1  # noqa: E731
    with pytest.raises(NotImplementedError, match="function"):
        await engine.collective_rpc(function)


async def test_profile_is_a_file_of_the_given_name(engine: AsyncLLM, tmp_path: Path) -> None:
    await engine.start_profile(str(tmp_path / "run"))
    await ask(engine, "r")
    with pytest.raises(EngineGenerateError, match="already"):
        await engine.start_profile()
    path = Path(await engine.stop_profile())
    assert path.parent == tmp_path and path.name.startswith("run-")
    assert os.listdir(tmp_path).count(path.name) == 1
    with pytest.raises(EngineGenerateError, match="no profile"):
        await engine.stop_profile()
    with pytest.raises(NotImplementedError, match="delay_iterations"):
        await engine.start_profile(delay_iterations=3)


async def test_loggers_receive_the_load(engine: AsyncLLM) -> None:
    logged: list[SchedulerStats] = []

    class Logger:
        def log(self, stats: SchedulerStats) -> None:
            logged.append(stats)

    await ask(engine, "r")
    await engine.add_logger("mine", Logger())
    with pytest.raises(KeyError, match="mine"):
        await engine.add_logger("mine", Logger())
    await engine.do_log_stats()
    assert logged == [engine.stats]
    await engine.remove_logger("mine")
    with pytest.raises(KeyError, match="mine"):
        await engine.remove_logger("mine")
    await engine.do_log_stats(None, None)
    assert len(logged) == 1


class Recorder:
    """As vLLM's loggers are since `mm_cache_stats` came."""

    def __init__(self) -> None:
        self.received: list[tuple[SchedulerStats | None, IterationStats]] = []
        self.num_logs = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats,
        mm_cache_stats: object = "not given",
        engine_idx: int = 5,
    ) -> None:
        assert (mm_cache_stats, engine_idx) == (None, 0)
        self.received.append((scheduler_stats, iteration_stats))

    def log(self) -> None:
        self.num_logs += 1

    def sum(self, name: str) -> int:
        return sum(getattr(iteration, name) for _, iteration in self.received)


async def test_recorders_receive_each_batch_of_outputs(engine: AsyncLLM) -> None:
    recorder = Recorder()
    await engine.add_logger("mine", recorder)
    stream = await engine.add_request("one", PROMPT, params(5))
    await rest(stream)
    assert (recorder.sum("num_generation_tokens"), recorder.sum("num_prompt_tokens")) == (5, 3)
    firsts = [t for _, each in recorder.received for t in each.time_to_first_tokens_iter]
    laters = [t for _, each in recorder.received for t in each.inter_token_latencies_iter]
    assert len(firsts) == 1 and 0 < firsts[0] < PATIENCE
    assert len(laters) <= 4 and all(0 <= each < PATIENCE for each in laters)
    stats, last = recorder.received[-1]
    assert stats is not None and (stats.num_running_reqs, stats.num_waiting_reqs) == (0, 0)
    assert stats.kv_cache_usage == 0
    (ended,) = last.finished_requests
    assert (ended.request_id, ended.finish_reason, ended.max_tokens_param) == ("one", "length", 5)
    assert (ended.num_prompt_tokens, ended.num_generation_tokens) == (3, 5)
    assert ended.e2e_latency >= ended.inference_time >= ended.decode_time >= 0
    assert (last.n_params_iter, last.max_num_generation_tokens_iter) == ([1], [5])
    await engine.do_log_stats()
    await engine.remove_logger("mine")
    num_received = len(recorder.received)
    await ask(engine, "two")
    await engine.do_log_stats()
    assert (len(recorder.received), recorder.num_logs) == (num_received, 1)


async def test_several_answers_are_one_request_in_the_records(engine: AsyncLLM) -> None:
    recorder = Recorder()
    await engine.add_logger("mine", recorder)
    three = SamplingParams(n=3, max_tokens=4, output_kind=FINAL, ignore_eos=True)
    await rest(await engine.add_request("r", PROMPT, three))
    assert sum(len(each.finished_requests) for _, each in recorder.received) == 3
    assert [n for _, each in recorder.received for n in each.n_params_iter] == [3]
    assert recorder.sum("num_generation_tokens") == 12


async def test_a_recorder_that_fails_receives_nothing_more_and_breaks_no_stream(
    engine: AsyncLLM, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Recorder):
        def record(self, *stats: object) -> None:
            self.num_logs += 1
            raise KeyError("no such series")

    broken = Broken()
    await engine.add_logger("broken", broken)
    await rest(await engine.add_request("one", PROMPT, params(5)))
    await rest(await engine.add_request("two", PROMPT, params(5)))
    assert broken.num_logs == 1
    assert "'broken' has failed" in caplog.text


async def test_load_is_logged_as_a_line(engine: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    await ask(engine, "r")
    with caplog.at_level(logging.INFO, "engine.client.requests.stat_loggers"):
        await engine.do_log_stats()
    assert "64 of 64 blocks free" in caplog.text


# ---- what is not there


async def test_absent_features_are_off(engine: AsyncLLM) -> None:
    assert await engine.list_loras() == set()
    assert not await engine.pin_lora(1) and not await engine.remove_lora(1)
    assert await engine.is_tracing_enabled() is False
    lora_config: Any = engine.get_lora_config()
    assert await lora_config is None
