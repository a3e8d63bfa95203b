"""A controller that reads three answers in steps, and cuts long ones. `python stream_task.py MODEL`

Run as it is, with another step, and with a threshold beyond which the controller cancels.
"""

import asyncio
import copy
import sys
from collections.abc import Iterator

from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMWorker,
    GenerationTask,
    StreamGenerationTask,
    TaskStatus,
    stream_generation_handler,
)

PROMPTS = ["Natalia sold clips to 48 of her friends", "There exist real numbers", "Find the"]
MAX_TOKENS = 120


class StreamController:
    """Yields the tasks that go on, and takes over what has come of them."""

    def __init__(self, stream_step: int, output_threshold: int) -> None:
        self.stream_step = stream_step
        self.output_threshold = output_threshold
        self.num_steps = 0

    def process(self, tasks: list[GenerationTask]) -> Iterator[list[StreamGenerationTask]]:
        pairs = []
        for task in tasks:
            stream_task = StreamGenerationTask()
            stream_task.__dict__ = copy.deepcopy(task.__dict__)
            stream_task.streaming_step = self.stream_step
            pairs.append((task, stream_task))
        while pairs:
            self.num_steps += 1
            yield [stream_task for _, stream_task in pairs]
            for task, stream_task in pairs:
                assert stream_task.output_tokens is not None and stream_task.logprobs is not None
                task.output_str = stream_task.output_str
                task.output_tokens = stream_task.output_tokens
                task.finish_reason = stream_task.finish_reason
                if len(stream_task.output_tokens) > self.output_threshold:
                    stream_task.cancel_flag = True
            pairs = [pair for pair in pairs if not pair[1].end_flag]


async def run(controller: StreamController, worker: AsyncLLMWorker) -> list[GenerationTask]:
    tasks = [GenerationTask(input_str=p, max_tokens=MAX_TOKENS, temperature=0.0) for p in PROMPTS]
    for stream_tasks in controller.process(tasks):
        statuses = await asyncio.gather(*[worker.run_task(task) for task in stream_tasks])
        assert set(statuses) == {TaskStatus.SUCCESS}, statuses
    return tasks


async def main() -> None:
    worker = AsyncLLMWorker(AsyncLLM.from_engine_args(AsyncEngineArgs(sys.argv[1], pace=500)))
    worker.register_task_handler(StreamGenerationTask, stream_generation_handler)

    whole = await run(StreamController(stream_step=10, output_threshold=MAX_TOKENS), worker)
    assert [task.finish_reason for task in whole] == ["length"] * 3, whole
    assert [len(task.output_tokens or []) for task in whole] == [MAX_TOKENS] * 3, whole

    in_steps = StreamController(stream_step=20, output_threshold=MAX_TOKENS)
    assert await run(in_steps, worker) == whole
    assert 1 < in_steps.num_steps <= 1 + MAX_TOKENS // 20, in_steps.num_steps

    at_once = StreamController(stream_step=0, output_threshold=MAX_TOKENS)
    assert await run(at_once, worker) == whole

    for cut, task in zip(await run(StreamController(10, 30), worker), whole, strict=True):
        assert cut.finish_reason == "abort", cut
        assert 30 < len(cut.output_tokens or []) < MAX_TOKENS, cut
        assert task.output_tokens and cut.output_tokens
        assert task.output_tokens[: len(cut.output_tokens)] == cut.output_tokens
        print(f"{cut.output_str!r}")


asyncio.run(main())
print("Every task has ended")
