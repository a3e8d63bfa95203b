"""Every architecture in bfloat16, on a GPU where there is one: as near to the exact logits as
transformers is with the same weights in the same precision.
"""

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.core.models.fused.decoder import FusedDecoder
from tests.engine.core.runner.test_model_runner import FAMILIES, OTHER_FAMILIES
from tests.engine.helpers.greedy_oracle import Folders, families_in, make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")
# What a router decides one way or the other is no matter of rounding.
ROUTED = ("qwen3_moe", "gpt_oss", "deepseek_v3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


def _differences(logits: Tensor, exact: Tensor) -> Tensor:
    """The largest of each row."""
    return (logits - exact).abs().amax(-1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
def test_bfloat16_is_no_further_from_the_exact_logits_than_transformers(
    family: str, device: str, folders: Folders
) -> None:
    """Chunks of five tokens beside decodes, greedily; logits are some 5.

    The fused decoder of CPUs rounds weights, keys and values, and the others all that they compute,
    so that it is nearer.
    """
    engine = SteppedEngine(
        folders(family),
        keeps_logits=True,
        dtype="bfloat16",
        device=device,
        max_num_batched_tokens=5,
    )
    prompts = make_prompts()
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt)
    engine.run()

    def load(dtype: torch.dtype) -> torch.nn.Module:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            folders(family), attn_implementation="eager", dtype=dtype
        )
        return model.to(device)

    exact, rounded = load(torch.float32), load(torch.bfloat16)
    ours, others = [], []
    with torch.inference_mode():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16())
        for number, prompt in enumerate(prompts):
            ids = torch.tensor([prompt + engine.tokens[str(number)][:-1]], device=device)
            expected, other = (
                model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
                for model in (exact, rounded)
            )
            ours.append(_differences(torch.stack(engine.logits[str(number)]), expected))
            others.append(_differences(other, expected))
    difference, allowed = torch.cat(ours), torch.cat(others)
    print(f"| {family} | {difference.median():.3f} | {allowed.median():.3f} |")  # pytest -rP
    assert difference.median() <= 1.5 * allowed.median()
    if isinstance(engine.runner.loaded.fused, FusedDecoder):
        rounds_rows = torch.ops.parley.cpu_level() == "avx512_bf16"  # of its products, too
        assert difference.median() < (0.06 if rounds_rows else 0.03)
        assert difference.max() < 0.15
        assert difference.median() < allowed.median()
    if family not in ROUTED:
        assert difference.max() <= 2 * allowed.max()
