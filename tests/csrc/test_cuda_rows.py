"""The CUDA kernels between matrix products, emulated, against their references."""

import pytest
import torch
from torch import Tensor

from engine.core.ops import row_reference as row_ops
from tests.helpers.cuda_kernels import needs_cuda_kernels

pytestmark = needs_cuda_kernels

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@DTYPES
@pytest.mark.parametrize("has_delta", [False, True])
@pytest.mark.parametrize(("num_rows", "width"), [(0, 8), (1, 8), (3, 64), (5, 1032), (2, 9000)])
def test_rows_are_added_and_normalized(
    num_rows: int, width: int, has_delta: bool, dtype: torch.dtype
) -> None:
    hidden = random(dtype, num_rows, width + 8)[:, :width]  # rows that lie apart
    delta = random(dtype, num_rows, width, seed=1) if has_delta else None
    weight = random(dtype, width, seed=2)
    results = []
    for op in (torch.ops.parley_cuda.add_rms_norm, row_ops.add_rms_norm_reference):
        rows, out = (
            torch.empty(num_rows, width + 8, dtype=dtype)[:, :width],
            torch.empty(num_rows, width, dtype=dtype),
        )
        rows.copy_(hidden)
        op(rows, delta, weight, out, 1e-6)
        results.append((rows, out))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(
        results[0][1], results[1][1], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@DTYPES
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(4, 2, 16), (3, 1, 10), (2, 2, 128), (1, 1, 512)]
)
def test_heads_are_rotated_and_stored(
    num_heads: int, num_kv_heads: int, head_dim: int, has_norms: bool, dtype: torch.dtype
) -> None:
    num_rows, width = 5, (num_heads + 2 * num_kv_heads) * head_dim
    norms = random(dtype, 2, head_dim, seed=1) if has_norms else None
    angles = random(torch.float32, 50, head_dim // 2, seed=2)
    rotary = torch.stack([angles.cos(), angles.sin()], 1)
    positions, slots = torch.tensor([3, 4, 49, 0, 7]), torch.tensor([16, 33, -1, 2, 47])
    results = []
    for op in (torch.ops.parley_cuda.rotate_and_store, row_ops.rotate_and_store_reference):
        qkv = random(dtype, num_rows, width)
        keys, values = torch.zeros(2, 3, 16, num_kv_heads, head_dim, dtype=dtype).unbind()
        op(qkv, norms, rotary, positions, slots, keys, values, num_heads, 1e-6)
        results.append((qkv[:, : num_heads * head_dim], keys, values))
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert results[0][1].count_nonzero() == 4 * num_kv_heads * head_dim


@DTYPES
@pytest.mark.parametrize(("num_rows", "width"), [(0, 8), (1, 8), (3, 2056), (66_000, 8)])
def test_gates_are_applied(num_rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = random(dtype, num_rows, 2 * width) * 4
    ours, reference = torch.empty(2, num_rows, width, dtype=dtype).unbind()
    torch.ops.parley_cuda.silu_and_mul(gate_up, ours)
    row_ops.silu_and_mul_reference(gate_up, reference)
    torch.testing.assert_close(ours, reference, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_what_does_not_fit_is_refused() -> None:
    library = torch.ops.parley_cuda
    rows = torch.zeros(2, 12, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="rows of a multiple of 16 bytes"):
        library.add_rms_norm(rows, None, rows[0].clone(), rows.clone(), 1e-6)
    rows = torch.zeros(2, 16)
    with pytest.raises(RuntimeError, match="weight must begin at a multiple of 16 bytes"):
        library.add_rms_norm(rows, None, torch.zeros(17)[1:], rows.clone(), 1e-6)
    with pytest.raises(RuntimeError, match="gate_up is twice as wide"):
        library.silu_and_mul(torch.zeros(2, 16), torch.zeros(2, 16))
    with pytest.raises(RuntimeError, match="float32, bfloat16 or float16"):
        library.silu_and_mul(torch.zeros(2, 16).double(), torch.zeros(2, 8).double())
    rotary, caches = torch.zeros(9, 2, 4), torch.zeros(2, 1, 16, 1, 8).unbind()
    numbers = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="qkv must hold the heads"):
        library.rotate_and_store(
            torch.zeros(2, 16), None, rotary, numbers, numbers, *caches, 1, 1e-6
        )


def test_schemas_pass_opcheck() -> None:
    library, rows = torch.ops.parley_cuda, random(torch.float32, 3, 16)
    of_norm = (rows, rows.clone(), rows[0].clone(), torch.zeros(3, 16), 1e-6)
    torch.library.opcheck(library.add_rms_norm.default, of_norm)
    torch.library.opcheck(library.silu_and_mul.default, (rows, torch.zeros(3, 8)))
    rotary, caches = torch.zeros(9, 2, 4), torch.zeros(2, 1, 16, 1, 8).unbind()
    places = torch.arange(3)
    qkv = random(torch.float32, 3, 24)
    args = (qkv, torch.ones(2, 8), rotary, places, places, *caches, 1, 1e-6)
    torch.library.opcheck(library.rotate_and_store.default, args)
