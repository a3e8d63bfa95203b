"""First tokens and stops as a client sees them, beside answers that run all the time."""

import asyncio
import statistics
import time
from typing import Any

from bench.gpu.cases import TOKEN, Figure, Sizes
from bench.gpu.device import Device
from bench.peers.models import Checkpoint
from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams

NUM_STOPS = 10


async def through_client(model: Checkpoint, sizes: Sizes, on: Device) -> list[Figure]:
    """A core of its own, with answers that run all the time."""
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            str(model.folder),
            load_format="dummy",
            dtype="bfloat16",
            device=on.device.type,
            max_num_seqs=sizes.chats + 1,
            batch_invariant=False,
        )
    )
    endless = SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=None, output_kind=RequestOutputKind.DELTA
    )
    try:
        streams = []
        for number in range(sizes.chats):
            prompt = [TOKEN + number] * sizes.chat[0]
            streams.append(await engine.add_request(f"chat-{number}", prompt, endless))
        tasks = [asyncio.create_task(_drain(stream)) for stream in streams]
        first, stop = [], []
        for number in range(NUM_STOPS):
            name, prompt = f"late-{number}", [TOKEN + 100 + number] * sizes.late_prompt
            started = time.perf_counter()
            stream = await engine.add_request(name, prompt, endless)
            async for output in stream:
                if output.outputs and output.outputs[0].token_ids:
                    break
            first.append(time.perf_counter() - started)
            started = time.perf_counter()
            await engine.abort(name)
            await _drain(stream)
            stop.append(time.perf_counter() - started)
        await engine.abort([f"chat-{number}" for number in range(sizes.chats)])
        await asyncio.gather(*tasks)
    finally:
        engine.shutdown()
    late = f"first token of {sizes.late_prompt} beside {sizes.chats}"
    return [
        Figure(model.name, late, statistics.median(first) * 1e3, "ms"),
        Figure(model.name, f"stop beside {sizes.chats}", statistics.median(stop) * 1e3, "ms"),
    ]


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass
