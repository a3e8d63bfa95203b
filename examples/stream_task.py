"""Read an answer a few tokens at a time, and stop it when it says enough.

python examples/stream_task.py --step 20 --enough 100 "Once upon a time"
"""

import argparse
import asyncio

from engine import AsyncEngineArgs, AsyncLLM, AsyncLLMWorker, StreamGenerationTask, demo_model


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--model", default=str(demo_model()), help="folder or hub id")
    parser.add_argument("--step", type=int, default=20, help="tokens, 0: what is there")
    parser.add_argument("--enough", type=int, default=100, help="tokens")
    options = parser.parse_args()
    worker = AsyncLLMWorker(AsyncLLM.from_engine_args(AsyncEngineArgs(options.model)))
    task = StreamGenerationTask(
        input_str=options.prompt, temperature=0.8, streaming_step=options.step, stall_seconds=30
    )
    shown = 0
    while not task.end_flag:
        await worker.run_task(task)
        assert task.output_str is not None and task.output_tokens is not None
        print(task.output_str[shown:], end="", flush=True)
        shown = len(task.output_str)
        task.cancel_flag = len(task.output_tokens) >= options.enough
    print(f"\n[{len(task.output_tokens or [])} tokens, {task.error or task.finish_reason}]")


asyncio.run(main())
