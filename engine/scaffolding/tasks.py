"""Generation as a task that a controller hands to a worker again and again, a few tokens each time.

    worker = AsyncLLMWorker(engine)
    task = StreamGenerationTask(input_str="Once upon", max_tokens=200, streaming_step=20)
    while not task.end_flag:
        status = await worker.run_task(task)       # returns with 20 more tokens, or the end
        task.cancel_flag = len(task.output_tokens) > 100

The fields and their meanings are those of TensorRT-LLM's scaffolding, over our engine. A task is an
ordinary object that nobody else holds: one that is dropped has its request aborted.
"""

import dataclasses
import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from engine.client.async_llm import AsyncLLM
from engine.logprobs import Logprob
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.scaffolding.stream_handle import StreamHandle


class TaskStatus(enum.Enum):
    """What came of handing a task to a worker."""

    SUCCESS = "success"
    WORKER_NOT_SUPPORTED = "worker_not_supported"  # the worker has no handler for such a task
    WORKER_EXCEPTION = "worker_exception"  # it failed; `task.error` says why


@dataclass
class GenerationTask:
    """One prompt, how to answer it, and the answer so far.

    The outputs hold everything since the beginning, not of one step; after a worker has had the
    task, `output_tokens` and `logprobs` are lists, empty if there is nothing.
    """

    input_str: str | None = None
    input_tokens: list[int] | None = None  # they win over the text
    num_logprobs: int | None = None
    max_tokens: int | None = None  # None: up to the end of the context
    temperature: float | None = None  # None, here and below: the default of SamplingParams
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    worker_tag: Any = None  # which worker shall have it: the controller's business
    output_str: str | None = None
    output_tokens: list[int] | None = None
    logprobs: list[Mapping[int, Logprob]] | None = None
    cumulative_logprob: float | None = None  # only with num_logprobs
    finish_reason: str | None = None
    error: str | None = None  # why the status was WORKER_EXCEPTION

    def create_sampling_params(self) -> SamplingParams:
        """The parameters as the engine knows them. `ValidationError` names a wrong one."""
        return SamplingParams.from_optional(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            seed=self.seed,
            logprobs=self.num_logprobs,
            output_kind=RequestOutputKind.DELTA,
        )


@dataclass
class StreamGenerationTask(GenerationTask):
    """A `GenerationTask` that comes back from the worker whenever there is something new."""

    cancel_flag: bool = False  # set by the controller: stop it and keep what there is
    streaming_step: int = 1  # new tokens to wait for; 0 returns with what is there already
    request_handle: StreamHandle | None = None  # the worker's
    end_flag: bool = False  # nothing more will come
    stall_seconds: float | None = None  # without a sign of life for so long: send it again
    max_retries: int = 2  # how often, before the task fails

    @classmethod
    def create_from_generation_task(cls, task: GenerationTask, streaming_step: int = 1) -> Self:
        """A task of its own that asks the same."""
        stream_task = cls(streaming_step=streaming_step)
        for field in dataclasses.fields(GenerationTask):
            setattr(stream_task, field.name, getattr(task, field.name))
        return stream_task


def create_from_generation_task(
    task: GenerationTask, streaming_step: int = 1
) -> StreamGenerationTask:
    """`StreamGenerationTask.create_from_generation_task` as a function."""
    return StreamGenerationTask.create_from_generation_task(task, streaming_step)


