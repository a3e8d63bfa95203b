"""A scripted model: a processor of logits that has a tiny model write a document, or close one.

Where the answer so far is a beginning of the script, its next token is all but certain; where the
schema has made it another one, and without a script, what closes a document is likely, so that an
answer of random weights comes to an end. It depends on the answer's tokens alone.
"""

import random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.config import EngineConfig
from engine.logits_processors import AdapterLogitsProcessor
from engine.sampling_params import SamplingParams

CERTAIN, LIKELY = 60.0, 5.0
BITS = ('"', "}", "]", ",", ":", "\\", "\\u0061", "0", "-1.5e3", "null", "é", " ", "{", "[", "x")


class Scripted(AdapterLogitsProcessor):
    """`script`: the ids of a document, or none; without the argument nothing is done."""

    def __init__(self, vllm_config: EngineConfig, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        tokenizer = Tokenizer.from_file(f"{vllm_config.model}/tokenizer.json")
        texts = [tokenizer.decode([each]) for each in range(tokenizer.get_vocab_size())]
        self._closing = torch.tensor([LIKELY * (each in ('"', "}", "]")) for each in texts])
        self._closing[0] = 2 * LIKELY  # the end of the text

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        script: list[int] | None = (params.extra_args or {}).get("script")
        if script is None:
            return None

        def process(output_ids: list[int], logits: Tensor) -> Tensor:
            num_tokens = len(output_ids)
            if num_tokens < len(script) and output_ids == script[:num_tokens]:
                logits[script[num_tokens]] += CERTAIN
                return logits
            return logits + self._closing

        return process


def nearly(rng: random.Random, text: str) -> str:
    """A document with something wrong, mostly."""
    for _ in range(rng.randrange(4)):
        start = rng.randint(0, len(text))
        end = start + rng.choice((0, 0, 1, 2, 5))
        text = text[:start] + rng.choice(BITS) + text[end:]
    return text
