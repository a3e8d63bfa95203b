"""Codes, scales and least numbers stand for what the `gguf` package says that the blocks do."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from engine.core.models.gguf import numbers, weights
from engine.core.models.gguf.headers import GgufTensor
from engine.core.models.gguf.numbers import NUMBER_TYPES, read_numbers
from engine.core.models.gguf.weights import Bytes, row_order
from engine.core.ops.numbers import ZEROS as MIDDLES
from engine.core.ops.numbers import Numbers
from engine.errors import UnsupportedModelError
from engine.folder.gguf.types import BLOCK_TYPES
from tests.engine.helpers.published.floats import floats_of

TYPES = {each.name: each for each in BLOCK_TYPES.values()}
ROWS, WIDTH = 14, 512
START = 96
ROUNDED = 2**-11 * (1 + 2**-10)  # of a float16, and of what float32 adds to it
# Where the float16 of a block lie.
HALVES = {
    **{"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)},
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()},
}
EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
# Those whose codes are around one that stands for 0, as it lies there.
ZEROS = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128, "Q3_K": 4, "Q6_K": 32, "IQ4_NL": 128, "IQ4_XS": 128}


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SLAB_NUMBERS", 3 * WIDTH)  # the last one has 2 rows


def random_blocks(kind: str, seed: int, rows: int = ROWS) -> Bytes:
    """Any bytes, but scales of all sizes that weights have, subnormal ones and zeros among them."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    type_ = TYPES[kind]
    blocks = rng.integers(0, 256, (rows * WIDTH // type_.block_size, type_.num_bytes), np.uint8)
    for place in HALVES[kind]:
        exponents = rng.uniform(-26, 0, len(blocks))
        scales = rng.choice([-1, 1], len(blocks)) * np.exp2(exponents)
        blocks[:, place : place + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(104, 139, len(blocks))  # all that float16 holds
    return blocks.reshape(rows, -1)


def store(file: Path, kind: str, blocks: Bytes, num_heads: int = 0) -> GgufTensor:
    file.write_bytes(b"\xa5" * START + blocks.tobytes() + b"\x5a" * 50)
    return GgufTensor(
        file=file,
        dtype=kind,
        shape=(len(blocks), WIDTH),
        num_bytes=blocks.size,
        name="a.weight",
        type=TYPES[kind],
        start=START,
        num_interleaved_heads=num_heads,
    )


def values_of(blocks: Bytes, kind: str) -> torch.Tensor:
    expected = gguf.quants.dequantize(blocks, GGMLQuantizationType[kind])
    return torch.from_numpy(np.array(expected, np.float32)).view(len(blocks), WIDTH)


def check_equal(found: Numbers, blocks: Bytes, kind: str) -> None:
    """Exactly if scales are those of the file, otherwise but for their rounding."""
    has_least = found.least is not None
    assert NUMBER_TYPES[kind] == (found.bits, found.part_inputs, has_least)
    assert has_least != (kind in ZEROS or kind == "MXFP4")
    assert (found.codes.dtype, found.scales.dtype) == (torch.uint8, torch.float16)
    assert found.scales.shape == (len(blocks), WIDTH // found.part_inputs)
    assert int(found.codes.max()) < 2**found.bits
    expected, numbers_ = values_of(blocks, kind), floats_of(found)
    if kind in EXACT:
        assert torch.equal(numbers_, expected)
        return
    bound = ROUNDED * expected.abs()
    if found.least is not None:
        assert (found.least.dtype, found.least.shape) == (torch.float16, found.scales.shape)
        only_least = floats_of(found._replace(codes=torch.zeros_like(found.codes)))
        bound = ROUNDED * ((numbers_ - only_least).abs() + only_least.abs())
    assert torch.all((numbers_ - expected).abs() <= bound)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", sorted(NUMBER_TYPES))
def test_any_blocks_stand_for_the_same_numbers(tmp_path: Path, kind: str, seed: int) -> None:
    blocks = random_blocks(kind, seed)
    check_equal(read_numbers(store(tmp_path / "a.gguf", kind, blocks)), blocks, kind)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_quantized_weights_stand_for_the_same_numbers(tmp_path: Path, kind: str) -> None:
    print("seed 5")
    values = np.random.default_rng(5).standard_normal((ROWS, WIDTH)).astype(np.float32) * 0.03
    values[3:5] = 0
    blocks = gguf.quants.quantize(values, GGMLQuantizationType[kind])
    check_equal(read_numbers(store(tmp_path / "a.gguf", kind, blocks)), blocks, kind)


@pytest.mark.parametrize("kind", sorted(ZEROS))
def test_zero_stays_zero(tmp_path: Path, kind: str) -> None:
    blocks = random_blocks(kind, 11)
    found = read_numbers(store(tmp_path / "a.gguf", kind, blocks))
    is_zero = values_of(blocks, kind) == 0
    assert is_zero.any() or kind.startswith("IQ4")  # whose tables have none
    assert torch.equal(floats_of(found) == 0, is_zero)


def test_codes_are_those_of_the_file_around_the_middle_of_their_bits(tmp_path: Path) -> None:
    """The least and the greatest of each type."""

    def codes_of(kind: str) -> torch.Tensor:
        found = read_numbers(store(tmp_path / kind, kind, random_blocks(kind, 2)))
        moved = 0 if found.least is not None else MIDDLES[found.bits] - ZEROS[kind]
        return found.codes - moved

    for kind, most in {"Q4_0": 15, "Q4_1": 15, "Q5_0": 31, "Q5_1": 31, "Q8_0": 255}.items():
        codes = codes_of(kind)
        assert (int(codes.min()), int(codes.max())) == (0, most)
    for kind, most in {"Q2_K": 3, "Q3_K": 7, "Q4_K": 15, "Q5_K": 31, "Q6_K": 63}.items():
        assert np.unique(codes_of(kind).numpy()).tolist() == list(range(most + 1))
    assert numbers.IQ4 == gguf.quants.IQ4_NL.kvalues
    assert numbers.E2M1 == gguf.quants.MXFP4.kvalues


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_rows_of_interleaved_heads_are_put_in_order(tmp_path: Path, kind: str) -> None:
    blocks = random_blocks(kind, 4, rows=16)
    tensor = store(tmp_path / "a.gguf", kind, blocks, num_heads=2)
    order = row_order(tensor)
    assert order is not None
    check_equal(read_numbers(tensor), blocks[order.numpy()], kind)
    with pytest.raises(AssertionError):
        check_equal(read_numbers(tensor), blocks, kind)


@pytest.mark.parametrize("exponent", [0, 103, 139, 255])
def test_powers_of_two_that_float16_lacks_are_refused(tmp_path: Path, exponent: int) -> None:
    blocks = random_blocks("MXFP4", 6)
    blocks[9, 17], blocks[9, 18:34] = exponent, 0x21
    tensor = store(tmp_path / "a.gguf", "MXFP4", blocks)
    with pytest.raises(UnsupportedModelError) as refused:
        read_numbers(tensor)
    problem = "a.weight has a scale that float16 does not hold (MXFP4)"
    assert str(refused.value) == f"{tensor.file}: {problem}"


@pytest.mark.parametrize("kind", sorted(set(NUMBER_TYPES) - {"MXFP4"}))
@pytest.mark.parametrize("scale", [65504.0, np.inf, np.nan])
def test_scales_or_least_numbers_that_are_not_finite_are_refused(
    tmp_path: Path, kind: str, scale: float
) -> None:
    """The largest float16 is too much for all but Q4_1 and Q5_1, which take it as it is."""
    blocks = random_blocks(kind, 8)
    half = np.array([scale], np.float16).view(np.uint8)
    for place in HALVES[kind]:
        blocks[13, place : place + 2] = half
    tensor = store(tmp_path / "a.gguf", kind, blocks)
    if kind in ("Q4_1", "Q5_1") and scale == 65504.0:
        check_equal(read_numbers(tensor), blocks, kind)
        return
    with pytest.raises(UnsupportedModelError, match=r"a\.weight has a scale that"):
        read_numbers(tensor)


def test_file_that_has_become_shorter_is_one_line(tmp_path: Path) -> None:
    tensor = store(tmp_path / "a.gguf", "Q4_K", random_blocks("Q4_K", 9))
    with tensor.file.open("r+b") as stream:
        stream.truncate(START + 1000)
    with pytest.raises(UnsupportedModelError, match=r"a\.gguf: has become shorter while"):
        read_numbers(tensor)
