"""The built ops against their torch references: awkward sizes, dtypes, strides, then opcheck."""

import pytest
import torch
from torch import Tensor

from engine.core.ops import library as ops
from engine.core.ops.numbers import Numbers
from engine.core.ops.packing import PARTS, PackedWeight
from engine.core.tensors.kv_cache import allocate_cache
from tests.engine.helpers.published.floats import floats_of
from tests.helpers.built_kernels import needs_kernels

BLOCK_SIZE = 16
NUM_BLOCKS = 160
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}

pytestmark = needs_kernels

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
BATCHES = {  # name: (tokens of each sequence, how many of them are queries)
    "one decode": ([1], [1]),
    "decodes and a chunk": ([17, 5, 300], [1, 5, 33]),
    "borders of spans": ([256, 257, 255, 32], [1, 2, 1, 32]),
    "a whole prompt": ([40], [40]),
    "decodes after stretches": ([2049, 30], [1, 1]),  # whose stretches threads share
}
SHAPES = [  # heads, kv heads, key dim, value dim
    (4, 2, 16, 16),
    (8, 8, 64, 64),
    (6, 2, 24, 16),
    (3, 1, 7, 5),
    (32, 1, 33, 17),
    (4, 2, 80, 80),
    (2, 2, 96, 96),
    (6, 2, 128, 128),  # three decodes at once: two that share each value, and one
    (2, 1, 256, 256),
]


