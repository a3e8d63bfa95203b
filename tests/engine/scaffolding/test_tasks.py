import asyncio
import copy
import gc
from typing import Any, TypeVar

import pytest

from engine.client.async_llm import AsyncLLM
from engine.ipc import Abort, AddRequest
from engine.scaffolding import stream_handle as stream_handle_module
from engine.scaffolding.tasks import (
    AsyncLLMWorker,
    GenerationTask,
    StreamGenerationTask,
    TaskStatus,
    create_from_generation_task,
    stream_generation_handler,
)
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE

M = TypeVar("M")

PROMPT = [40, 41, 42]
A, B, C, D = 67, 68, 69, 70  # letters of the byte-level vocabulary
STALL = 0.2  # seconds


@pytest.fixture
def worker(engine: AsyncLLM) -> AsyncLLMWorker:
    return AsyncLLMWorker(engine)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_handle_module, "BACK_OFF_SECONDS", 0.01)


def ask(**fields: Any) -> StreamGenerationTask:
    defaults: dict[str, Any] = {"input_tokens": PROMPT, "max_tokens": 50}
    return StreamGenerationTask(**(defaults | fields))


async def receive(core: ScriptedCore, kind: type[M]) -> M:
    """The core's next message, without holding up the event loop."""
    return await asyncio.to_thread(core.receive, kind)


async def begin(
    core: ScriptedCore, worker: AsyncLLMWorker, task: StreamGenerationTask
) -> tuple["asyncio.Task[TaskStatus]", str]:
    """Run the first step in the background until the core has the request; its internal id."""
    step = asyncio.create_task(worker.run_task(task))
    return step, (await receive(core, AddRequest)).request_id


async def poll(worker: AsyncLLMWorker, task: StreamGenerationTask, num_tokens: int) -> None:
    """Hand a task with step 0 in until it has so many tokens."""
    async with asyncio.timeout(PATIENCE):
        while len(task.output_tokens or []) < num_tokens:
            await asyncio.sleep(0.001)  # a controller that has other things to do
            assert await worker.run_task(task) is TaskStatus.SUCCESS


# ---- fields


def test_fields_have_the_defaults_of_the_reference_on_the_class_too() -> None:
    for owner in (StreamGenerationTask, StreamGenerationTask()):
        assert owner.cancel_flag is False
        assert owner.streaming_step == 1
        assert owner.request_handle is None
        assert owner.end_flag is False
        assert owner.output_str is None


def test_the_fields_of_another_task_may_replace_its_own() -> None:
    task = GenerationTask(input_str="Hello", temperature=0.5)
    stream_task = StreamGenerationTask()
    stream_task.__dict__ = copy.deepcopy(task.__dict__)
    stream_task.streaming_step = 20
    assert (stream_task.input_str, stream_task.temperature) == ("Hello", 0.5)
    assert (stream_task.streaming_step, stream_task.end_flag) == (20, False)


def test_create_from_generation_task_asks_the_same_in_steps() -> None:
    task = GenerationTask(input_str="Hello", max_tokens=7, stop=["x"], worker_tag="stream")
    stream_task = create_from_generation_task(task, 3)
    assert isinstance(stream_task, StreamGenerationTask)
    assert (stream_task.input_str, stream_task.max_tokens, stream_task.stop) == ("Hello", 7, ["x"])
    assert (stream_task.worker_tag, stream_task.streaming_step) == ("stream", 3)


async def test_parameters_of_the_task_reach_the_core(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(max_tokens=None, temperature=0.5, top_p=0.9, top_k=3, seed=11, num_logprobs=2)
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="length")
    await worker.run_task(task)
    request = await receive(core, AddRequest)
    params = request.params
    assert request.prompt_token_ids == PROMPT
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 3, 11)
    assert (params.max_tokens, params.logprobs) == (None, 2)


# ---- steps


async def test_a_step_waits_for_its_tokens(worker: AsyncLLMWorker, core: ScriptedCore) -> None:
    task = ask(streaming_step=2)
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A)
    core.emit(request_id, B)
    assert await step is TaskStatus.SUCCESS
    assert (task.output_str, task.output_tokens, task.end_flag) == ("ab", [A, B], False)
    core.emit(request_id, C, finish="length")  # the end fills a step that has room
    assert await worker.run_task(task) is TaskStatus.SUCCESS
    assert (task.output_str, task.output_tokens, task.logprobs) == ("abc", [A, B, C], [])
    assert (task.end_flag, task.finish_reason) == (True, "length")


async def test_outputs_of_a_step_stay_as_they_were(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask()
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A)
    await step
    first = task.output_tokens
    core.emit(request_id, B)
    await worker.run_task(task)
    assert (first, task.output_tokens) == ([A], [A, B])


async def test_step_of_zero_returns_at_once_with_what_is_there(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(streaming_step=0)
    assert await worker.run_task(task) is TaskStatus.SUCCESS
    assert (task.output_str, task.output_tokens, task.logprobs) == ("", [], [])
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A, B)
    await poll(worker, task, 2)
    core.emit(request.request_id, C, finish="stop")
    await poll(worker, task, 3)
    assert (task.end_flag, task.finish_reason) == (True, "stop")


