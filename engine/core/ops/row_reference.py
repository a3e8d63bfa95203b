"""Torch references of what csrc/cuda computes besides the ops of engine/core/ops/library.py.

Rows are of one type of numbers, mostly bfloat16; all arithmetic is float32, and what transformers
rounds on the way is rounded here and there as well.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops.reference import paged_attention_reference, store_kv_reference


def add_rms_norm_reference(
    hidden: Tensor,  # [num_rows, width], written: `delta` is added
    delta: Tensor | None,  # [num_rows, width]
    weight: Tensor,  # [width]
    out: Tensor,  # [num_rows, width], written
    epsilon: float,
) -> None:
    """`out` becomes the norm of what `hidden` becomes (Zhang and Sennrich 2019)."""
    if delta is not None:
        hidden += delta
    rows = hidden.float()
    normalized = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon)
    out.copy_(normalized.to(out.dtype) * weight)


def rotate_and_store_reference(
    qkv: Tensor,  # [num_rows, (num_heads + 2 * num_kv_heads) * head_dim], queries are written
    qk_norms: Tensor | None,  # [2, head_dim]: of queries and keys, before they are rotated
    rotary: Tensor,  # [positions, 2, head_dim / 2] float32: cosines and sines
    positions: Tensor,  # [num_rows] int64
    slot_mapping: Tensor,  # [num_rows] int64, negative is not stored
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim], written
    value_cache: Tensor,  # likewise
    num_heads: int,
    epsilon: float,
) -> None:
    """Queries are rotated where they lie; keys are rotated on their way into the cache."""
    num_kv_heads, head_dim = key_cache.shape[2:]
    heads = qkv.view(len(qkv), -1, head_dim)
    queries, keys, values = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], 1)
    if qk_norms is not None:
        normalized = [torch.empty_like(part) for part in (queries, keys)]
        for part, norm, out in zip((queries, keys), qk_norms, normalized, strict=True):
            add_rms_norm_reference(part.clone(), None, norm, out, epsilon)
        rotated = normalized
    else:
        rotated = [queries, keys]
    cosines, sines = rotary[positions].unsqueeze(2).unbind(1)  # [num_rows, 1, head_dim / 2]

    def rotate(part: Tensor) -> Tensor:
        low, high = part.float().chunk(2, -1)
        return torch.cat([low * cosines - high * sines, high * cosines + low * sines], -1)

    store_kv_reference(rotate(rotated[1]), values, key_cache, value_cache, slot_mapping)
    queries.copy_(rotate(rotated[0]))


def silu_and_mul_reference(
    gate_up: Tensor,  # [num_rows, 2 * width]
    out: Tensor,  # [num_rows, width], written
) -> None:
    """silu(gate) * up (Shazeer 2020)."""
    gate, up = gate_up.chunk(2, -1)
    out.copy_(functional.silu(gate) * up)


def decode_attention_reference(
    query: Tensor,  # [num_seqs, num_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_tables: Tensor,  # [num_seqs, max_blocks] int32
    seq_lens: Tensor,  # [num_seqs] int32; 0: the row becomes zeros
    out: Tensor,  # [num_seqs, num_heads, head_dim], written
    partials: Tensor,  # float32: room for the parts of split contexts; not used here
    counters: Tensor,  # int32 zeros; likewise
    scale: float,
    sliding_window: int,
    softcap: float,
    sinks: Tensor | None,
) -> None:
    """`paged_attention` of one query for each sequence."""
    rows = seq_lens.nonzero().squeeze(1)
    bounds = torch.arange(len(rows) + 1, dtype=torch.int32, device=query.device)
    attended = torch.empty_like(out[rows])
    paged_attention_reference(
        query[rows],
        key_cache,
        value_cache,
        block_tables[rows],
        bounds,
        seq_lens[rows],
        attended,
        scale,
        sliding_window,
        softcap,
        sinks,
    )
    out.zero_()
    out[rows] = attended
