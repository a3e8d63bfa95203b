"""Ways to compute attention over the KV cache, all of which are called alike.

A backend is asked once for each layer and step. It gets the whole batch, chunks of prompts and
single tokens together, and blocks of `page_size` tokens. Which one a model gets is decided once,
by engine/attention_choice.py.

    key_cache    [num_blocks, page_size, num_kv_heads, head_dim]
    value_cache  [num_blocks, page_size, num_kv_heads, value_head_dim]
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.batch import Batch
from engine.ops import REFERENCE, Ops
from engine.prompt_attention import attend_prompts, can_attend
from engine.scores import Scores

UNIT_TOKENS = 16  # the smallest page
PAGE_SIZES = (16, 32, 64, 128, 256)  # that are tried where nobody says which one is right

Function = Callable[..., Any]  # of a library that need not be installed


class AttentionBackend(Protocol):
    """What the layers of a model call."""

    name: str  # in the log and in /metrics
    page_size: int  # tokens of a block of the cache
    # Whether there must be numbers also behind a sequence, in the last of its pages.
    reads_whole_pages: bool

    def attend(
        self,
        query: Tensor,  # [num_tokens, num_heads, head_dim]
        key_cache: Tensor,
        value_cache: Tensor,
        batch: Batch,
        out: Tensor,  # [num_tokens, num_heads, value_head_dim], written
        scores: Scores,
    ) -> None:
        """As `paged_attention_reference` of engine/ops.py."""


class OpsAttention:
    """The op `paged_attention`: of csrc, or the reference."""

    page_size = UNIT_TOKENS
    reads_whole_pages = False

    def __init__(self, ops: Ops) -> None:
        self.name = ops.name
        self._op = ops.paged_attention

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: Batch,
        out: Tensor,
        scores: Scores,
    ) -> None:
        self._op(
            query,
            key_cache,
            value_cache,
            batch.block_tables,
            batch.cu_seqlens_q,
            batch.seq_lens,
            out,
            *scores,
        )


class OfStep:
    """Something that all layers of a step need: made for the first, kept for the others."""

    def __init__(self, make: Callable[[Batch], Tensor]) -> None:
        self._make = make
        self._batch: Batch | None = None
        self._value: Tensor | None = None

    def of(self, batch: Batch) -> Tensor:
        if self._value is None or batch is not self._batch:
            self._batch, self._value = batch, self._make(batch)
        return self._value


class CudaAttention:
    """csrc/cuda: single queries by a kernel of their own, all else by one that is right everywhere.

    That one is slow, so prompts are read by torch's own attention where it can
    (engine/prompt_attention.py). `library` is `torch.ops.parley_cuda`. The scheduler puts single
    queries first.
    """

    name = "cuda"
    page_size = UNIT_TOKENS
    reads_whole_pages = False

    def __init__(self, library: Any, max_num_seqs: int, max_splits: int = 16) -> None:
        self._library = library
        self._max_num_seqs = max_num_seqs
        self._max_splits = max_splits
        self._work: tuple[Tensor, Tensor] | None = None
        self._bounds = OfStep(_bounds_of_others)

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: Batch,
        out: Tensor,
        scores: Scores,
    ) -> None:
        caches = (key_cache, value_cache)
        num_single = batch.num_single if self._is_fast(query, key_cache, value_cache) else 0
        if num_single:
            self._library.decode_attention(
                query[:num_single],
                *caches,
                batch.block_tables[:num_single],
                batch.seq_lens[:num_single],
                out[:num_single],
                *self._work_for(query),
                *scores,
            )
        if num_single == len(batch.seq_lens):
            return
        if can_attend(query, key_cache, value_cache, batch, scores):
            attend_prompts(query, key_cache, value_cache, batch, out, scores.scale, num_single)
        else:
            bounds = self._bounds.of(batch) if num_single else batch.cu_seqlens_q
            self._library.paged_attention(
                query[num_single:],
                *caches,
                batch.block_tables[num_single:],
                bounds,
                batch.seq_lens[num_single:],
                out[num_single:],
                *scores,
            )

    def _is_fast(self, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> bool:
        head_dim = key_cache.shape[3]
        fits: bool = self._library.can_decode(head_dim, key_cache.shape[1])
        return fits and value_cache.shape[3] == head_dim and query.dtype != torch.float32

    def _work_for(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Room for the parts of split contexts, and zeros to count those that are done."""
        num_heads = self._max_num_seqs * query.shape[1]
        num_floats = num_heads * self._max_splits * (query.shape[2] + 2)
        if self._work is None or self._work[0].numel() < num_floats:
            partials = torch.empty(num_floats, dtype=torch.float32, device=query.device)
            counters = torch.zeros(num_heads, dtype=torch.int32, device=query.device)
            self._work = partials, counters
        return self._work


