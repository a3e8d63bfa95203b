"""MXFP4, as OpenAI publishes gpt-oss: experts in blocks of 32 values that share a power of two."""

from engine.folder.quantized.declaration import Declaration
from engine.folder.quantized.layouts import Mxfp4
from engine.folder.quantized.shelf import Shelf, expect, sizes

BLOCK_INPUTS, BLOCK_BYTES = 32, 16


def find_mxfp4(declared: Declaration, shelf: Shelf) -> None:
    """Put the weights of all `_blocks` together. Raises `UnsupportedModelError`."""
    for name in shelf.names(r"_blocks$"):
        own_name = name.removesuffix("_blocks")
        scales = shelf.need(f"{own_name}_scales", name)
        codes = shelf.need(name, name)
        num_experts, num_outputs, num_blocks, _ = sizes(name, codes, 4)
        blocks = (num_experts, num_outputs, num_blocks)
        expect(name, codes, ("U8",), [(*blocks, BLOCK_BYTES)])
        expect(f"{own_name}_scales", scales, ("U8",), [blocks])
        shape = (num_experts, num_blocks * BLOCK_INPUTS, num_outputs)
        shelf.put(own_name, shape, Mxfp4(), {"codes": codes, "scales": scales})
