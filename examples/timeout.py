"""Give up on an answer that takes too long, and know that the engine has given it up too.

python examples/timeout.py --seconds 5 "Write a very long story"

`async for output in asyncio.wait_for(...)` is often seen for this and cannot work: `wait_for` takes
one awaitable, and a stream is many. `asyncio.timeout` around the loop is what is meant. It leaves
the stream by cancellation, which aborts the request; the `abort` after it finds nothing to do.
"""

import argparse
import asyncio

from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams, demo_model


async def request_with_timeout(engine: AsyncLLMEngine, prompt: str, seconds: float) -> None:
    """Print how much text has come, until the end or the timeout."""
    params = SamplingParams(temperature=0.8, max_tokens=500, ignore_eos=True)
    try:
        async with asyncio.timeout(seconds):
            async for output in engine.generate(prompt, params, "timeout-test"):
                print(f"Generated so far: {len(output.outputs[0].text)} chars")
        print(f"The answer ended within {seconds:g} s")
    except TimeoutError:
        print("Generation timed out, cancelling request...")
        await engine.abort("timeout-test")
        print("Request cancelled successfully")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="Write a very long story")
    parser.add_argument("--model", default=str(demo_model()), help="folder or hub id")
    parser.add_argument("--seconds", type=float, default=5.0)
    # As fast as it can, the demo model ends the answer before 5 s have passed.
    parser.add_argument("--pace", type=float, default=60.0, help="tokens per second, 0: no limit")
    options = parser.parse_args()
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(options.model, pace=options.pace))
    free_before = (await engine.metrics())["num_blocks_free"]
    await request_with_timeout(engine, options.prompt, options.seconds)
    free_after = (await engine.metrics())["num_blocks_free"]
    print(f"Free blocks of the KV cache: {free_before} before, {free_after} after")


asyncio.run(main())
