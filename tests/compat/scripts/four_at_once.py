"""Four requests at once, the engine built at module scope. `python four_at_once.py MODEL`"""

import asyncio
import sys

from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

PROMPTS = ["The future of AI is", "Once upon a time", "In a galaxy", "The secret to happiness"]

engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=sys.argv[1], max_num_seqs=10))


async def process_request(prompt: str, request_id: str) -> tuple[str, str]:
    sampling_params = SamplingParams(temperature=0.7, max_tokens=20, ignore_eos=True)
    results = []
    async for output in engine.generate(prompt, sampling_params, request_id):
        results.append(output)
    assert len(results[-1].outputs[0].token_ids) == 20, results
    return request_id, results[-1].outputs[0].text


async def concurrent_generation() -> None:
    tasks = [process_request(prompt, f"req-{i}") for i, prompt in enumerate(PROMPTS)]
    for request_id, generated_text in await asyncio.gather(*tasks):
        print(f"{request_id}: {generated_text!r}")
    assert engine.get_num_unfinished_requests() == 0
    await engine.check_health()


asyncio.run(concurrent_generation())
