"""Embeddings that stay blocks of a GGUF file: the same numbers, row by row, in the file's bytes."""

from pathlib import Path

import pytest
import torch

from engine.core.models.gguf.token_blocks import TokenBlocks
from engine.core.models.gguf.weights import read_tensor
from engine.folder.gguf.types import READABLE
from tests.engine.core.models.gguf.test_weights import store

FLOATS = {"F32", "F16", "BF16"}
VOCAB, WIDTH = 20, 512


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", sorted(READABLE - FLOATS))
def test_rows_are_those_of_the_whole_table(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    tensor = store(tmp_path / "a.gguf", kind, VOCAB, WIDTH)
    table, blocks = read_tensor(tensor, dtype), TokenBlocks(tensor, dtype)
    for ids in ([19], [3, 3, 0, 19, 3], [*range(VOCAB)] * 3):
        places = blocks.look_up(torch.tensor(ids))
        assert torch.equal(blocks.window[places].nan_to_num(), table[ids].nan_to_num())


def test_the_blocks_take_what_they_take_in_the_file(tmp_path: Path) -> None:
    tensor = store(tmp_path / "a.gguf", "Q4_0", VOCAB, WIDTH)
    assert TokenBlocks(tensor, torch.bfloat16).num_bytes == tensor.num_bytes
