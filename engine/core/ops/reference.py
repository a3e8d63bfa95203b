"""The ops of csrc in torch, written to be read and to be right: their specification.

They run on any device and dtype, and take arguments one by one as csrc/cpu/registration.cpp
declares them. Shapes of the cache are in library.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops.packing import round_rows, unpack

# As `penalize_reference` below.
Penalize = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]


def store_kv_reference(
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,  # [num_tokens, num_kv_heads, value_head_dim]
    key_cache: Tensor,  # written
    value_cache: Tensor,  # written
    slot_mapping: Tensor,  # [num_tokens] int64: block * block_size + offset, negative is skipped
) -> None:
    """Write each token's key and value to its slot."""
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = key_cache.shape[1]
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, offsets] = key[kept].to(key_cache.dtype)
    value_cache[blocks, offsets] = value[kept].to(value_cache.dtype)


def paged_attention_reference(
    query: Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,  # [num_seqs, max_blocks] int32
    cu_seqlens_q: Tensor,  # [num_seqs + 1] int32
    seq_lens: Tensor,  # [num_seqs] int32
    out: Tensor,  # [num_tokens, num_heads, value_head_dim], written
    scale: float,
    sliding_window: int,  # a query sees itself and the sliding_window - 1 tokens before, 0 = all
    softcap: float,  # scores become softcap * tanh(scores / softcap), 0 = off
    sinks: Tensor
    | None,  # [num_heads]: one more score per head that takes weight and gives nothing
) -> None:
    """Causal attention of the last tokens of each sequence over its blocks, in float32.

    The queries of sequence i are its last `cu_seqlens_q[i + 1] - cu_seqlens_q[i]` tokens of
    `seq_lens[i]`. Query head h reads key-value head `h // (num_heads / num_kv_heads)`.
    """
    block_size, num_kv_heads = key_cache.shape[1], key_cache.shape[2]
    group = query.shape[1] // num_kv_heads
    bounds, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    for row, length in enumerate(lengths):
        begin, end = bounds[row], bounds[row + 1]
        num_blocks = -(-length // block_size)
        blocks = block_tables[row, :num_blocks].long()
        keys = key_cache[blocks].flatten(0, 1)[:length].float()  # [length, kv_heads, head_dim]
        values = value_cache[blocks].flatten(0, 1)[:length].float()
        queries = query[begin:end].float().view(end - begin, num_kv_heads, group, -1)
        scores = torch.einsum("tkgd,skd->kgts", queries, keys) * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        query_places = torch.arange(length - (end - begin), length, device=query.device)[:, None]
        key_places = torch.arange(length, device=query.device)
        visible = key_places <= query_places
        if sliding_window:
            visible &= key_places > query_places - sliding_window
        scores = scores.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            column = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, end - begin, 1)
            weights = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        result = torch.einsum("kgts,skd->tkgd", weights, values)
        out[begin:end] = result.flatten(1, 2).to(out.dtype)


def linear_reference(
    rows: Tensor,  # [num_rows, num_inputs]
    panels: Tensor,  # [num_panels, num_inputs / n, 16, n], as packing.py makes them
    scales: Tensor | None,  # of one layer, as packing.py has them
    bias: Tensor | None,  # [num_outputs]
    out: Tensor,  # [num_rows, num_outputs], written
) -> None:
    """A linear layer. The built op gives a row the same bits however many rows there are.

    With weights of whole numbers rows are rounded, too, to 8 bits with a scale for 128 inputs.
    """
    rows = rows if scales is None else round_rows(rows)
    out.copy_(functional.linear(rows, unpack(panels, scales)[: out.shape[1]], bias))


def penalize_reference(
    logits: Tensor,  # [num_rows, vocab] float32, written
    rows: Tensor,  # [n] int64: those with penalties, ascending
    offsets: Tensor,  # [n + 1] int64: rows[i] has the ids from offsets[i] to offsets[i + 1]
    ids: Tensor,  # [num_ids] int64: tokens that were seen, in a row each once
    counts: Tensor,  # [num_ids] float32: how often in the answer; 0 = in the prompt alone
    repetition: Tensor,  # [n] float64: divides positive logits of all ids, multiplies others
    frequency: Tensor,  # [n] float64: taken off for each time in the answer
    presence: Tensor,  # [n] float64: taken off for being in the answer
) -> None:
    """Change the logits of the tokens that were seen. All is float32, rounded at each step."""
    bounds, factors = offsets.tolist(), repetition.tolist()
    each_time, once = frequency.tolist(), presence.tolist()
    for place, row in enumerate(rows.tolist()):
        own = slice(bounds[place], bounds[place + 1])
        values = logits[row, ids[own]]
        values = torch.where(values > 0, values / factors[place], values * factors[place])
        values -= each_time[place] * counts[own]
        values -= once[place] * (counts[own] > 0)
        logits[row, ids[own]] = values
