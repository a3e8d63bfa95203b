"""A number as request id, and an abort from inside the loop. `python abort_in_loop.py MODEL`"""

import asyncio
import sys
from typing import Any

from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams


async def main() -> None:
    # Paced: a tiny model may have said all before a busy machine lets us read the first word.
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=sys.argv[1], pace=50.0))
    example_input: dict[str, Any] = {"prompt": "What is LLM?", "temperature": 0.0, "request_id": 0}
    request_id = example_input["request_id"]
    results_generator = engine.generate(
        example_input["prompt"],
        SamplingParams(temperature=example_input["temperature"], max_tokens=400, ignore_eos=True),
        request_id,
    )
    final_output = None
    async for request_output in results_generator:
        if final_output is None:
            await engine.abort(request_id)
        final_output = request_output
    assert final_output is not None
    assert final_output.request_id == 0
    assert final_output.outputs[0].finish_reason == "abort"
    print("Aborted")
    raise KeyError("and the script fails")


asyncio.run(main())
