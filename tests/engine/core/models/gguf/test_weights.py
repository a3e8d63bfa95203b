from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.core.models.gguf import weights
from engine.core.models.gguf.headers import GgufTensor
from engine.core.models.gguf.weights import read_tensor, row_order
from engine.errors import UnsupportedModelError
from engine.folder.gguf.types import BLOCK_TYPES, READABLE

TYPES = {each.name: each for each in BLOCK_TYPES.values()}
START = 96


def store(file: Path, kind: str, rows: int, width: int, num_heads: int = 0) -> GgufTensor:
    """A tensor of any blocks, with other bytes around it."""
    type_ = TYPES[kind]
    num_bytes = rows * type_.row_bytes(width)
    content = np.random.default_rng(7).integers(0, 256, START + num_bytes + 50, dtype=np.uint8)
    if type_.block_size == 1:  # of numbers that are some
        numbers = np.random.default_rng(7).standard_normal((rows, width)).astype(np.float32)
        blocks = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind])
        content[START : START + num_bytes] = blocks.reshape(-1).view(np.uint8)
    file.write_bytes(content.tobytes())
    return GgufTensor(
        file=file,
        dtype=kind,
        shape=(rows, width),
        num_bytes=num_bytes,
        name="a.weight",
        type=type_,
        start=START,
        num_interleaved_heads=num_heads,
    )


def numbers_of(tensor: GgufTensor) -> torch.Tensor:
    """By the `gguf` package, all at once."""
    content = np.fromfile(tensor.file, dtype=np.uint8)[START : START + tensor.num_bytes]
    blocks = content.reshape(tensor.shape[0], -1)
    with np.errstate(all="ignore"):
        numbers = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[tensor.dtype])
    return torch.from_numpy(np.array(numbers, dtype=np.float32))


@pytest.mark.parametrize("kind", sorted(READABLE))
def test_numbers_are_those_of_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(weights, "SLAB_NUMBERS", 3 * 512)  # 3 rows at a time
    tensor = store(tmp_path / "a.gguf", kind, 7, 512)
    expected = numbers_of(tensor)
    for dtype in (torch.float32, torch.bfloat16):
        found = read_tensor(tensor, dtype)
        assert found.dtype == dtype
        assert torch.equal(found.nan_to_num(), expected.to(dtype).nan_to_num())


def test_rows_of_interleaved_heads_are_put_in_order(tmp_path: Path) -> None:
    tensor = store(tmp_path / "a.gguf", "F32", 16, 8, num_heads=2)
    order = row_order(tensor)
    assert order is not None
    assert order.tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert torch.equal(read_tensor(tensor, torch.float32), numbers_of(tensor)[order])


def test_file_that_has_become_shorter_is_one_line(tmp_path: Path) -> None:
    tensor = store(tmp_path / "a.gguf", "Q8_0", 7, 512)
    with tensor.file.open("r+b") as stream:
        stream.truncate(START + 1000)
    with pytest.raises(UnsupportedModelError, match=r"a\.gguf: has become shorter while"):
        read_tensor(tensor, torch.float32)
