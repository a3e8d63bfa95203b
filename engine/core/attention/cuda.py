"""Attention by csrc/cuda: single queries by a kernel of their own, chunks of prompts otherwise.

Libraries are made for many queries of a sequence. Where a sequence has but one, most of what they
multiply is padding, and some of them give a long context to a single processor. `decode_attention`
is made for it: queries that share keys are multiplied together, and long contexts are split.
"""

from typing import Any

import torch
from torch import Tensor

from engine.core.attention.backends import UNIT_TOKENS, AttentionBackend, OfStep
from engine.core.attention.prompts import attend_prompts, can_attend, key_places, prepare
from engine.core.attention.scores import Scores
from engine.core.tensors.batch import Batch


class CudaAttention:
    """Single queries by `decode_attention`, what follows them in the batch by `others`.

    The scheduler puts single queries first. `library` is `torch.ops.parley_cuda`.
    """

    def __init__(
        self, library: Any, max_num_seqs: int, others: AttentionBackend, max_splits: int = 16
    ) -> None:
        self.name = "cuda" if isinstance(others, CudaPrompts) else f"cuda, prompts {others.name}"
        self.page_size = others.page_size
        self.reads_whole_pages = others.reads_whole_pages
        self._library = library
        self._max_num_seqs = max_num_seqs
        self._others = others
        self._max_splits = max_splits
        self._work: tuple[Tensor, Tensor] | None = None
        self._rest = OfStep(Batch.without_single)

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
        if num_single < len(batch.lens):
            rest = self._rest.of(batch) if num_single else batch
            self._others.attend(query[num_single:], *caches, rest, out[num_single:], scores)

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


class CudaPrompts:
    """Needs no library: torch's own attention where it can, else a kernel that is right everywhere.

    That one is slow (engine/core/attention/prompts.py says when it is not needed).
    """

    name = "cuda"
    page_size = UNIT_TOKENS
    reads_whole_pages = False

    def __init__(self, library: Any) -> None:
        self._library = library
        self._places = OfStep(lambda batch: key_places(batch, self.page_size))
        prepare()

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
        if can_attend(query, *caches, batch, scores):
            attend_prompts(query, *caches, batch, self._places.of(batch), out, scores)
            return
        indices = (batch.block_tables, batch.cu_seqlens_q, batch.seq_lens)
        self._library.paged_attention(query, *caches, *indices, out, *scores)
