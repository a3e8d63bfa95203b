"""Attention of prompts by torch's `scaled_dot_product_attention`, which knows no blocks.

For each sequence its keys and values are copied out of the cache first: that takes as long as a few
tokens take, and a chunk has hundreds. On a GPU torch then uses its own FlashAttention-2.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.core.attention.scores import Scores
from engine.core.tensors.batch import Batch

LEAST_QUERIES = 64  # of the longest chunk: for fewer, the copies are not worth it
WIDEST_HEAD = 256  # that FlashAttention-2 takes
HALF_TYPES = (torch.bfloat16, torch.float16)


def can_attend(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: Batch, scores: Scores
) -> bool:
    """Whether `attend_prompts` computes what these layers and this step ask for, and soon."""
    has_window = 0 < scores.sliding_window < batch.max_seq_len
    head_dim = key_cache.shape[3]
    return (
        batch.max_query_len >= LEAST_QUERIES
        and query.dtype in HALF_TYPES
        and head_dim == value_cache.shape[3] <= WIDEST_HEAD
        and not (has_window or scores.softcap or scores.sinks is not None)
    )


def prepare() -> None:
    """Import what `attend_prompts` needs, which takes as long as many prompts."""
    # Only the import itself is wanted, so that the first prompt does not pay for it.
    import torch.nn.attention.bias  # noqa: F401  (torch finds it as an attribute later)


def attend_prompts(
    query: Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, page_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    batch: Batch,
    out: Tensor,  # as `query`, written
    scale: float,
) -> None:
    """As `paged_attention_reference` of engine/core/ops/library.py, sequence by sequence."""
    from torch.nn.attention.bias import causal_lower_right  # half a second; `prepare` has paid it

    start = 0
    for row, (num_queries, num_keys) in enumerate(batch.lens):
        blocks = batch.block_tables[row, : -(-num_keys // key_cache.shape[1])]
        keys, values = (
            cache[blocks].flatten(0, 1)[:num_keys].transpose(0, 1)[None]
            for cache in (key_cache, value_cache)
        )  # [1, num_kv_heads, num_keys, head_dim]
        end = start + num_queries
        queries = query[start:end].transpose(0, 1)[None]
        mask = causal_lower_right(num_queries, num_keys)  # the last query sees all keys
        attended = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[start:end] = attended[0].transpose(0, 1)
        start = end