async def stream_generation_handler(
    worker: "AsyncLLMWorker | AsyncLLM", task: StreamGenerationTask
) -> TaskStatus:
    """Go on with a task until it has `streaming_step` new tokens, or has ended.

    The first call sends the request. A step of 0 gives the event loop one turn and takes what is
    there. With `cancel_flag` the request is aborted, `finish_reason` is "abort", and the outputs
    hold all that had been generated; nothing is sent for a task cancelled before its first call.
    A request that fails gives WORKER_EXCEPTION, the reason in `task.error`, and the outputs stay.
    Cancelling this call loses nothing: the next one goes on.
    """
    if task.end_flag:
        return TaskStatus.SUCCESS
    try:
        if task.request_handle is None:
            _clear_outputs(task)
            if task.cancel_flag:
                task.end_flag, task.finish_reason = True, "abort"
                return TaskStatus.SUCCESS
            task.request_handle = await _begin(worker, task)
        await _advance(task.request_handle, task)
    except Exception as exception:  # of any kind: the controller must hear of it
        if task.request_handle is not None:
            task.request_handle.close()
        task.end_flag, task.finish_reason = True, "error"
        task.error = str(exception) or type(exception).__name__
    return TaskStatus.SUCCESS if task.error is None else TaskStatus.WORKER_EXCEPTION


async def generation_handler(
    worker: "AsyncLLMWorker | AsyncLLM", task: GenerationTask
) -> TaskStatus:
    """Do a whole task. Leaving it in the middle, by cancellation, aborts its request."""
    stream_task = StreamGenerationTask.create_from_generation_task(task)
    status = TaskStatus.SUCCESS
    try:
        while not stream_task.end_flag:
            status = await stream_generation_handler(worker, stream_task)
    finally:
        for field in dataclasses.fields(GenerationTask):
            setattr(task, field.name, getattr(stream_task, field.name))
    return status


TaskHandler = Callable[[Any, Any], Awaitable[TaskStatus]]


class AsyncLLMWorker:
    """Runs tasks on an engine, each kind by the handler registered for it."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.llm = engine
        self.task_handlers: dict[type, TaskHandler] = {
            GenerationTask: generation_handler,
            StreamGenerationTask: stream_generation_handler,
        }

    def register_task_handler(self, task_class: type, handler: TaskHandler) -> None:
        """From now on tasks of this class, and of those derived from it, go to this handler."""
        self.task_handlers[task_class] = handler

    async def run_task(self, task: Any) -> TaskStatus:
        """Have a task handled, a step of it if it streams."""
        for task_class in type(task).__mro__:
            if task_class in self.task_handlers:
                return await self.task_handlers[task_class](self, task)
        return TaskStatus.WORKER_NOT_SUPPORTED

    def shutdown(self) -> None:
        """End the engine."""
        self.llm.shutdown()


async def _begin(worker: Any, task: StreamGenerationTask) -> StreamHandle:
    """Send the request of a task."""
    handle = StreamHandle(
        getattr(worker, "llm", worker),
        task.input_str if task.input_tokens is None else task.input_tokens,
        task.create_sampling_params(),
        stall_seconds=task.stall_seconds,
        max_retries=task.max_retries,
    )
    await handle.submit()
    return handle


async def _advance(handle: StreamHandle, task: StreamGenerationTask) -> None:
    """Read until the step is full; a flag set meanwhile is seen with the next output."""
    try:
        if task.streaming_step <= 0 and not task.cancel_flag:
            await handle.read_nowait()
        wanted = len(handle.completion.token_ids) + task.streaming_step
        while not task.cancel_flag and len(handle.completion.token_ids) < wanted:
            await handle.read()
            if handle.finished:
                return
        if task.cancel_flag and not handle.finished:
            await handle.abort()
    finally:
        _copy_outputs(handle, task)


def _copy_outputs(handle: StreamHandle, task: StreamGenerationTask) -> None:
    answer = handle.completion
    task.output_str = answer.text
    task.output_tokens = list(answer.token_ids)
    task.logprobs = list(answer.logprobs or [])
    task.cumulative_logprob = answer.cumulative_logprob
    task.finish_reason = answer.finish_reason
    task.error = None if handle.error is None else handle.error.message
    task.end_flag = handle.finished


def _clear_outputs(task: StreamGenerationTask) -> None:
    task.output_str, task.output_tokens, task.logprobs = "", [], []
    task.cumulative_logprob = task.finish_reason = task.error = None
