"""Mixture-of-experts layers whose answer for a token does not depend on the other tokens' experts.

transformers computes each expert on the tokens routed to it, so the number of rows of its matrix
products changes with every step, and with it, on some kernels, the last bits
(engine/core/runner/invariance.py says which). Ours pads each expert's rows to the step's multiple,
and adds up a token's experts in the order of its router, not in that of the experts.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from engine.core.attention.paged import LAYER_ATTRIBUTE, StepContext
from engine.core.models.modules.linear import PackedLinear, pack_numbers
from engine.core.models.modules.stored_experts import ExpertNumbers
from engine.core.tensors.batch import round_up

NAME = "parley_padded"
PACKED = "_packed"  # after the name of a weight


def padded_experts_forward(
    module: Any,
    hidden_states: Tensor,  # [num_tokens, width]
    top_k_index: Tensor,  # [num_tokens, top_k] int64: the experts of each token
    top_k_weights: Tensor,  # [num_tokens, top_k]
) -> Tensor:  # [num_tokens, width]
    """Each token through its experts, and the weighted sum of what they say."""
    num_tokens, top_k = top_k_index.shape
    context: StepContext = getattr(module, LAYER_ATTRIBUTE)
    pairs = top_k_index.flatten()  # pair i is expert i % top_k of token i // top_k
    results = hidden_states.new_empty((num_tokens * top_k, hidden_states.shape[1]))
    for expert in sorted(set(pairs.tolist())):
        chosen = (pairs == expert).nonzero().squeeze(1)
        num_chosen = len(chosen)
        num_rows = round_up(num_chosen, context.row_multiple)
        rows = functional.pad(chosen, (0, num_rows - num_chosen), value=int(chosen[0]))
        results[chosen] = _compute(module, expert, hidden_states[rows // top_k])[:num_chosen]
    weighted = results.view(num_tokens, top_k, -1) * top_k_weights[..., None]
    total = weighted[:, 0].clone()
    for place in range(1, top_k):
        total += weighted[:, place]
    return total.to(hidden_states.dtype)


def attach_experts(model: nn.Module, context: StepContext) -> None:
    """Make the experts of a built model ours, where it has any that we can compute.

    Those whose weights are numbers in their file are packed as these. Raises what reading does.
    """
    experts = [module for module in model.modules() if is_ours(module)]
    for module in experts:
        setattr(module, LAYER_ATTRIBUTE, context)
        _pack_numbers(module, context)
    if experts:
        function: Callable[..., Any] = padded_experts_forward
        ALL_EXPERTS_FUNCTIONS.register(NAME, function)
        cast(Any, model).set_experts_implementation(NAME)


def is_ours(module: Any) -> bool:
    """Whether this has expert weights side by side, as transformers keeps them, and a gate."""
    return bool(getattr(module, "has_gate", False)) and hasattr(module, "is_transposed")


def _pack_numbers(module: Any, context: StepContext) -> None:
    """Put packed layers, one for each expert, in the place of weights that are still in a file."""
    stored: dict[str, list[ExpertNumbers]] = getattr(module, "stored", {})
    for name, weights in stored.items():
        dtype: torch.dtype = getattr(module, name).dtype
        biases = getattr(module, f"{name}_bias") if module.has_bias else [None] * len(weights)
        packed = pack_numbers(weights)
        layers = [
            PackedLinear(packed, expert, weight.shape, biases[expert], context.ops, dtype)
            for expert, weight in enumerate(weights)
        ]
        module.add_module(f"{name}{PACKED}", nn.ModuleList(layers))


def _compute(module: Any, expert: int, rows: Tensor) -> Tensor:
    """One expert on some rows."""
    hidden = module._apply_gate(_project(module, "gate_up_proj", expert, rows))
    out = _project(module, "down_proj", expert, hidden)
    if module.has_post_expert_norm:
        out = module.post_expert_norm(out)
    return out


def _project(module: Any, name: str, expert: int, rows: Tensor) -> Tensor:
    packed = getattr(module, f"{name}{PACKED}", None)
    if packed is not None:
        result: Tensor = packed[expert](rows)
        return result
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return functional.linear(rows, weight.T if module.is_transposed else weight, bias)
