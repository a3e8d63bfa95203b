"""`read_floats`: what the codes of any quantized weight stand for, slab by slab."""

import torch
from torch import Tensor

from engine.core.models.quantized.integers import read_integer_floats
from engine.core.models.quantized.parts import groups_of, look_up, read_part
from engine.folder.quantized.layouts import Fp8, Integers, Mxfp4, QuantizedTensor, Table

SLAB_WEIGHTS = 1 << 20
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and the same with a sign
EXPONENT_OF_ONE = 127


def read_floats(tensor: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    """The weight, rounded to `dtype` once.

    Raises `UnsupportedModelError` for a file that has become shorter, and for inputs of a group
    that is not there.
    """
    layout = tensor.layout
    if isinstance(layout, Integers):
        return read_integer_floats(tensor, layout, dtype)
    if isinstance(layout, Fp8):
        return _read_fp8(tensor, layout, dtype)
    if isinstance(layout, Mxfp4):
        return _read_mxfp4(tensor, dtype)
    return _read_table(tensor, layout, dtype)


def _read_fp8(tensor: QuantizedTensor, layout: Fp8, dtype: torch.dtype) -> Tensor:
    codes, scales = read_part(tensor.parts["codes"]), read_part(tensor.parts["scales"]).float()
    num_outputs, num_inputs = tensor.shape
    block_outputs, block_inputs = layout.block
    scales = scales.view(-(-num_outputs // block_outputs), -(-num_inputs // block_inputs))
    table = torch.arange(256, dtype=torch.uint8).view(codes.dtype).float()
    weights = torch.empty(tensor.shape, dtype=dtype)
    slab_rows = max(1, SLAB_WEIGHTS // num_inputs)
    for first in range(0, num_outputs, slab_rows):
        rows = slice(first, min(first + slab_rows, num_outputs))
        slab = look_up(table, codes[rows].view(torch.uint8))
        of_rows = scales[torch.arange(rows.start, rows.stop) // block_outputs]
        for part, of in groups_of(slab, block_inputs):
            part.mul_(of_rows[:, of, None])
        weights[rows] = slab
    return weights


def _read_mxfp4(tensor: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    codes, exponents = read_part(tensor.parts["codes"]), read_part(tensor.parts["scales"])
    table = torch.tensor([*E2M1, *(-value for value in E2M1)])
    weights = torch.empty(tensor.shape, dtype=dtype)
    for expert, place in enumerate(weights):
        values = _look_up_halves(table, codes[expert])
        powers = torch.exp2(exponents[expert].float() - EXPONENT_OF_ONE)
        place.copy_(values.mul_(powers[..., None]).flatten(1).T)
    return weights


def _read_table(tensor: QuantizedTensor, layout: Table, dtype: torch.dtype) -> Tensor:
    parts = {name: read_part(part) for name, part in tensor.parts.items()}
    scales, table = parts["scales"], parts["table"]
    if "scale_table" in parts:
        outer = parts["scale_scales"].repeat_interleave(layout.scale_block)[: len(scales)]
        scales = parts["scale_table"][scales.long()] * outer + layout.offset
    codes = parts["codes"].view(-1)
    weights = torch.empty(tensor.shape, dtype=dtype)
    flat = weights.view(-1)
    slab_blocks = max(1, SLAB_WEIGHTS // layout.block)
    for first in range(0, len(scales), slab_blocks):
        start, count = first * layout.block, slab_blocks * layout.block
        values = _look_up_halves(table, codes[start // 2 : (start + count) // 2], high_first=True)
        of_values = scales[first : first + slab_blocks].repeat_interleave(layout.block)
        place = flat[start : start + count]
        place.copy_((values[: len(place)] * of_values[: len(place)]).to(dtype))
    return weights


def _look_up_halves(table: Tensor, codes: Tensor, *, high_first: bool = False) -> Tensor:
    """[..., n] bytes of two codes → [..., 2 * n] values of `table`."""
    halves = (codes >> 4, codes & 15) if high_first else (codes & 15, codes >> 4)
    return look_up(table, torch.stack(halves, dim=-1).flatten(-2))