class Case:
    """A random cache and batch; blocks are scattered, and unused slots hold NaN."""

    def __init__(
        self,
        lengths: list[int],
        chunks: list[int],
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
    ) -> None:
        torch.manual_seed(0)
        num_heads, num_kv_heads, key_dim, value_dim = shape
        sizes = (NUM_BLOCKS, BLOCK_SIZE, num_kv_heads)
        self.key_cache = allocate_cache(*sizes, key_dim, dtype, is_key=True)
        self.value_cache = allocate_cache(*sizes, value_dim, dtype, is_key=False)
        num_blocks = [-(-length // BLOCK_SIZE) for length in lengths]
        scattered = iter(torch.randperm(NUM_BLOCKS).tolist())
        self.block_tables = torch.zeros((len(lengths), max(num_blocks)), dtype=torch.int32)
        self.key_cache.fill_(torch.nan)
        self.value_cache.fill_(torch.nan)
        for row, length in enumerate(lengths):
            blocks = torch.tensor([next(scattered) for _ in range(num_blocks[row])])
            self.block_tables[row, : num_blocks[row]] = blocks
            places = torch.arange(length)
            used = (blocks[places // BLOCK_SIZE], places % BLOCK_SIZE)
            self.key_cache[used] = torch.randn(length, num_kv_heads, key_dim).to(dtype)
            self.value_cache[used] = torch.randn(length, num_kv_heads, value_dim).to(dtype)
        self.cu_seqlens_q = torch.tensor([0, *chunks]).cumsum(0).int()
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32)
        # heads first in memory, as attention modules give them
        self.query = torch.randn(num_heads, sum(chunks), key_dim).to(dtype).transpose(0, 1)
        self.out_shape = (sum(chunks), num_heads, value_dim)

    def attend(
        self,
        implementation: ops.Ops,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = torch.full(self.out_shape, torch.nan, dtype=self.query.dtype)
        implementation.paged_attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.cu_seqlens_q,
            self.seq_lens,
            out,
            self.query.shape[-1] ** -0.5,
            window,
            softcap,
            sinks,
        )
        return out


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_equals_the_reference(
    batch: str, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    case = Case(*BATCHES[batch], shape, dtype)
    ours, reference = case.attend(ops.choose("cpu")), case.attend(ops.REFERENCE)
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize(("window", "softcap", "has_sinks"), [(6, 0, 0), (270, 5, 0), (17, 0, 1)])
def test_window_softcap_and_sinks_equal_the_reference(
    window: int, softcap: float, has_sinks: int, dtype: torch.dtype
) -> None:
    case = Case([17, 5, 300], [1, 5, 33], (6, 2, 24, 16), dtype)
    sinks = torch.randn(6).to(dtype) if has_sinks else None
    ours = case.attend(ops.choose("cpu"), window, softcap, sinks)
    reference = case.attend(ops.REFERENCE, window, softcap, sinks)
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"), [(0, 0, 0), (0, 5, 1), (40, 0, 0), (1500, 0, 1)]
)
def test_a_token_after_a_long_context_is_the_same_whether_threads_share_it_or_not(
    window: int, softcap: float, has_sinks: int, num_threads: int, dtype: torch.dtype
) -> None:
    """By itself its stretches are shared; after others of its chunk they are one thread's."""
    case = Case([2100], [40], (6, 2, 24, 16), dtype)
    sinks = torch.randn(6).to(dtype) if has_sinks else None
    with_others = case.attend(ops.choose("cpu"), window, softcap, sinks)[-1:]
    case.query, case.out_shape = case.query[-1:], (1, *case.out_shape[1:])
    case.cu_seqlens_q = torch.tensor([0, 1], dtype=torch.int32)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        alone = [case.attend(ops.choose("cpu"), window, softcap, sinks) for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(again, with_others) for again in alone)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"), [(0, 0, 0), (40, 0, 0), (6, 5, 1), (270, 0, 1)]
)
def test_a_token_is_the_same_to_the_last_bit_in_any_batch_and_chunk(
    window: int,
    softcap: float,
    has_sinks: int,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> None:
    """Whole prompts, chunks of them, one token by itself, and each of these in company."""
    case = Case([300, 90], [300, 90], shape, dtype)
    sinks = torch.randn(shape[0]).to(dtype) if has_sinks else None
    whole = case.attend(ops.choose("cpu"), window, softcap, sinks)
    query, tables = case.query, case.block_tables

    def attend(*parts: tuple[int, int, int]) -> Tensor:  # (sequence, first token, last token + 1)
        offsets = [300 * sequence for sequence, _, _ in parts]
        rows = [torch.arange(o + p[1], o + p[2]) for o, p in zip(offsets, parts, strict=True)]
        case.query = query[torch.cat(rows)]
        case.block_tables = tables[[sequence for sequence, _, _ in parts]]
        case.cu_seqlens_q = torch.tensor([0, *map(len, rows)]).cumsum(0).int()
        case.seq_lens = torch.tensor([end for _, _, end in parts], dtype=torch.int32)
        case.out_shape = (len(case.query), *whole.shape[1:])
        return case.attend(ops.choose("cpu"), window, softcap, sinks)

    for begin, end in [(0, 1), (255, 257), (299, 300), (37, 120), (256, 300)]:
        assert torch.equal(attend((0, begin, end)), whole[begin:end])
    mixed = attend((1, 89, 90), (0, 7, 40), (1, 0, 5), (0, 299, 300))
    expected = [whole[389:390], whole[7:40], whole[300:305], whole[299:300]]
    assert torch.equal(mixed, torch.cat(expected))


@DTYPES
def test_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    case = Case([300, 90], [300, 1], (4, 2, 24, 24), dtype)
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = case.attend(ops.choose("cpu"))
        torch.set_num_threads(2)
        assert torch.equal(case.attend(ops.choose("cpu")), alone)
    finally:
        torch.set_num_threads(num_threads)


def test_a_nan_of_one_sequence_stays_with_it() -> None:
    case = Case([20, 33], [1, 1], (4, 2, 24, 24), torch.float32)
    case.key_cache[case.block_tables[0, 1], 0] = torch.nan
    out = case.attend(ops.choose("cpu"))
    assert out[0].isnan().all() and not out[1].isnan().any()


@DTYPES
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("cache", ["key_cache", "value_cache"])
@pytest.mark.parametrize(
    ("chunk", "window", "place"),
    [(300, 0, 20), (300, 0, 270), (300, 20, 20), (300, 20, 250), (5, 0, 297)],
)
def test_what_is_no_number_reaches_only_the_queries_that_see_it(
    chunk: int, window: int, place: int, cache: str, value: float, dtype: torch.dtype
) -> None:
    """Many queries share each key and value; the reference is no help, for it has 0 · NaN too."""
    case = Case([300, 40], [chunk, 40], (4, 2, 24, 24), dtype)
    expected = case.attend(ops.choose("cpu"), window)
    getattr(case, cache)[case.block_tables[0, place // BLOCK_SIZE], place % BLOCK_SIZE] = value
    out = case.attend(ops.choose("cpu"), window)
    places = torch.cat([torch.arange(300 - chunk, 300), torch.full([40], -1)])  # of sequence 0
    sees = (places >= place) & (places < place + (window or 300))
    assert not out[sees].isfinite().any()
    assert torch.equal(out[~sees], expected[~sees])


@DTYPES
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(
    ("length", "chunk", "window"),
    [(1, 1, 0), (1025, 1, 0), (1025, 3, 0), (2049, 1, 100), (2049, 40, 100), (40, 1, 1)],
)
def test_a_query_that_sees_no_number_alone_has_no_result(
    length: int, chunk: int, window: int, has_sinks: bool, dtype: torch.dtype
) -> None:
    """Also where that is all of a stretch: of its first key, after others that are numbers."""
    case = Case([length], [chunk], (4, 2, 24, 24), dtype)
    sinks = torch.randn(4).to(dtype) if has_sinks else None
    place = length - 1
    case.key_cache[case.block_tables[0, place // BLOCK_SIZE], place % BLOCK_SIZE] = torch.nan
    out = case.attend(ops.choose("cpu"), window, 0.0, sinks)
    assert out[-1].isnan().all() and out[:-1].isfinite().all()
    case.query[:] = torch.nan
    assert case.attend(ops.choose("cpu"), window, 0.0, sinks).isnan().all()


@DTYPES
@pytest.mark.parametrize(("num_kv_heads", "key_dim", "value_dim"), [(1, 5, 3), (2, 64, 48)])
def test_store_kv_equals_the_reference_and_skips_padding(
    num_kv_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    key = torch.randn(num_kv_heads, 37, key_dim).to(dtype).transpose(0, 1)
    value = torch.randn(37, num_kv_heads, value_dim).to(dtype)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:37]
    slots[5] = -1
    caches = []
    for implementation in (ops.choose("cpu"), ops.REFERENCE):
        sizes = (NUM_BLOCKS, BLOCK_SIZE, num_kv_heads)
        key_cache = allocate_cache(*sizes, key_dim, dtype, is_key=True)
        value_cache = allocate_cache(*sizes, value_dim, dtype, is_key=False)
        implementation.store_kv(key, value, key_cache, value_cache, slots)
        caches.append((key_cache, value_cache))
    assert torch.equal(caches[0][0], caches[1][0]) and torch.equal(caches[0][1], caches[1][1])
    assert caches[0][0].count_nonzero() <= 36 * num_kv_heads * key_dim


LINEAR_SHAPES = [  # of a format and a weight: outputs, inputs
    *(("float32", *shape) for shape in [(1, 1), (16, 7), (17, 512), (50, 513), (130, 96)]),
    *((format, *shape) for format in ("bfloat16", "int8") for shape in [(17, 512), (50, 1500)]),
    *(("int4", *shape) for shape in [(1, 8), (17, 512), (50, 1512), (130, 96)]),
]
LINEARS = pytest.mark.parametrize(("format", "num_outputs", "num_inputs"), LINEAR_SHAPES)


def random_numbers(
    num_outputs: int, num_inputs: int, bits: int, part_inputs: int, *, has_least: bool
) -> Numbers:
    shape = (num_outputs, -(-num_inputs // part_inputs))
    codes = torch.randint(0, 1 << bits, (num_outputs, num_inputs)).to(torch.uint8)
    scales = torch.rand(shape) / (1 << bits)
    least = torch.randn(shape).half() if has_least else None
    return Numbers(codes, scales.half(), least, bits, part_inputs)


@pytest.mark.parametrize("has_least", [False, True])
@pytest.mark.parametrize("part_inputs", [16, 32])
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 32), (50, 528), (130, 96)])
def test_linear_with_numbers_in_parts_equals_the_reference_for_any_rows(
    num_outputs: int, num_inputs: int, bits: int, part_inputs: int, has_least: bool
) -> None:
    torch.manual_seed(0)
    numbers = random_numbers(num_outputs, num_inputs, bits, part_inputs, has_least=has_least)
    packed = PackedWeight.allocate(
        1, num_outputs, num_inputs, PARTS[bits], part_inputs, has_least=has_least
    )
    packed.fill_numbers(0, numbers)
    assert torch.equal(packed.unpack(0)[:num_outputs], floats_of(numbers))
    assert packed.scales is not None
    weight = packed.panels[0], packed.scales[0]
    rows = torch.randn(29, num_inputs)
    outs = [torch.full((29, num_outputs), torch.nan) for _ in range(2)]
    for which, out in zip((ops.choose("cpu"), ops.REFERENCE), outs, strict=True):
        which.linear(rows, *weight, None, out)
    torch.testing.assert_close(*outs, rtol=0, atol=2e-5 * num_inputs**0.5)
    for count in (1, 2, 5, 12, 13):
        some = torch.empty(count, num_outputs)
        ops.choose("cpu").linear(rows[:count], *weight, None, some)
        assert torch.equal(some, outs[0][:count])


def linear(
    rows: Tensor, weight: Tensor, bias: Tensor | None, which: ops.Ops, format: str = "float32"
) -> Tensor:
    packed = PackedWeight.allocate(1, len(weight), weight.shape[1], format)
    packed.fill(0, weight)
    scales = None if packed.scales is None else packed.scales[0]
    out = torch.full((len(rows), len(weight)), torch.nan)
    which.linear(rows, packed.panels[0], scales, bias, out)
    return out


@pytest.mark.parametrize("has_bias", [False, True])
@LINEARS
def test_linear_equals_the_reference(
    format: str, num_outputs: int, num_inputs: int, has_bias: bool
) -> None:
    """Rows are rounded to bfloat16 where that is multiplied, which the reference does not do."""
    torch.manual_seed(0)
    weight, rows = torch.randn(num_outputs, num_inputs), torch.randn(29, num_inputs)
    bias = torch.randn(num_outputs) if has_bias else None
    reference = linear(rows, weight, bias, ops.REFERENCE, format)
    ours = linear(rows, weight, bias, ops.choose("cpu"), format)
    if format == "float32":
        exact = rows.double() @ weight.double().T + (0 if bias is None else bias)
        torch.testing.assert_close(reference.double(), exact, rtol=0, atol=2e-6 * num_inputs**0.5)
    step = {"float32": 4e-6, "bfloat16": 2e-2, "int8": 2e-5, "int4": 2e-5}[format]
    torch.testing.assert_close(ours, reference, rtol=0, atol=step * num_inputs**0.5)


@pytest.mark.parametrize("num_threads", [1, 2])
@LINEARS
def test_a_row_of_linear_is_the_same_to_the_last_bit_among_any_others(
    format: str, num_outputs: int, num_inputs: int, num_threads: int
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(num_outputs, num_inputs), torch.randn(num_outputs)
    rows = torch.randn(600, num_inputs)
    whole = linear(rows, weight, bias, ops.choose("cpu"), format)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for count in (0, *range(1, 20), 33, 100):
            part = linear(rows[count : 2 * count], weight, bias, ops.choose("cpu"), format)
            assert torch.equal(part, whole[count : 2 * count]), count
    finally:
        torch.set_num_threads(before)


def test_linear_reads_rows_that_lie_apart_and_refuses_what_does_not_fit() -> None:
    weight, wide = torch.randn(20, 8), torch.randn(5, 30)
    ours = linear(wide[:, 10:18], weight, None, ops.choose("cpu"))
    assert torch.equal(ours, linear(wide[:, 10:18].clone(), weight, None, ops.choose("cpu")))
    with pytest.raises(RuntimeError, match="differ in sizes"):
        linear(wide, weight, None, ops.choose("cpu"))
    with pytest.raises(RuntimeError, match="rows and out are float32"):
        linear(wide[:, :8].double(), weight, None, ops.choose("cpu"))
    with pytest.raises(RuntimeError, match="bias is one float32 per output"):
        linear(wide[:, :8], weight, torch.zeros(3), ops.choose("cpu"))
    packed = PackedWeight.allocate(1, 20, 8, "int4")
    assert packed.scales is not None
    with pytest.raises(RuntimeError, match="or 24 int32 for those of 16"):
        args = (torch.randn(3, 8), packed.panels[0], packed.scales[0, :, :, 1:], None)
        ops.choose("cpu").linear(*args, torch.empty(3, 20))


def test_wrong_arguments_are_named() -> None:
    case = Case([20], [1], (4, 2, 24, 24), torch.float32)
    case.seq_lens = torch.tensor([400], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="sequence 0 has 1 queries, 400 tokens and 2 blocks"):
        case.attend(ops.choose("cpu"))
    case.query = case.query.double()
    with pytest.raises(RuntimeError, match="queries and out are float32 as the cache, got float64"):
        case.attend(ops.choose("cpu"))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("block_tables", torch.zeros(1, 2), "are contiguous int32"),
        ("cu_seqlens_q", torch.tensor([0, 1, 1], dtype=torch.int32), "differ in sequences"),
        ("cu_seqlens_q", torch.tensor([-1, 1], dtype=torch.int32), "begins at -1, not 0"),
        ("cu_seqlens_q", torch.tensor([0, 2], dtype=torch.int32), "ends at 2 of 1 tokens"),
        ("seq_lens", torch.tensor([20]), "are contiguous int32"),
    ],
    ids=str,
)
def test_sequences_that_do_not_fit_are_refused(name: str, value: Tensor, problem: str) -> None:
    case = Case([20], [1], (4, 2, 24, 24), torch.float32)
    setattr(case, name, value)
    with pytest.raises(RuntimeError, match=problem):
        case.attend(ops.choose("cpu"))


@DTYPES
def test_schemas_and_fake_kernels_pass_opcheck(dtype: torch.dtype) -> None:
    case = Case([20, 33], [2, 1], (4, 2, 24, 16), dtype)
    key = torch.randn(3, 2, 24).to(dtype)
    caches = (case.key_cache, case.value_cache)
    slots = torch.tensor([3, 40, -1])
    torch.library.opcheck(torch.ops.parley.store_kv.default, (key, key[..., :16], *caches, slots))
    indices = (case.block_tables, case.cu_seqlens_q, case.seq_lens)
    out = torch.empty(case.out_shape, dtype=dtype)
    for sinks in (None, torch.randn(4).to(dtype)):
        args = (case.query, *caches, *indices, out, 0.2, 0, 0.0, sinks)
        torch.library.opcheck(torch.ops.parley.paged_attention.default, args)
    for format in ("float32", "int8", "int4"):
        weight = PackedWeight.allocate(1, 20, 8, format)
        scales = None if weight.scales is None else weight.scales[0]
        tensors = (torch.randn(3, 8), weight.panels[0], scales, torch.randn(20), torch.empty(3, 20))
        torch.library.opcheck(torch.ops.parley.linear.default, tensors)
