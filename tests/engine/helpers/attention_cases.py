"""Batches for attention over pages, and libraries that are played as their documents say."""

import torch
from torch import Tensor

from engine.core.attention.backends import AttentionBackend
from engine.core.attention.scores import Scores
from engine.core.ops.reference import paged_attention_reference
from engine.core.tensors.batch import Batch

HEAD_DIM = 64
SCALE = HEAD_DIM**-0.5
LENS = ((1, 300), (1, 5), (7, 80), (33, 33))  # single queries, then chunks of prompts
Bounds = tuple[int | None, int | None]


def attend_with_pages(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    bounds: Tensor,
    seq_lens: Tensor,
    scale: float,
    window_size: Bounds,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """What a library computes: causal, with `window_size` tokens to the left, -1 or None = all."""
    left, right = window_size
    assert right in (0, -1, None)
    window = 0 if left in (-1, None) else left + 1
    out = torch.empty_like(query)
    paged_attention_reference(
        query, keys, values, tables, bounds, seq_lens, out, scale, window, softcap, sinks
    )
    return out


def flash_2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: Bounds,
    softcap: float,
    block_table: Tensor,
) -> Tensor:
    assert k.shape[1] % 256 == 0 and causal and k.stride(-1) == 1
    assert cu_seqlens_k.dtype == cu_seqlens_q.dtype == torch.int32
    lengths = cu_seqlens_k.diff()
    assert max_seqlen_k == lengths.max() and max_seqlen_q == cu_seqlens_q.diff().max()
    numbers = (softmax_scale, window_size, softcap)
    return attend_with_pages(q, k, v, block_table, cu_seqlens_q, lengths, *numbers)


def flash_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: Tensor,
    page_table: Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: Bounds,
    learnable_sink: Tensor | None,
    softcap: float,
) -> tuple[Tensor, None]:
    assert causal and k.shape[1] == 128 and page_table.dtype == torch.int32
    assert max_seqlen_k == seqused_k.max() and max_seqlen_q == cu_seqlens_q.diff().max()
    numbers = (softmax_scale, window_size, softcap, learnable_sink)
    return attend_with_pages(q, k, v, page_table, cu_seqlens_q, seqused_k, *numbers), None


def varlen(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int | None,
) -> None:
    assert cu_seq_k is None and enable_gqa
    assert window_size[1] == (-1 if max_q == 1 and window_size[0] == -1 else 0)
    assert max_k == seqused_k.max() and max_q == cu_seq_q.diff().max()
    pages = (query, key, value, block_table, cu_seq_q, seqused_k)
    out.copy_(attend_with_pages(*pages, scale, window_size))


class Case:
    """Sequences of so many (queries, keys) over scattered pages; slots of nobody hold NaN."""

    def __init__(
        self,
        page_size: int,
        dtype: torch.dtype = torch.float32,
        lens: tuple[tuple[int, int], ...] = LENS,
        device: str = "cpu",
    ) -> None:
        generator = torch.Generator().manual_seed(page_size)

        def random(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator).to(dtype)

        num_blocks = [-(-length // page_size) for _, length in lens]
        order = torch.randperm(sum(num_blocks), generator=generator).int()
        tables = torch.zeros(len(lens), max(num_blocks), dtype=torch.int32)
        of_layer = random(len(order), 3, page_size, 2, HEAD_DIM)  # and of something else
        for row, blocks in enumerate(torch.split(order, num_blocks)):
            tables[row, : len(blocks)] = blocks
            num_used = lens[row][1] - (len(blocks) - 1) * page_size
            of_layer[blocks[-1], :2, num_used:] = torch.nan
        of_layer = of_layer.to(device)
        self.caches = (of_layer[:, 0], of_layer[:, 1])  # of keys and values
        self.batch = Batch.of_attention(
            [queries for queries, _ in lens], [keys for _, keys in lens], tables.to(device)
        )
        self.query = random(self.batch.num_tokens, 6, HEAD_DIM).to(device)
        self.sinks = random(6).to(device)

    def attend(
        self,
        backend: AttentionBackend,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """What comes out, [num_tokens, 6, HEAD_DIM]."""
        out = torch.full_like(self.query, torch.nan)
        scores = Scores(SCALE, window, softcap, sinks)
        backend.attend(self.query, *self.caches, self.batch, out, scores)
        return out
