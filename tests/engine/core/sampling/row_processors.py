"""Logits processors as an operator would write them, for tests; a real core imports this module."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.logits_processors import AdapterLogitsProcessor
from engine.sampling_params import SamplingParams

VOCAB = 300


def arg(params: SamplingParams, name: str) -> Any:
    return (params.extra_args or {}).get(name)


class Bias(AdapterLogitsProcessor):
    """`bias`: pairs of a token and what is added to its logit, as `logit_bias` does."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if arg(params, "bias") == []:
            raise ValueError("bias must not be empty")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        bias = arg(params, "bias")
        if bias is None:
            return None

        def process(output_ids: list[int], logits: Tensor) -> Tensor:
            for token, number in bias:
                logits[token] += number
            return logits

        return process


class Follow(AdapterLogitsProcessor):
    """`follow`: only `follower(prompt, answer)` may come next, which depends on all tokens."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        def process(prompt_ids: list[int], output_ids: list[int], logits: Tensor) -> Tensor:
            result = torch.full_like(logits, -torch.inf)
            result[follower(prompt_ids, output_ids)] = 0
            return result

        return process if arg(params, "follow") else None


def follower(prompt_ids: list[int], output_ids: list[int]) -> int:
    return (sum(prompt_ids) + 7 * len(output_ids) + sum(output_ids)) % VOCAB


class Sharpen(AdapterLogitsProcessor):
    """`sharpen`: multiplies all logits, as a lower temperature would."""

    def __init__(self, vllm_config: EngineConfig, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.device = torch.device(device)

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        factor = arg(params, "sharpen")
        return None if factor is None else lambda output_ids, logits: logits * factor


class Faulty(AdapterLogitsProcessor):
    """`fault`: what goes wrong with the third token."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if arg(params, "fault") == "validate":
            raise RuntimeError("a secret of the user")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        faults: dict[str, Callable[[Tensor], Any]] = {
            "raise": lambda logits: 1 // 0,
            "shape": lambda logits: logits[:-1],
            "none": lambda logits: None,
            "torch": lambda logits: logits @ torch.zeros(2, 2),
            "nothing left": lambda logits: logits.fill_(-torch.inf),
            "nan": lambda logits: logits.fill_(torch.nan),
        }
        if arg(params, "fault") not in faults:
            return None
        fault = faults[arg(params, "fault")]
        return lambda output_ids, logits: fault(logits) if len(output_ids) == 2 else logits


class Unfinished(AdapterLogitsProcessor):
    """It does not say whether it is argmax invariant."""

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        return None


class Foreign:
    """No processor."""
