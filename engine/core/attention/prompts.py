"""Attention of prompts by torch's own kernels, which know no blocks.

The keys and values of all sequences are copied out of the cache first, one after another: that
takes as long as a few tokens take, and a chunk has hundreds. On a GPU one call then attends to all
of them (`torch.nn.attention.varlen`, FlashAttention-2).
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.core.attention.scores import Scores
from engine.core.tensors.batch import Batch

LEAST_QUERIES = 64  # of the longest chunk: for fewer, the copies are not worth it
WIDEST_HEAD = 256  # that FlashAttention-2 takes
HALF_TYPES = (torch.bfloat16, torch.float16)


class KeyPlaces(NamedTuple):
    """Where the keys of a step lie in the cache, sequence by sequence."""

    blocks: Tensor  # [num_keys] int32
    offsets: Tensor  # [num_keys] int64, within the block
    bounds: Tensor  # [num_seqs + 1] int32: where the keys of each sequence begin among these


def key_places(batch: Batch, page_size: int) -> KeyPlaces:
    """The same for all layers of a step. On a GPU nothing waits for it."""
    device, num_keys = batch.seq_lens.device, sum(length for _, length in batch.lens)
    bounds = torch.zeros_like(batch.cu_seqlens_q)
    torch.cumsum(batch.seq_lens, 0, dtype=torch.int32, out=bounds[1:])
    sequences = torch.arange(len(batch.lens), device=device)
    sequences = torch.repeat_interleave(sequences, batch.seq_lens, output_size=num_keys)
    places = torch.arange(num_keys, device=device) - bounds[sequences]
    return KeyPlaces(batch.block_tables[sequences, places // page_size], places % page_size, bounds)


def can_attend(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: Batch, scores: Scores
) -> bool:
    """Whether `attend_prompts` computes what these layers and this step ask for, and soon."""
    head_dim = key_cache.shape[3]
    return (
        batch.max_query_len >= LEAST_QUERIES
        and query.dtype in HALF_TYPES
        and head_dim == value_cache.shape[3] <= WIDEST_HEAD
        and not scores.softcap
        and scores.sinks is None
    )


def prepare() -> None:
    """Import what `attend_prompts` needs, which takes as long as many prompts."""
    # Only the import itself is wanted, so that the first prompt does not pay for it.
    import torch.nn.attention.varlen  # noqa: F401


def attend_prompts(
    query: Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, page_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    batch: Batch,
    places: KeyPlaces,  # of the batch
    out: Tensor,  # as `query`, written
    scores: Scores,
) -> None:
    """As `paged_attention_reference` of engine/core/ops/library.py."""
    keys, values = (cache[places.blocks, places.offsets] for cache in (key_cache, value_cache))
    if query.device.type == "cuda":
        _attend_at_once(query, keys, values, batch, places.bounds, out, scores)
    else:
        _attend_in_turns(query, keys, values, batch, out, scores)


def _attend_at_once(
    query: Tensor,
    keys: Tensor,  # [num_keys, num_kv_heads, head_dim], sequence by sequence
    values: Tensor,
    batch: Batch,
    bounds: Tensor,  # as in `KeyPlaces`
    out: Tensor,
    scores: Scores,
) -> None:
    from torch.nn.attention import varlen

    window, attend = scores.sliding_window, cast(Callable[..., Tensor], varlen.varlen_attn)
    # Until torch 2.11 that there are fewer heads of keys is seen, and cannot be asked for.
    asked = {"enable_gqa": True} if "enable_gqa" in inspect.signature(attend).parameters else {}
    attended = attend(
        query,
        keys,
        values,
        batch.cu_seqlens_q,
        bounds,
        batch.max_query_len,
        batch.max_seq_len,
        scale=scores.scale,
        window_size=(window - 1 if window else -1, 0),  # the last query sees the last key
        **asked,
    )
    out.copy_(attended)


def _attend_in_turns(
    query: Tensor, keys: Tensor, values: Tensor, batch: Batch, out: Tensor, scores: Scores
) -> None:
    """On a CPU, where torch has no kernel for all sequences together."""
    start = first_key = 0
    for num_queries, num_keys in batch.lens:
        own = slice(first_key, first_key + num_keys)
        end = start + num_queries
        distances = torch.arange(num_keys - num_queries, num_keys)[:, None] - torch.arange(num_keys)
        mask = distances >= 0
        if scores.sliding_window:
            mask &= distances < scores.sliding_window
        queries, own_keys, own_values = (
            rows.transpose(0, 1)[None] for rows in (query[start:end], keys[own], values[own])
        )
        attended = scaled_dot_product_attention(
            queries,
            own_keys,
            own_values,
            attn_mask=mask,
            scale=scores.scale,
            enable_gqa=True,
        )
        out[start:end] = attended[0].transpose(0, 1)
        start, first_key = end, first_key + num_keys
