import gguf

from engine.folder.gguf.types import BLOCK_TYPES, READABLE


def test_types_are_those_of_ggml() -> None:
    known = {each.value: (each.name, *sizes) for each, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {n: (each.name, each.block_size, each.num_bytes) for n, each in BLOCK_TYPES.items()}
    assert ours == known


def test_what_is_read_are_types() -> None:
    assert {each.name for each in BLOCK_TYPES.values()} >= READABLE
