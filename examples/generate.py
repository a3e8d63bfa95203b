"""Stream one answer from Parley's engine to the terminal.

python examples/generate.py --model FOLDER_OR_HUB_ID "Once upon a time"
"""

import argparse
import asyncio

from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams, demo_model


async def stream(engine: AsyncLLM, prompt: str, max_tokens: int) -> None:
    """Print the answer as it is decoded, and how long it took."""
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.8, output_kind=RequestOutputKind.DELTA
    )
    async for output in engine.generate(prompt, params, "example"):
        print(output.outputs[0].text, end="", flush=True)
    metrics = output.metrics
    assert metrics is not None
    seconds = metrics.last_token_ts - metrics.queued_ts
    print(f"\n[{metrics.num_generation_tokens} tokens in {seconds:.2f} s]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--model", default=str(demo_model()), help="folder or hub id")
    parser.add_argument("--max-tokens", type=int, default=100)
    options = parser.parse_args()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(options.model))
    try:
        asyncio.run(stream(engine, options.prompt, options.max_tokens))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
