"""Attention backends give what the reference gives; libraries are played as their documents say."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine import ops
from engine.attention_backends import (
    AttentionBackend,
    CudaAttention,
    FlashAttention2,
    FlashAttention4,
    OpsAttention,
    VarlenAttention,
    find_page_size,
)
from engine.batch import Batch
from engine.prompt_attention import attend_prompts
from engine.scores import Scores
from tests.cuda_kernels import needs_cuda_kernels

HEAD_DIM = 64
CPU = torch.device("cpu")
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
    ops.paged_attention_reference(
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
    assert k.shape[1] % 256 == 0 and causal and k.is_contiguous()
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
    assert cu_seq_k is None and enable_gqa and window_size[1] == 0
    assert max_k == seqused_k.max() and max_q == cu_seq_q.diff().max()
    pages = (query, key, value, block_table, cu_seq_q, seqused_k)
    out.copy_(attend_with_pages(*pages, scale, window_size))


class Case:
    """Two single queries, then chunks of prompts, over scattered blocks of any size."""

    def __init__(self, page_size: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(page_size)
        query_lens, seq_lens = [1, 1, 7, 33], [300, 5, 80, 33]
        num_blocks = [-(-length // page_size) for length in seq_lens]
        total = sum(num_blocks)
        order = torch.randperm(total, generator=generator).int()
        tables = torch.zeros(len(num_blocks), max(num_blocks), dtype=torch.int32)
        for row, blocks in enumerate(torch.split(order, num_blocks)):
            tables[row, : len(blocks)] = blocks
        self.batch = Batch.of_attention(query_lens, seq_lens, tables)

        def random(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator).to(dtype)

        self.caches = tuple(random(total, page_size, 2, HEAD_DIM) for _ in "kv")
        self.query = random(sum(query_lens), 6, HEAD_DIM)
        self.sinks = random(6)

    def attend(self, backend: AttentionBackend, *numbers: Any) -> Tensor:
        keys, values = self.caches
        out = torch.full_like(self.query, torch.nan)
        scores = Scores(HEAD_DIM**-0.5, *numbers)
        backend.attend(self.query, keys, values, self.batch, out, scores)
        return out


REFERENCE = OpsAttention(ops.REFERENCE)
PLAYED: list[AttentionBackend] = [
    FlashAttention2(flash_2),
    FlashAttention4(flash_4),
    VarlenAttention(varlen, 64),
]


@pytest.mark.parametrize("backend", PLAYED, ids=lambda backend: backend.name)
@pytest.mark.parametrize("window", [0, 1, 40])
def test_a_library_is_asked_for_what_the_reference_computes(
    window: int, backend: AttentionBackend
) -> None:
    case = Case(backend.page_size)
    numbers = (window, 0.0, None)
    assert torch.equal(case.attend(backend, *numbers), case.attend(REFERENCE, *numbers))


@pytest.mark.parametrize("backend", PLAYED[:2], ids=lambda backend: backend.name)
def test_flash_attention_caps_scores(backend: AttentionBackend) -> None:
    case = Case(backend.page_size)
    numbers = (0, 5.0, None)
    assert torch.equal(case.attend(backend, *numbers), case.attend(REFERENCE, *numbers))


def test_flash_attention_4_has_sinks() -> None:
    case = Case(128)
    numbers = (40, 0.0, case.sinks)
    backend = FlashAttention4(flash_4)
    assert torch.equal(case.attend(backend, *numbers), case.attend(REFERENCE, *numbers))


def test_what_all_layers_need_is_made_once_a_step() -> None:
    bounds = []

    def noting(*args: Any, **kwargs: Any) -> Tensor:
        bounds.append(kwargs["cu_seqlens_k"])
        return flash_2(*args, **kwargs)

    backend, case = FlashAttention2(noting), Case(256)
    for _ in range(2):
        case.attend(backend, 0, 0.0, None)
    Case(256).attend(backend, 0, 0.0, None)
    assert bounds[0] is bounds[1] and bounds[2] is not bounds[0]


@needs_cuda_kernels
@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"), [(0, 0.0, False), (40, 0.0, True), (0, 5.0, False)]
)
def test_our_own_kernels_share_a_batch(
    window: int, softcap: float, has_sinks: bool, dtype: torch.dtype, page_size: int
) -> None:
    """Single queries of halves go to the one, everything else to the other."""
    case, backend = Case(page_size, dtype), CudaAttention(torch.ops.parley_cuda, max_num_seqs=4)
    numbers = (window, softcap, case.sinks if has_sinks else None)
    expected = case.attend(REFERENCE, *numbers)
    for _ in range(2):  # the work memory is kept, and may be used again
        ours = case.attend(backend, *numbers)
        torch.testing.assert_close(
            ours, expected, rtol=0, atol=2e-2 if dtype.itemsize == 2 else 5e-6
        )


@needs_cuda_kernels
def test_long_chunks_beside_single_queries_are_read_by_torchs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def noting(*args: Any) -> None:
        calls.append(args[-1])  # the first sequence that is not single
        attend_prompts(*args)

    monkeypatch.setattr("engine.attention_backends.attend_prompts", noting)
    monkeypatch.setattr("engine.prompt_attention.LEAST_QUERIES", 33)
    case, backend = Case(16, torch.bfloat16), CudaAttention(torch.ops.parley_cuda, max_num_seqs=4)
    ours, expected = (case.attend(it, 0, 0.0, None) for it in (backend, REFERENCE))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-2)
    assert calls == [2]


@needs_cuda_kernels
def test_single_queries_of_any_width_are_attended() -> None:
    case, backend = Case(16, torch.bfloat16), CudaAttention(torch.ops.parley_cuda, max_num_seqs=4)
    case.query = case.query[..., :48].contiguous()
    case.caches = tuple(cache[..., :48].contiguous() for cache in case.caches)
    ours, expected = (case.attend(it, 0, 0.0, None) for it in (backend, REFERENCE))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-2)


def test_the_smallest_page_is_taken_that_gives_the_right_result() -> None:
    def refusing(out: Tensor, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> None:
        if key.shape[1] < 64:
            raise RuntimeError("page size must be a multiple of 64")
        if key.shape[1] == 64:  # is not looked at
            out.zero_()
            return
        varlen(out, query, key, *args, **kwargs)

    def page_of(function: Any) -> int | None:
        return find_page_size(
            lambda page_size: VarlenAttention(function, page_size), torch.bfloat16, CPU, HEAD_DIM
        )

    assert page_of(varlen) == 16
    assert page_of(refusing) == 128
    assert page_of(lambda out, *args, **kwargs: out.zero_()) is None