async def test_step_of_zero_lets_others_run(worker: AsyncLLMWorker, core: ScriptedCore) -> None:
    task = ask(streaming_step=0)
    await worker.run_task(task)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(10):
        await worker.run_task(task)
    counting.cancel()
    assert turns >= 10


async def test_logprobs_and_their_sum_are_of_the_whole_answer(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(num_logprobs=1)
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A, logprobs=[[(A, -0.5, 1)]])
    await step
    core.emit(request_id, B, finish="length", logprobs=[[(B, -0.25, 2)]])
    await worker.run_task(task)
    assert task.logprobs is not None
    assert [entry[token].logprob for entry, token in zip(task.logprobs, [A, B], strict=True)] == [
        -0.5,
        -0.25,
    ]
    assert task.cumulative_logprob == -0.75


async def test_a_task_that_has_ended_is_left_alone(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="length")
    task = ask()
    await worker.run_task(task)
    before = dict(vars(task))
    task.cancel_flag = before["cancel_flag"] = True
    assert await worker.run_task(task) is TaskStatus.SUCCESS
    assert vars(task) == before


async def test_cancelling_a_step_loses_no_token(worker: AsyncLLMWorker, core: ScriptedCore) -> None:
    task = ask(streaming_step=2)
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A)
    async with asyncio.timeout(PATIENCE):
        while task.request_handle is None or not task.request_handle.completion.token_ids:  # noqa: ASYNC110
            await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    core.emit(request_id, B, C, finish="length")
    await worker.run_task(task)
    assert task.output_tokens == [A, B, C]


# ---- cancel


async def test_cancel_flag_ends_the_task_with_all_that_was_generated(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask()
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A)
    await step
    core.emit(request_id, B, C)  # generated, but not yet handed to the controller
    handle = task.request_handle
    assert handle is not None and handle._collector is not None
    await asyncio.wait_for(handle._collector.ready.wait(), PATIENCE)
    task.cancel_flag = True
    step = asyncio.create_task(worker.run_task(task))
    assert (await receive(core, Abort)).request_ids == [request_id]
    core.emit(request_id, finish="abort")
    assert await step is TaskStatus.SUCCESS
    assert (task.output_str, task.output_tokens) == ("abc", [A, B, C])
    assert (task.end_flag, task.finish_reason, task.error) == (True, "abort", None)


async def test_cancel_before_the_first_call_sends_nothing(
    worker: AsyncLLMWorker, core: ScriptedCore, engine: AsyncLLM
) -> None:
    task = ask(cancel_flag=True)
    assert await worker.run_task(task) is TaskStatus.SUCCESS
    assert (task.end_flag, task.finish_reason, task.request_handle) == (True, "abort", None)
    assert (task.output_str, task.output_tokens, task.logprobs) == ("", [], [])
    await engine.check_health()  # the core has answered, and had nothing before that
    assert list(core.received()) == []


async def test_cancel_flag_set_during_a_step_is_seen_with_the_next_token(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(streaming_step=40)
    step, request_id = await begin(core, worker, task)
    task.cancel_flag = True
    core.emit(request_id, A)
    await receive(core, Abort)
    core.emit(request_id, finish="abort")
    await step
    assert (task.output_tokens, task.finish_reason) == ([A], "abort")


async def test_a_dropped_task_has_its_request_aborted(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(streaming_step=0, stall_seconds=60.0)
    await worker.run_task(task)
    request = await receive(core, AddRequest)
    del task
    gc.collect()
    assert (await receive(core, Abort)).request_ids == [request.request_id]


# ---- failure


async def test_a_request_that_fails_keeps_its_outputs(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask()
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A)
    await step
    core.emit(request_id, finish="error", error=("boom", "it broke"))
    assert await worker.run_task(task) is TaskStatus.WORKER_EXCEPTION
    assert (task.output_tokens, task.end_flag, task.finish_reason) == ([A], True, "error")
    assert task.error == "it broke"
    assert await worker.run_task(task) is TaskStatus.SUCCESS  # it has ended


async def test_the_core_s_death_keeps_the_outputs(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask()
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A)
    await step
    core.kill()
    assert await worker.run_task(task) is TaskStatus.WORKER_EXCEPTION
    assert (task.output_str, task.output_tokens, task.end_flag) == ("a", [A], True)
    assert task.error


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 9.0},
        {"temperature": "hot"},
        {"input_tokens": []},
        {"input_tokens": None},
        {"input_tokens": None, "input_str": 5},
        {"input_tokens": None, "input_str": "\ud800"},
        {"input_tokens": 5},
        {"stop": ["\ud800"]},
        {"stop": 5},
        {"stall_seconds": "long"},
        {"streaming_step": None},
        {"streaming_step": "one"},
    ],
    ids=str,
)
async def test_a_wrong_task_fails_without_an_exception(
    worker: AsyncLLMWorker, fields: dict[str, Any]
) -> None:
    task = ask(**fields)
    assert await worker.run_task(task) is TaskStatus.WORKER_EXCEPTION
    assert task.error and (task.end_flag, task.output_tokens) == (True, [])


