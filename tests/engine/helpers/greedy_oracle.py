"""The oracle of all decoders: transformers' greedy tokens and logits, in any batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from engine.core.ops import library as ops
from tests.engine.helpers.family_models import auto_class
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.tiny_model import build_tiny_model

NUM_TOKENS = 24
HAS_FUSED_SUMS = not ops.load_library() or torch.ops.parley.cpu_level() != "baseline"
# Plain C++ rounds each product before it is added, other levels only the sum.
MAX_LOGIT_DIFFERENCE = 1e-5 if HAS_FUSED_SUMS else 2e-5
ON_GPU = 5e-5  # also float32, summed in another order
PROMPT_LENGTHS = (7, 3, 40, 1, 17, 12)
Folders = Callable[[str], Path]


def families_in(parent: Path) -> Folders:
    """Tiny models of any family, each built when it is first asked for."""
    built: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in built:
            # logits of some 5, so that an absolute difference says something
            built[family] = build_tiny_model(parent / family, family, initializer_range=0.15)
        return built[family]

    return folder


def make_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 380, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


class Reference:
    """transformers with eager attention and without a cache; of a whole model, given text alone."""

    def __init__(self, folder: Path) -> None:
        kind = auto_class(AutoConfig.from_pretrained(folder).model_type)
        self._model = kind.from_pretrained(folder, attn_implementation="eager")

    def check(self, prompt: list[int], answer: list[int], logits: list[Tensor]) -> float:
        """That each token of a greedy answer is the one after those before it.

        Returns the largest difference of a logit.
        """
        ids = torch.tensor([prompt + answer[:-1]])
        with torch.inference_mode():
            expected = self._model(ids, use_cache=False).logits[0, len(prompt) - 1 :]
        assert len(answer) == len(logits) == NUM_TOKENS
        assert answer == expected.argmax(-1).tolist()
        return float((torch.stack(logits).cpu() - expected).abs().max())


def check_equals_transformers(folder: Path, **settings: Any) -> SteppedEngine:
    """Half of the prompts at once, the others while these run."""
    prompts = make_prompts()
    engine = SteppedEngine(folder, keeps_logits=True, **settings)
    for number, prompt in enumerate(prompts):
        if number == 3:
            for _ in range(9):
                engine.step()
        engine.add(str(number), prompt, max_tokens=NUM_TOKENS)
    engine.run()
    reference = Reference(folder)
    difference = max(
        reference.check(prompt, engine.tokens[name], engine.logits[name])
        for name, prompt in ((str(number), prompt) for number, prompt in enumerate(prompts))
    )
    print(f"| {folder.name} | {difference:.1e} |")  # pytest -rP: a row of the table in docs
    allowed = MAX_LOGIT_DIFFERENCE if engine.runner.loaded.device.type == "cpu" else ON_GPU
    assert difference <= allowed
    return engine
