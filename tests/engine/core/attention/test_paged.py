"""Our attention function: an unknown wish is refused, never ignored."""

import dataclasses
from array import array
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.core.attention.backends import OpsAttention
from engine.core.attention.paged import StepContext, attach_layers, paged_attention_forward
from engine.core.ops import library as ops
from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.core.tensors.batch import build_batch
from engine.core.tensors.kv_cache import allocate_cache
from engine.errors import UnsupportedModelError
from engine.sampling_params import SamplingParams


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
    with pytest.raises(UnsupportedModelError, match="Attention asks attention for alibi"):
        paged_attention_forward(module, *tensors(), None, alibi=1, labels=None)
    with pytest.raises(UnsupportedModelError, match="a mask of its own"):
        paged_attention_forward(module, *tensors(), torch.zeros(1, 1, 3, 3))
    with pytest.raises(UnsupportedModelError, match="both directions"):
        paged_attention_forward(module, *tensors(), None, is_causal=False)
    with pytest.raises(UnsupportedModelError, match="has no layer_idx"):
        paged_attention_forward(nn.Linear(1, 1), *tensors(), None)


def test_a_keyword_that_is_none_asks_for_nothing() -> None:
    module = Attention(0)
    (layer,) = attach_layers(module, StepContext(ops.REFERENCE))
    paged_attention_forward(module, *tensors(), None, labels=None, encoder_hidden_states=None)
    assert len(layer.shapes) == 1


def test_a_layer_that_says_it_is_not_causal_is_refused() -> None:
    module = Attention(0)
    module.is_causal = False  # type: ignore[assignment]
    attach_layers(module, StepContext(ops.REFERENCE))
    with pytest.raises(UnsupportedModelError, match="Attention reads a text in both directions"):
        paged_attention_forward(module, *tensors(), None)
    paged_attention_forward(module, *tensors(), None, is_causal=True)


def test_padding_is_not_attended_not_stored_and_gives_zeros() -> None:
    layer_module = Attention(0)
    context = StepContext(ops.REFERENCE, OpsAttention(ops.REFERENCE))
    (layer,) = attach_layers(nn.ModuleList([layer_module]), context)
    layer.key_cache = allocate_cache(2, 16, 2, 8, torch.float32, is_key=True)
    layer.value_cache = allocate_cache(2, 16, 2, 6, torch.float32, is_key=False)
    sequence = Sequence("c", "r", [1, 2, 3], SamplingParams())
    sequence.block_table = array("i", [1])
    query, key, value = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 6)
    outs = []
    for row_multiple in (1, 8):
        num_padding = -3 % row_multiple
        junk = [
            functional.pad(tensor, (0, 0, 0, num_padding), value=torch.nan)
            for tensor in (query, key, value)
        ]
        scheduled = [ScheduledSequence(sequence, 3)]
        context.batch = build_batch(scheduled, 16, row_multiple)
        out, _ = paged_attention_forward(layer_module, junk[0], junk[1], junk[2], None)
        outs.append(out)
    assert torch.equal(outs[1][:, :3], outs[0])
    assert not outs[1][:, 3:].any()
    assert not layer.key_cache.isnan().any() and not layer.value_cache.isnan().any()
    assert not layer.key_cache[0].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sinks_that_a_model_keeps_in_float32_are_taken_with_queries_in_16_bits(
    dtype: torch.dtype,
) -> None:
    module, chosen = Attention(0), ops.choose("auto")
    context = StepContext(chosen, OpsAttention(chosen))
    (layer,) = attach_layers(nn.ModuleList([module]), context)
    query, key, value = (
        torch.randn(1, heads, 3, width, dtype=dtype) for heads, width in ((4, 8), (2, 8), (2, 6))
    )
    sinks = torch.randn(4)
    paged_attention_forward(module, query, key, value, None, s_aux=sinks)
    kept = layer.shapes[0].dtype
    layer.key_cache = allocate_cache(1, 16, 2, 8, kept, is_key=True)
    layer.value_cache = allocate_cache(1, 16, 2, 6, kept, is_key=False)
    sequence = Sequence("c", "r", [1, 2, 3], SamplingParams())
    sequence.block_table = array("i", [0])
    context.batch = build_batch([ScheduledSequence(sequence, 3)], 16)
    out, _ = paged_attention_forward(module, query, key, value, None, s_aux=sinks)
    first = query[0, :, 0].float() * 8**-0.5  # the first token sees itself and the sink alone
    scores = (first * key[0, :, 0].float().repeat_interleave(2, 0)).sum(-1)
    weights = (scores - sinks).sigmoid()
    expected = weights[:, None] * value[0, :, 0].float().repeat_interleave(2, 0)
    assert out.dtype == dtype
    torch.testing.assert_close(out[0, 0].float(), expected, atol=0.03, rtol=0)


def test_a_scale_of_one_is_not_taken_for_none() -> None:
    """OPT scales its queries itself and says 1.0; only None means the usual scale."""
    seen: list[float] = []

    def attend(*args: Any) -> None:
        seen.append(args[7])

    module = Attention(0)
    noting = dataclasses.replace(ops.REFERENCE, paged_attention=attend)
    context = StepContext(noting, OpsAttention(noting))
    (layer,) = attach_layers(nn.ModuleList([module]), context)
    layer.key_cache = allocate_cache(1, 16, 2, 8, torch.float32, is_key=True)
    layer.value_cache = allocate_cache(1, 16, 2, 6, torch.float32, is_key=False)
    sequence = Sequence("c", "r", [1, 2, 3], SamplingParams())
    sequence.block_table = array("i", [0])
    context.batch = build_batch([ScheduledSequence(sequence, 3)], 16)
    for scaling in (1.0, 0.3, None):
        paged_attention_forward(module, *tensors(), None, scaling=scaling)
    assert seen == [1.0, 0.3, 8**-0.5]