# ---- stalls


@pytest.mark.usefixtures("quick_retries")
async def test_a_stalled_answer_is_asked_for_again_after_its_tokens(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(streaming_step=2, stall_seconds=STALL)
    step, request_id = await begin(core, worker, task)
    core.on_add = lambda client_id, request: core.emit(request.request_id, B, finish="length")
    core.emit(request_id, A)
    assert await step is TaskStatus.SUCCESS
    assert (task.output_str, task.output_tokens, task.finish_reason) == ("ab", [A, B], "length")
    assert core.receive(Abort).request_ids == [request_id]
    again = core.receive(AddRequest)
    assert (again.prompt_token_ids, again.resume_token_ids) == (PROMPT, [A])


@pytest.mark.usefixtures("quick_retries")
async def test_every_attempt_has_the_same_seed(worker: AsyncLLMWorker, core: ScriptedCore) -> None:
    step = asyncio.create_task(worker.run_task(ask(stall_seconds=STALL)))
    first = await receive(core, AddRequest)
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="length")
    await step
    assert isinstance(core.receive(Abort), Abort)
    assert core.receive(AddRequest).params.seed == first.params.seed


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("max_retries", [0, 2])
async def test_the_last_attempt_that_stalls_fails_the_task(
    worker: AsyncLLMWorker, core: ScriptedCore, max_retries: int
) -> None:
    task = ask(streaming_step=2, stall_seconds=STALL, max_retries=max_retries)
    step, request_id = await begin(core, worker, task)
    core.emit(request_id, A)
    for _ in range(max_retries):
        await receive(core, Abort)
        await receive(core, AddRequest)
    assert await step is TaskStatus.WORKER_EXCEPTION
    assert (task.output_tokens, task.end_flag, task.finish_reason) == ([A], True, "error")
    assert "0.2 s" in (task.error or "")


@pytest.mark.usefixtures("quick_retries")
async def test_a_stall_is_noticed_by_steps_of_zero(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(streaming_step=0, stall_seconds=STALL)
    await worker.run_task(task)
    await receive(core, AddRequest)
    core.on_add = lambda client_id, request: core.emit(request.request_id, A)
    await poll(worker, task, 1)
    assert isinstance(core.receive(Abort), Abort)
    assert core.receive(AddRequest).resume_token_ids == []


@pytest.mark.usefixtures("quick_retries")
async def test_a_refusal_for_now_uses_up_an_attempt(
    engine: AsyncLLM, worker: AsyncLLMWorker, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _ = await begin(core, worker, task := ask(stall_seconds=STALL, max_retries=1))
    monkeypatch.setattr(engine._client, "_max_num_queued_tokens", 0)
    await receive(core, Abort)
    assert await step is TaskStatus.WORKER_EXCEPTION
    assert "waiting" in (task.error or "")


@pytest.mark.usefixtures("quick_retries")
async def test_a_prompt_that_is_being_read_is_no_stall(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    task = ask(stall_seconds=STALL)
    step, request_id = await begin(core, worker, task)
    for num_computed in range(10):
        core.emit(request_id, num_computed_tokens=num_computed, scheduled_ts=1.0)
        await asyncio.wait([step], timeout=STALL / 3)
    core.emit(request_id, A, finish="length")
    assert await step is TaskStatus.SUCCESS
    assert list(core.received()) == []  # no abort, no second request


# ---- workers


async def test_a_worker_does_a_whole_generation_task(
    worker: AsyncLLMWorker, core: ScriptedCore
) -> None:
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, B, finish="length")
    task = GenerationTask(input_tokens=PROMPT, max_tokens=2)
    assert await worker.run_task(task) is TaskStatus.SUCCESS
    assert (task.output_str, task.output_tokens, task.finish_reason) == ("ab", [A, B], "length")


async def test_a_worker_says_what_it_cannot_do(worker: AsyncLLMWorker) -> None:
    assert await worker.run_task(object()) is TaskStatus.WORKER_NOT_SUPPORTED


async def test_a_handler_may_be_registered_for_a_task_of_one_s_own(worker: AsyncLLMWorker) -> None:
    class Reward: ...

    async def judge(worker: AsyncLLMWorker, task: Reward) -> TaskStatus:
        return TaskStatus.SUCCESS

    worker.register_task_handler(Reward, judge)
    assert await worker.run_task(Reward()) is TaskStatus.SUCCESS


async def test_the_handler_takes_an_engine_or_a_worker_of_another_kind(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    class OtherWorker:
        llm = engine

    other: Any = OtherWorker()
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="length")
    for worker in (engine, other):
        task = ask()
        assert await stream_generation_handler(worker, task) is TaskStatus.SUCCESS
        assert task.output_tokens == [A]
