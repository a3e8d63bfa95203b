"""Ways to compute attention over the KV cache, all with the same interface.

A backend is asked once for each layer and step. It gets the whole batch, chunks of prompts and
single tokens together, and blocks of `page_size` tokens. engine/core/attention/choice.py chooses
one for a model, once.

    key_cache    [num_blocks, page_size, num_kv_heads, head_dim]
    value_cache  [num_blocks, page_size, num_kv_heads, value_head_dim]
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from engine.core.attention.scores import Scores
from engine.core.ops.library import Ops
from engine.core.tensors.batch import Batch

UNIT_TOKENS = 16  # the smallest page

Function = Callable[..., Any]  # of a library that need not be installed
T = TypeVar("T")


class AttentionBackend(Protocol):
    """What the layers of a model call."""

    name: str  # in the log and in /metrics
    page_size: int  # tokens of a block of the cache
    # Whether there must be numbers after the sequence, too, in the last of its pages.
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
        """As `paged_attention_reference` of engine/core/ops/library.py."""


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


class OfStep(Generic[T]):
    """Something that all layers of a step need: made for the first, kept for the others."""

    def __init__(self, make: Callable[[Batch], T]) -> None:
        self._make = make
        self._last: tuple[Batch, T] | None = None

    def of(self, batch: Batch) -> T:
        if self._last is None or batch is not self._last[0]:
            self._last = batch, self._make(batch)
        return self._last[1]


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
        # A single query sees all keys anyway. Where nothing bounds what it sees, torch multiplies
        # heads that share keys together.
        right = -1 if batch.max_query_len == 1 and not window else 0
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
            window_size=(window - 1 if window else -1, right),
            enable_gqa=True,
            seqused_k=batch.seq_lens,
            block_table=batch.block_tables,
            num_splits=self._num_splits,
        )


def _bounds_of_keys(batch: Batch) -> Tensor:  # [num_seqs + 1] int32
    bounds = torch.zeros_like(batch.cu_seqlens_q)
    torch.cumsum(batch.seq_lens, 0, dtype=torch.int32, out=bounds[1:])
    return bounds
