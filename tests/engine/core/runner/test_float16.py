"""float16 on a CPU: as near to the exact logits as transformers is, and through the real core.

csrc keeps keys and values in float32 there, of which float16 loses nothing.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import AsyncEngineArgs, AsyncLLM, SamplingParams
from tests.engine.helpers.greedy_oracle import Folders, families_in, make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

NUM_TOKENS = 16
NEAR_TIE = 0.02  # of logits of some 5, in 11 bits


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


def check_greedy(folder: Path, prompt: list[int], answer: list[int]) -> None:
    """That each token is the best of transformers in float16 after those before it, or as good."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float16
    )
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer[:-1]]), use_cache=False).logits[0].float()
    logits = logits[len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    assert (logits.amax(-1) - chosen).max() <= NEAR_TIE


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_oss"])
def test_chunks_decodes_and_latecomers_are_those_of_transformers(
    family: str, backend: str, folders: Folders
) -> None:
    engine = SteppedEngine(
        folders(family), dtype="float16", attn_backend=backend, max_num_batched_tokens=5
    )
    assert engine.runner.loaded.dtype == torch.float16
    assert engine.runner.loaded.fused is None
    prompts = make_prompts()
    for number, prompt in enumerate(prompts):
        if number == 3:
            for _ in range(9):
                engine.step()
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS)
    engine.run()
    for number, prompt in enumerate(prompts):
        check_greedy(folders(family), prompt, engine.tokens[str(number)])


@pytest.mark.slow
async def test_the_engine_answers_in_float16_as_generate_does(folders: Folders) -> None:
    folder, prompt = folders("gpt2"), make_prompts()[2]
    arguments = AsyncEngineArgs(str(folder), dtype="half", num_gpu_blocks_override=20, threads=1)
    engine = AsyncLLM.from_engine_args(arguments)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    try:
        outputs = [output async for output in engine.generate(prompt, params, "a")]
    finally:
        engine.shutdown()
    answer = list(outputs[-1].outputs[0].token_ids)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16)
    generated = model.generate(
        torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
    )[0, len(prompt) :].tolist()
    same = next((n for n in range(NUM_TOKENS) if answer[n] != generated[n]), NUM_TOKENS)
    assert same > NUM_TOKENS // 2  # after a near tie the two go on differently
    check_greedy(folder, prompt, answer)
