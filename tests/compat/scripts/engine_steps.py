"""vLLM's loop of steps: a request more before each step. `python engine_steps.py MODEL`"""

import sys
from typing import Any

from engine import EngineArgs, LLMEngine, SamplingParams

test_prompts = [
    ("A robot may not injure a human being", SamplingParams(temperature=0.0, max_tokens=20)),
    ("To be or not to be,", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2)),
    ("What is the meaning of life?", SamplingParams(n=2, temperature=0.8, top_p=0.95)),
]
engine = LLMEngine.from_engine_args(EngineArgs(model=sys.argv[1]))
request_id = 0
while test_prompts or engine.has_unfinished_requests():
    if test_prompts:
        prompt, sampling_params = test_prompts.pop(0)
        engine.add_request(str(request_id), prompt, sampling_params)
        request_id += 1
    for request_output in engine.step():
        if request_output.finished:
            answers: Any = request_output.outputs
            print(f"finished {request_output.request_id}: {len(answers)}")
