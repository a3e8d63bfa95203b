"""What `torch.ops.parley.decoder_step` computes, written to be read; with the same arguments."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops.packing import PANEL_OUTPUTS, PackedWeight, round_rows
from engine.core.ops.reference import paged_attention_reference, store_kv_reference


def decoder_step_reference(
    input_ids: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    logits_rows: Tensor,
    key_cache: Tensor,  # [layers, num_blocks, 16, num_kv_heads, head_dim]
    value_cache: Tensor,
    cache_scales: Tensor | None,  # of int8 caches: [layers, num_blocks, 2, num_kv_heads, 16]
    embeddings: Tensor | None,
    norms: Tensor,
    qk_norms: Tensor | None,
    rotary: Tensor,
    qkv: Tensor,
    qkv_scales: Tensor | None,
    qkv_bias: Tensor | None,
    attention_out: Tensor,
    attention_out_scales: Tensor | None,
    gate_up: Tensor,
    gate_up_scales: Tensor | None,
    down: Tensor,
    down_scales: Tensor | None,
    head: Tensor,
    head_scales: Tensor | None,
    logits: Tensor,  # written
    windows: Sequence[int],
    num_heads: int,
    scale: float,
    epsilon: float,
) -> None:
    """One forward pass in float32. Rows that int8 weights multiply are rounded likewise.

    So are keys and values for int8 caches, one scale for each token and head.
    """
    num_kv_heads, head_dim = key_cache.shape[-2:]
    num_rows, hidden_size = len(input_ids), norms.shape[1]

    def multiply(rows: Tensor, panels: Tensor, scales: Tensor | None, layer: int) -> Tensor:
        weight = PackedWeight(panels, scales).unpack(layer)
        rows = functional.pad(rows, (0, weight.shape[1] - rows.shape[1]))
        return functional.linear(rows if scales is None else round_rows(rows), weight)

    def normalize(rows: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(rows, weight.shape, weight, epsilon)

    cosines, sines = rotary[positions].unsqueeze(2).unbind(1)  # [num_rows, 1, head_dim / 2]

    def rotate(heads: Tensor) -> Tensor:
        low, high = heads.chunk(2, -1)
        return torch.cat([low * cosines - high * sines, high * cosines + low * sines], -1)

    table = PackedWeight(head, head_scales).unpack(0) if embeddings is None else embeddings.float()
    hidden = table[input_ids]
    for layer, window in enumerate(windows):
        rows = normalize(hidden, norms[2 * layer])
        heads = multiply(rows, qkv, qkv_scales, layer)[
            :, : (num_heads + 2 * num_kv_heads) * head_dim
        ]
        if qkv_bias is not None:
            heads = heads + qkv_bias[layer]
        sizes = [num_heads, num_kv_heads, num_kv_heads]
        queries, keys, values = torch.split(heads.view(num_rows, -1, head_dim), sizes, 1)
        if qk_norms is not None:
            queries, keys = (
                normalize(queries, qk_norms[layer, 0]),
                normalize(keys, qk_norms[layer, 1]),
            )
        caches = key_cache[layer], value_cache[layer]
        keys = rotate(keys)
        if cache_scales is not None:
            keys, key_scales = round_heads(keys)
            values, value_scales = round_heads(values)
            scales = [part.transpose(1, 2)[..., None] for part in cache_scales[layer].unbind(1)]
            store_kv_reference(key_scales, value_scales, scales[0], scales[1], slot_mapping)
        store_kv_reference(keys, values, *caches, slot_mapping)
        if cache_scales is not None:
            caches = caches[0] * scales[0], caches[1] * scales[1]
        attended = torch.empty(num_rows, num_heads, head_dim)
        batch = block_tables, cu_seqlens_q, seq_lens
        paged_attention_reference(
            rotate(queries), *caches, *batch, attended, scale, window, 0.0, None
        )
        out = multiply(attended.flatten(1), attention_out, attention_out_scales, layer)
        hidden = hidden + out[:, :hidden_size]
        rows = normalize(hidden, norms[2 * layer + 1])
        panels = multiply(rows, gate_up, gate_up_scales, layer).view(num_rows, -1, 2, PANEL_OUTPUTS)
        gated = (functional.silu(panels[:, :, 0]) * panels[:, :, 1]).flatten(1)
        num_inputs = down.shape[2] * down.shape[4]
        hidden = hidden + multiply(gated[:, :num_inputs], down, down_scales, layer)[:, :hidden_size]
    rows = normalize(hidden[logits_rows[: len(logits)]], norms[-1])
    logits.copy_(multiply(rows, head, head_scales, 0)[:, : logits.shape[1]])


def round_heads(heads: Tensor) -> tuple[Tensor, Tensor]:
    """[num_rows, num_heads, head_dim] → whole numbers up to 127, and the scale of each head."""
    largest = heads.abs().amax(-1, keepdim=True)
    return (heads * (127 / largest.clamp(min=1e-30))).round(), largest / 127
