"""The CUDA kernels that read and write the KV cache, emulated, against their references."""

import pytest
import torch
from torch import Tensor

from engine.core.ops.reference import paged_attention_reference, store_kv_reference
from engine.core.ops.row_reference import decode_attention_reference
from tests.helpers.cuda_kernels import needs_cuda_kernels

pytestmark = needs_cuda_kernels

NUM_BLOCKS = 40
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
HALVES = [torch.bfloat16, torch.float16]


class Case:
    """A random cache and batch; blocks are scattered, and unused slots hold NaN."""

    def __init__(
        self,
        lengths: list[int],
        chunks: list[int],
        shape: tuple[int, int, int, int],  # heads, key-value heads, their widths
        dtype: torch.dtype,
        block_size: int = 16,
    ) -> None:
        generator = torch.Generator().manual_seed(sum(lengths))
        num_heads, num_kv_heads, key_dim, value_dim = shape

        def random(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator).to(dtype)

        num_blocks = [-(-length // block_size) for length in lengths]
        total = sum(num_blocks) + 3
        scattered = iter(torch.randperm(total, generator=generator).tolist())
        sizes = (total, block_size, num_kv_heads)
        self.key_cache = torch.full((*sizes, key_dim), torch.nan, dtype=dtype)
        self.value_cache = torch.full((*sizes, value_dim), torch.nan, dtype=dtype)
        self.block_tables = torch.zeros((len(lengths), max(num_blocks)), dtype=torch.int32)
        for row, length in enumerate(lengths):
            blocks = torch.tensor([next(scattered) for _ in range(num_blocks[row])]).long()
            self.block_tables[row, : num_blocks[row]] = blocks
            places = torch.arange(length)
            used = (blocks[places // block_size], places % block_size)
            self.key_cache[used] = random(length, num_kv_heads, key_dim)
            self.value_cache[used] = random(length, num_kv_heads, value_dim)
        self.cu_seqlens_q = torch.tensor([0, *chunks]).cumsum(0).int()
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32)
        self.query = random(sum(chunks), num_heads, key_dim)
        self.sinks = random(num_heads)
        self.out_shape = (sum(chunks), num_heads, value_dim)

    def attend(self, window: int, softcap: float, has_sinks: bool, *, is_reference: bool) -> Tensor:
        out = torch.full(self.out_shape, torch.nan, dtype=self.query.dtype)
        op = paged_attention_reference if is_reference else torch.ops.parley_cuda.paged_attention
        sinks = self.sinks if has_sinks else None
        indices = (self.block_tables, self.cu_seqlens_q, self.seq_lens)
        tensors = (self.query, self.key_cache, self.value_cache, *indices, out)
        op(*tensors, self.query.shape[-1] ** -0.5, window, softcap, sinks)
        return out

    def decode(
        self,
        window: int = 0,
        softcap: float = 0.0,
        has_sinks: bool = False,
        *,
        room: int = 0,
        is_reference: bool = False,
    ) -> Tensor:
        """`room`: for so many parts of each context."""
        out = torch.full(self.out_shape, torch.nan, dtype=self.query.dtype)
        num_heads, head_dim = self.query.shape[1:]
        partials = torch.full((len(out) * num_heads * room * (head_dim + 2),), torch.nan)
        counters = torch.zeros(len(out) * num_heads, dtype=torch.int32)
        op = decode_attention_reference
        if not is_reference:
            op = torch.ops.parley_cuda.decode_attention
        tensors = (self.query, self.key_cache, self.value_cache, self.block_tables, self.seq_lens)
        sinks = self.sinks if has_sinks else None
        numbers = (head_dim**-0.5, window, softcap, sinks)
        op(*tensors, out, partials, counters, *numbers)
        assert not counters.any()
        return out


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize(
    "shape", [(4, 2, 16, 16), (3, 1, 7, 5), (6, 2, 24, 16), (2, 2, 80, 96)], ids=str
)
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"), [(0, 0.0, False), (6, 0.0, False), (40, 5.0, True)]
)
def test_any_batch_is_attended_as_the_reference_does(
    window: int,
    softcap: float,
    has_sinks: bool,
    shape: tuple[int, int, int, int],
    block_size: int,
    dtype: torch.dtype,
) -> None:
    case = Case([17, 5, 80, 33], [1, 5, 7, 33], shape, dtype, block_size)
    ours = case.attend(window, softcap, has_sinks, is_reference=False)
    reference = case.attend(window, softcap, has_sinks, is_reference=True)
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("heads", [(2, 2), (8, 2), (8, 1), (12, 1), (17, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_single_queries_are_attended_as_the_reference_does(
    head_dim: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    case = Case([1, 16, 17, 100, 257], [1] * 5, (*heads, head_dim, head_dim), dtype)
    ours, reference = case.decode(), case.decode(is_reference=True)
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("room", [0, 1, 3, 64])
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"),
    [(0, 0.0, False), (0, 5.0, True), (40, 0.0, True), (300, 0.0, False), (1, 0.0, False)],
)
def test_a_context_may_be_split(
    window: int, softcap: float, has_sinks: bool, room: int, block_size: int
) -> None:
    case = Case([1, 700, 15, 1300], [1] * 4, (6, 2, 64, 64), torch.bfloat16, block_size)
    ours = case.decode(window, softcap, has_sinks, room=room)
    reference = case.decode(window, softcap, has_sinks, is_reference=True)
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE[torch.bfloat16])


def test_a_row_of_padding_becomes_zeros() -> None:
    case = Case([40, 300], [1, 1], (4, 2, 64, 64), torch.bfloat16)
    expected = case.decode(room=4)
    case.seq_lens[0] = 0
    for has_sinks in (False, True):
        out = case.decode(has_sinks=has_sinks, room=4)
        assert not out[0].any() and out[1].any()
    assert torch.equal(case.decode(room=4)[1], expected[1])


def test_a_nan_of_one_sequence_stays_with_it() -> None:
    case = Case([20, 33], [1, 1], (4, 2, 64, 64), torch.bfloat16)
    case.key_cache[case.block_tables[0, 1], 0] = torch.nan
    for out in (case.decode(), case.attend(0, 0.0, False, is_reference=False)):
        assert out[0].isnan().all() and not out[1].isnan().any()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_kv_heads", "key_dim", "value_dim"), [(1, 5, 3), (2, 64, 48)])
def test_store_kv_equals_the_reference_and_skips_padding(
    num_kv_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    key = torch.randn(num_kv_heads, 37, key_dim).to(dtype).transpose(0, 1)
    value = torch.randn(37, num_kv_heads, value_dim).to(dtype)
    slots = torch.randperm(NUM_BLOCKS * 16)[:37]
    slots[5] = -1
    caches = []
    for store in (torch.ops.parley_cuda.store_kv, store_kv_reference):
        sizes = (NUM_BLOCKS, 16, num_kv_heads)
        cache = (
            torch.zeros((*sizes, key_dim)).to(dtype),
            torch.zeros((*sizes, value_dim)).to(dtype),
        )
        store(key, value, *cache, slots)
        caches.append(cache)
    assert torch.equal(caches[0][0], caches[1][0]) and torch.equal(caches[0][1], caches[1][1])


@pytest.mark.parametrize(
    ("head_dim", "block_size", "can"),
    [(64, 16, True), (256, 256, True), (96, 16, False), (128, 8, False), (128, 48, False)],
)
def test_which_heads_and_blocks_the_fast_kernel_takes(
    head_dim: int, block_size: int, can: bool
) -> None:
    assert torch.ops.parley_cuda.can_decode(head_dim, block_size) == can


def test_what_does_not_fit_is_refused() -> None:
    case = Case([20], [1], (4, 2, 96, 96), torch.bfloat16)
    with pytest.raises(RuntimeError, match="heads are 64, 128 or 256 wide"):
        case.decode()
    case = Case([20], [1], (4, 2, 64, 64), torch.float32)
    with pytest.raises(RuntimeError, match="bfloat16 or float16"):
        case.decode()
    case.query = case.query.double()
    with pytest.raises(RuntimeError, match="caches have the type of what is stored"):
        case.attend(0, 0.0, False, is_reference=False)
    case = Case([20], [1], (4, 2, 64, 64), torch.bfloat16)
    case.seq_lens = case.seq_lens.long()
    with pytest.raises(RuntimeError, match="seq_lens must be 1 numbers of its type"):
        case.decode()


def test_schemas_pass_opcheck() -> None:
    case = Case([20, 33], [2, 1], (4, 2, 24, 16), torch.bfloat16)
    library = torch.ops.parley_cuda
    key = torch.randn(3, 2, 24).bfloat16()
    caches = (case.key_cache.nan_to_num(), case.value_cache.nan_to_num())
    slots = torch.tensor([3, 40, -1])
    torch.library.opcheck(library.store_kv.default, (key, key[..., :16], *caches, slots))
    indices = (case.block_tables, case.cu_seqlens_q, case.seq_lens)
    args = (
        case.query,
        *caches,
        *indices,
        torch.zeros(case.out_shape).bfloat16(),
        0.2,
        0,
        0.0,
        None,
    )
    torch.library.opcheck(library.paged_attention.default, args)
    case = Case([20, 33], [1, 1], (4, 2, 64, 64), torch.bfloat16)
    caches = (case.key_cache.nan_to_num(), case.value_cache.nan_to_num())
    tensors = (case.query, *caches, case.block_tables, case.seq_lens, torch.zeros_like(case.query))
    work = (torch.zeros(8), torch.zeros(8, dtype=torch.int32))
    torch.library.opcheck(library.decode_attention.default, (*tensors, *work, 0.2, 0, 0.0, None))
