"""Our attention function: an unknown wish is refused, never ignored."""

import pytest
import torch
from torch import Tensor, nn

from engine import ops
from engine.attention import StepContext, attach_layers, paged_attention_forward
from engine.checkpoint import UnsupportedModelError


class Attention(nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 6)


def test_a_probed_layer_notes_what_it_was_asked() -> None:
    model = nn.ModuleList([Attention(1), Attention(0)])
    layers = attach_layers(model, StepContext(ops.REFERENCE))
    out, weights = paged_attention_forward(model[0], *tensors(), None, sliding_window=5)
    assert out.shape == (1, 3, 4, 6) and weights is None
    assert layers[0].shapes == []
    (shape,) = layers[1].shapes
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.value_head_dim) == (
        (4, 2, 8, 6)
    )
    assert shape.sliding_window == 5


def test_unknown_keywords_masks_and_strangers_are_refused() -> None:
    module = Attention(0)
    attach_layers(module, StepContext(ops.REFERENCE))
    with pytest.raises(TypeError, match="alibi"):
        paged_attention_forward(module, *tensors(), None, alibi=1)  # type: ignore[call-arg]
    with pytest.raises(UnsupportedModelError, match="a mask of its own"):
        paged_attention_forward(module, *tensors(), torch.zeros(1, 1, 3, 3))
    with pytest.raises(UnsupportedModelError, match="a mask of its own"):
        paged_attention_forward(module, *tensors(), None, is_causal=False)
    with pytest.raises(UnsupportedModelError, match="has no layer_idx"):
        paged_attention_forward(nn.Linear(1, 1), *tensors(), None)