class FlashAttention2:
    """flash-attn 2: `flash_attn.flash_attn_varlen_func` (Dao 2023). Its pages hold 256 tokens."""

    name = "flash_attn 2"
    page_size = 256
    reads_whole_pages = False

    def __init__(self, function: Function) -> None:
        self._function = function
        self._bounds = OfStep(_bounds_of_keys)

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: Batch,
        out: Tensor,
        scores: Scores,
    ) -> None:
        assert scores.sinks is None  # it has none
        window = scores.sliding_window
        result = self._function(
            query,
            key_cache,
            value_cache,
            cu_seqlens_q=batch.cu_seqlens_q,
            cu_seqlens_k=self._bounds.of(batch),
            max_seqlen_q=batch.max_query_len,
            max_seqlen_k=batch.max_seq_len,
            softmax_scale=scores.scale,
            causal=True,  # the last query sees all keys, as chunks need it
            window_size=(window - 1, 0) if window else (-1, -1),
            softcap=scores.softcap,
            block_table=batch.block_tables,
        )
        out.copy_(result)


class FlashAttention4:
    """flash-attn 4: `flash_attn.cute.flash_attn_varlen_func`. Its tiles are pages of 128 tokens."""

    name = "flash_attn 4"
    page_size = 128
    reads_whole_pages = True  # of values that it gives no weight NaN would stay NaN

    def __init__(self, function: Function) -> None:
        self._function = function

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: Batch,
        out: Tensor,
        scores: Scores,
    ) -> None:
        window = scores.sliding_window
        result = self._function(
            query,
            key_cache,
            value_cache,
            cu_seqlens_q=batch.cu_seqlens_q,
            max_seqlen_q=batch.max_query_len,
            max_seqlen_k=batch.max_seq_len,
            seqused_k=batch.seq_lens,
            page_table=batch.block_tables,
            softmax_scale=scores.scale,
            causal=True,
            window_size=(window - 1, 0) if window else (None, None),
            learnable_sink=scores.sinks,
            softcap=scores.softcap,
        )
        out.copy_(result[0] if isinstance(result, tuple) else result)


class VarlenAttention:
    """torch's own: `torch.nn.attention.varlen.varlen_attn_out`, from torch 2.12 on over pages."""

    name = "varlen"
    reads_whole_pages = False

    def __init__(self, function: Function, page_size: int, num_splits: int | None = None) -> None:
        self.page_size = page_size
        self._function = function
        self._num_splits = num_splits  # 1: a row's bits do not depend on the batch

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: Batch,
        out: Tensor,
        scores: Scores,
    ) -> None:
        assert scores.sinks is None and not scores.softcap  # it has neither
        window = scores.sliding_window
        self._function(
            out,
            query,
            key_cache,
            value_cache,
            batch.cu_seqlens_q,
            None,
            batch.max_query_len,
            batch.max_seq_len,
            scale=scores.scale,
            window_size=(window - 1 if window else -1, 0),
            enable_gqa=True,
            seqused_k=batch.seq_lens,
            block_table=batch.block_tables,
            num_splits=self._num_splits,
        )


def find_page_size(
    make: Callable[[int], AttentionBackend],
    dtype: torch.dtype,
    device: torch.device,
    head_dim: int,
    tolerance: float = 5e-2,
) -> int | None:
    """The smallest page with which a backend gives what the reference gives; None if none does.

    Libraries refuse a page size that their kernels do not take, or, worse, do not look at it.
    """
    for page_size in PAGE_SIZES:
        backend = make(page_size)
        generator = torch.Generator().manual_seed(page_size)
        lengths = [2 * page_size + 3, 5]
        sizes = (8, page_size, 1, head_dim)
        keys, values = (torch.randn(sizes, generator=generator).to(device, dtype) for _ in "kv")
        query = torch.randn((4, 2, head_dim), generator=generator).to(device, dtype)
        tables = torch.tensor([[6, 2, 5], [3, 0, 0]], dtype=torch.int32, device=device)
        batch = Batch.of_attention([3, 1], lengths, tables)
        out, expected = torch.zeros_like(query), torch.zeros_like(query)
        scores = Scores(head_dim**-0.5)
        try:
            backend.attend(query, keys, values, batch, out, scores)
        except (RuntimeError, ValueError, TypeError, AssertionError):
            continue
        OpsAttention(REFERENCE).attend(query, keys, values, batch, expected, scores)
        if torch.allclose(out.float(), expected.float(), rtol=0, atol=tolerance):
            return page_size
    return None


def _bounds_of_others(batch: Batch) -> Tensor:  # [num_seqs - num_single + 1] int32
    """`cu_seqlens_q` of the sequences behind those with a single query."""
    return batch.cu_seqlens_q[batch.num_single :] - batch.num_single


def _bounds_of_keys(batch: Batch) -> Tensor:  # [num_seqs + 1] int32
    bounds = torch.zeros_like(batch.cu_seqlens_q)
    torch.cumsum(batch.seq_lens, 0, dtype=torch.int32, out=bounds[1:])
    return bounds
