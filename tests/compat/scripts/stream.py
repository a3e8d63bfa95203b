"""Text as it comes; cumulative, as is the default, so it repeats. `python stream.py MODEL`"""

import asyncio
import sys

from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams


async def stream_text() -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=sys.argv[1]))
    sampling_params = SamplingParams(temperature=0.8, max_tokens=20)
    longest = ""
    print("Streaming generation:")
    async for output in engine.generate("Tell me a story about", sampling_params, "stream-001"):
        if output.outputs:
            text = output.outputs[0].text
            assert text.startswith(longest), (longest, text)
            longest = text
            print(text, end="", flush=True)
    print("\nGeneration complete!")


asyncio.run(stream_text())
