"""Attention by csrc/cuda beside the reference, alone and with others for prompts."""

from typing import Any

import pytest
import torch

from engine.core.attention.backends import FlashAttention4, OpsAttention
from engine.core.attention.cuda import CudaAttention, CudaPrompts
from engine.core.attention.prompts import attend_prompts
from engine.core.ops import library as ops
from tests.engine.helpers.attention_cases import Case, flash_4
from tests.helpers.cuda_kernels import needs_cuda_kernels

pytestmark = needs_cuda_kernels

REFERENCE = OpsAttention(ops.REFERENCE)


def cuda(others: Any = None) -> CudaAttention:
    library = torch.ops.parley_cuda
    return CudaAttention(library, 4, others or CudaPrompts(library))


@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"), [(0, 0.0, False), (40, 0.0, True), (0, 5.0, False)]
)
def test_two_kernels_share_a_batch(
    window: int, softcap: float, has_sinks: bool, dtype: torch.dtype, page_size: int
) -> None:
    """Single queries of halves go to the one, everything else to the other."""
    case, backend = Case(page_size, dtype), cuda()
    scores = (window, softcap, case.sinks if has_sinks else None)
    expected = case.attend(REFERENCE, *scores)
    for _ in range(2):  # the work memory is kept, and may be used again
        ours = case.attend(backend, *scores)
        torch.testing.assert_close(
            ours, expected, rtol=0, atol=2e-2 if dtype.itemsize == 2 else 5e-6
        )


@pytest.mark.parametrize("window", [0, 40])
def test_a_library_reads_the_prompts_alone(window: int) -> None:
    lengths = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        lengths.append(kwargs["cu_seqlens_q"].diff().tolist())
        return flash_4(*args, **kwargs)

    case, backend = Case(128, torch.bfloat16), cuda(FlashAttention4(noting))
    assert backend.page_size == 128 and backend.reads_whole_pages
    ours, expected = (case.attend(it, window) for it in (backend, REFERENCE))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-2)
    assert lengths == [[7, 33]]


def test_what_a_library_needs_of_the_rest_of_a_step_is_made_once() -> None:
    seen = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["cu_seqlens_q"])
        return flash_4(*args, **kwargs)

    case, backend = Case(128, torch.bfloat16), cuda(FlashAttention4(noting))
    for _ in range(2):
        case.attend(backend)
    assert seen[0] is seen[1]


def test_single_queries_alone_leave_nothing_to_others() -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it was asked")

    case = Case(128, torch.bfloat16, lens=((1, 300), (1, 5)))
    ours, expected = (case.attend(it) for it in (cuda(FlashAttention4(fail)), REFERENCE))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-2)


def test_long_chunks_beside_single_queries_are_read_by_torchs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def noting(*args: Any) -> None:
        calls.append(args[3].lens)  # of the batch
        attend_prompts(*args)

    monkeypatch.setattr("engine.core.attention.cuda.attend_prompts", noting)
    monkeypatch.setattr("engine.core.attention.prompts.LEAST_QUERIES", 33)
    case = Case(16, torch.bfloat16)
    ours, expected = (case.attend(it) for it in (cuda(), REFERENCE))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-2)
    assert calls == [[(7, 80), (33, 33)]]


def test_single_queries_of_any_width_are_attended() -> None:
    case = Case(16, torch.bfloat16)
    case.query = case.query[..., :48].contiguous()
    keys, values = case.caches
    case.caches = (keys[..., :48].contiguous(), values[..., :48].contiguous())
    ours, expected = (case.attend(it) for it in (cuda(), REFERENCE))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-2)
