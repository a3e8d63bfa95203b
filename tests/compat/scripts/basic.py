"""One request, every output kept: no main guard, no shutdown. `python basic.py MODEL`"""

import asyncio
import sys

from engine import AsyncEngineArgs, AsyncLLMEngine, RequestOutput, SamplingParams


async def main() -> list[RequestOutput]:
    engine_args = AsyncEngineArgs(model=sys.argv[1], tensor_parallel_size=1)
    engine = AsyncLLMEngine.from_engine_args(engine_args)
    sampling_params = SamplingParams(temperature=0.8, max_tokens=400, ignore_eos=True)
    results = []
    async for output in engine.generate("Hello world", sampling_params, "req-001"):
        results.append(output)
        print(f"Generated: {output.outputs[0].text!r}")
    return results


outputs = asyncio.run(main())
assert [output.finished for output in outputs].count(True) == 1, outputs
assert outputs[-1].finished
