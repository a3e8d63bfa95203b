"""Experts: what transformers computes, and for a token the same bits whatever the others choose."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GptOssConfig, Qwen3MoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from engine.core.attention.paged import LAYER_ATTRIBUTE, StepContext
from engine.core.models.modules.experts import attach_experts, padded_experts_forward
from engine.core.ops import library as ops

NUM_EXPERTS = 6
WIDTH = 32


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def make_experts(family: str) -> Any:
    """Random experts; those of gpt_oss are transposed and have biases."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "experts_implementation": "eager"}
    if family == "gpt_oss":
        config: Any = GptOssConfig(num_local_experts=NUM_EXPERTS, intermediate_size=24, **sizes)
        experts: Any = GptOssExperts(config)
    else:
        config = Qwen3MoeConfig(num_experts=NUM_EXPERTS, moe_intermediate_size=24, **sizes)
        experts = Qwen3MoeExperts(config)
    config._experts_implementation = "eager"
    for parameter in experts.parameters():
        nn.init.normal_(parameter, std=0.3)
    setattr(experts, LAYER_ATTRIBUTE, StepContext(ops.REFERENCE, row_multiple=16))
    return experts.requires_grad_(False)


def route(num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    index = torch.stack([torch.randperm(NUM_EXPERTS)[:2] for _ in range(num_tokens)])
    return torch.randn(num_tokens, WIDTH), index, torch.rand(num_tokens, 2)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_ours_equal_those_of_transformers(family: str) -> None:
    experts, routed = make_experts(family), route(21)
    torch.testing.assert_close(padded_experts_forward(experts, *routed), experts(*routed))


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_a_token_is_the_same_to_the_last_bit_whatever_the_others_choose(family: str) -> None:
    experts = make_experts(family)
    states, index, weights = route(21)
    together = padded_experts_forward(experts, states, index, weights)
    for token in range(21):
        part = slice(token, token + 1)
        alone = padded_experts_forward(experts, states[part], index[part], weights[part])
        assert torch.equal(alone, together[part])


def test_a_model_without_experts_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    attach_experts(model, StepContext(ops.REFERENCE))
    assert not hasattr(model[0], LAYER_ATTRIBUTE)
