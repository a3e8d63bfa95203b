"""Quantized weights as `Numbers`: the codes that lie in the file, for kernels that take such."""

from dataclasses import replace

import torch
from torch import Tensor

from engine.core.models.quantized.floats import E2M1, EXPONENT_OF_ONE
from engine.core.models.quantized.integers import integer_form, read_integer_numbers
from engine.core.models.quantized.parts import look_up, read_part
from engine.core.ops.numbers import ZEROS, NumberKind, Numbers
from engine.folder.quantized.layouts import Integers, Mxfp4, QuantizedTensor
from engine.folder.weight_headers import StoredTensor

MXFP4_BITS = 6  # of its numbers, doubled: from -12 to 12
MXFP4_INPUTS = 32
SMALLEST, LARGEST = -24, 15  # powers of two that float16 has
ABSOLUTE = 0x77  # of two values in a byte all but their signs


def number_kind(tensor: QuantizedTensor) -> NumberKind | None:
    """Of a matrix; None if there is no packed form that stands for the same.

    Raises `UnsupportedModelError` as `read_floats` does.
    """
    layout = tensor.layout
    if isinstance(layout, Integers):
        form = integer_form(tensor, layout)
        return None if form is None else NumberKind(layout.bits, *form)
    if isinstance(layout, Mxfp4) and _mxfp4_scales(tensor) is not None:
        return NumberKind(MXFP4_BITS, MXFP4_INPUTS, has_least=False)
    return None


def read_numbers(tensor: QuantizedTensor, part_inputs: int) -> Numbers:
    """One that has a `number_kind`. Raises `UnsupportedModelError` as `read_floats` does."""
    if isinstance(tensor.layout, Integers):
        return read_integer_numbers(tensor, tensor.layout, part_inputs)
    scales = _mxfp4_scales(tensor)
    assert scales is not None
    doubled = torch.tensor([*(2 * v for v in E2M1), *(-2 * v for v in E2M1)])  # so they are whole
    moved = (doubled + ZEROS[MXFP4_BITS]).to(torch.uint8)
    packed = read_part(tensor.parts["codes"])
    codes = look_up(moved, torch.stack((packed & 15, packed >> 4), dim=-1)).flatten(1)
    return Numbers(codes, scales, None, MXFP4_BITS, MXFP4_INPUTS)


def matrices(tensor: QuantizedTensor) -> list[QuantizedTensor]:
    """Of MXFP4, [experts, inputs, outputs], each expert, [outputs, inputs], as it lies."""
    num_experts, num_inputs, num_outputs = tensor.shape

    def of_expert(part: StoredTensor, expert: int) -> StoredTensor:
        num_bytes = part.num_bytes // num_experts
        start = part.start + expert * num_bytes
        return replace(part, shape=part.shape[1:], num_bytes=num_bytes, start=start)

    return [
        replace(
            tensor,
            shape=(num_outputs, num_inputs),
            num_bytes=tensor.num_bytes // num_experts,
            parts={name: of_expert(part, expert) for name, part in tensor.parts.items()},
        )
        for expert in range(num_experts)
    ]


def _mxfp4_scales(tensor: QuantizedTensor) -> Tensor | None:
    """[outputs, parts] float16, of codes that are doubled; None if it does not hold one of them.

    Blocks of zeros, which have the smallest powers of two, need none.
    """
    powers = read_part(tensor.parts["scales"]).int() - EXPONENT_OF_ONE - 1
    beyond = (powers < SMALLEST) | (powers > LARGEST)
    if beyond.any() and (read_part(tensor.parts["codes"])[beyond] & ABSOLUTE).any():
        return None
    ones = torch.ones(powers.shape)
    return torch.ldexp(ones, powers.clamp(SMALLEST, LARGEST)).half().masked_fill_(beyond, 0)
