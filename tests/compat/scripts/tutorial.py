"""Three prompts one after another, as deltas, with an orderly end. `python tutorial.py MODEL`"""

import asyncio
import sys

from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams


async def stream_response(engine: AsyncLLM, prompt: str, request_id: str) -> None:
    sampling_params = SamplingParams(
        max_tokens=20,
        temperature=0.8,
        top_p=0.95,
        seed=42,
        output_kind=RequestOutputKind.DELTA,
    )
    async for output in engine.generate(
        request_id=request_id, prompt=prompt, sampling_params=sampling_params
    ):
        for completion in output.outputs:
            if completion.text:
                print(completion.text, end="", flush=True)
        if output.finished:
            print("\nGeneration complete!")
            break


async def main() -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=sys.argv[1], enforce_eager=True))
    try:
        for number, prompt in enumerate(["The future is", "In a galaxy", "The key to"], 1):
            await stream_response(engine, prompt, f"stream-example-{number}")
    finally:
        print("Shutting down engine...")
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
