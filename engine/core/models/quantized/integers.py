"""Weights that are codes with scales and zero points: as `Numbers`, or as what they stand for."""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.core.models.quantized.parts import groups_of, read_part
from engine.core.ops.numbers import Numbers
from engine.core.ops.packing import INTERLEAVED, PARTS
from engine.errors import UnsupportedModelError
from engine.folder.quantized.layouts import NATURAL, Integers, QuantizedTensor
from engine.folder.weight_headers import StoredTensor

PART_INPUTS = (32, 16)  # that kernels take, the better first
MAX_ERROR = 2**-10  # of a scale that is rounded to float16, as a share of it
SLAB_WEIGHTS = 1 << 20


class IntegerForm(NamedTuple):
    """As what integers are packed."""

    part_inputs: int  # that share a scale
    has_least: bool


def integer_form(tensor: QuantizedTensor, layout: Integers) -> IntegerForm | None:
    """None if there is no packed form.

    That is so if inputs belong to groups in no order, if groups are no multiples of 16 inputs, and
    if scales are too small or too large for float16. Reads scales and groups. Raises
    `UnsupportedModelError` as `read_integer_floats` does.
    """
    num_inputs = tensor.shape[1]
    if num_inputs % INTERLEAVED[PARTS[layout.bits]]:
        return None
    is_whole = layout.group_inputs >= num_inputs
    fitting = [part for part in PART_INPUTS if is_whole or layout.group_inputs % part == 0]
    if not fitting or _groups(tensor, layout) is not None:
        return None
    scales, zeros = _scales_and_zeros(tensor, layout)
    rounded = scales.half().float()
    if not ((rounded - scales).abs() <= MAX_ERROR * scales.abs()).all():
        return None
    if not (zeros * rounded).half().isfinite().all():
        return None
    return IntegerForm(fitting[0], not _are_middles(zeros, layout))


def read_integer_numbers(tensor: QuantizedTensor, layout: Integers, part_inputs: int) -> Numbers:
    """One that has an `integer_form`. Raises `UnsupportedModelError` as `read_integer_floats` does.

    Scales, and their products with zero points, are rounded to float16 once.
    """
    scales, zeros = _scales_and_zeros(tensor, layout)
    num_inputs = tensor.shape[1]
    num_parts = -(-num_inputs // part_inputs)
    repeats = -(-min(layout.group_inputs, num_inputs) // part_inputs)

    def of_parts(groups: Tensor) -> Tensor:
        return groups.half().repeat_interleave(repeats, 1)[:, :num_parts]

    least = None
    if not _are_middles(zeros, layout):
        least = of_parts(-zeros * scales.half().float())
    return Numbers(_codes(tensor, layout), of_parts(scales), least, layout.bits, part_inputs)


def read_integer_floats(tensor: QuantizedTensor, layout: Integers, dtype: torch.dtype) -> Tensor:
    """What they stand for. Raises `UnsupportedModelError` for a file that has become shorter, and
    for groups that are not there.
    """
    codes, groups = _codes(tensor, layout), _groups(tensor, layout)
    scales, zeros = _scales_and_zeros(tensor, layout)
    group_inputs = layout.group_inputs
    if groups is not None:  # each input is one
        scales, zeros, group_inputs = scales[:, groups], zeros[:, groups], 1
    weights = torch.empty(tensor.shape, dtype=dtype)
    slab_rows = max(1, SLAB_WEIGHTS // tensor.shape[1])
    for first in range(0, len(weights), slab_rows):
        rows = slice(first, first + slab_rows)
        slab = codes[rows].float()
        for part, of in groups_of(slab, group_inputs):
            part.sub_(zeros[rows, of, None]).mul_(scales[rows, of, None])
        weights[rows] = slab
    return weights


def _are_middles(zeros: Tensor, layout: Integers) -> bool:
    """As tools write them that round symmetrically."""
    return bool((zeros == 1 << (layout.bits - 1)).all())


def _codes(tensor: QuantizedTensor, layout: Integers) -> Tensor:
    """[outputs, inputs] uint8."""
    packed = read_part(tensor.parts["codes"])
    codes = _unpack(packed, layout.bits, layout.codes_dim, layout.order)
    if layout.inputs_first:
        codes = codes.T
    return codes[:, : tensor.shape[1]].contiguous()


def _scales_and_zeros(tensor: QuantizedTensor, layout: Integers) -> tuple[Tensor, Tensor]:
    """Both [outputs, groups] float32."""
    num_outputs = tensor.shape[0]
    scales = _rows(read_part(tensor.parts["scales"]).float(), layout, num_outputs)
    scales = scales / layout.scale_divisor
    if "zeros" not in tensor.parts:
        return scales, torch.full_like(scales, 1 << (layout.bits - 1))
    packed = read_part(tensor.parts["zeros"])
    if layout.zeros_are_less:
        packed = packed + sum(1 << (place * layout.bits) for place in range(32 // layout.bits))
    zeros = _unpack(packed, layout.bits, layout.zeros_dim, layout.order)
    return scales, _rows(zeros.float(), layout, num_outputs)


def _rows(parts: Tensor, layout: Integers, num_outputs: int) -> Tensor:
    """[outputs, groups] of what may be one for all outputs, or have padding at their end."""
    if layout.inputs_first:
        parts = parts.T
    rows = parts.reshape(-1, parts.shape[1] if parts.dim() == 2 else 1)
    return rows.expand(num_outputs, -1) if len(rows) == 1 else rows[:num_outputs]


def _groups(tensor: QuantizedTensor, layout: Integers) -> Tensor | None:
    """Of each input; None if those beside each other are a group, as they are without `desc_act`.

    Raises `UnsupportedModelError`.
    """
    part: StoredTensor | None = tensor.parts.get("groups")
    if part is None:
        return None
    groups = read_part(part).long()
    num_groups = -(-tensor.shape[1] // layout.group_inputs)
    if groups.amin() < 0 or groups.amax() >= num_groups:
        problem = f"{tensor.name} has inputs of a group beyond its {num_groups}"
        raise UnsupportedModelError(f"{part.file}: {problem}")
    in_order = torch.arange(len(groups)) // layout.group_inputs
    return None if torch.equal(groups, in_order) else groups


def _unpack(packed: Tensor, bits: int, dim: int | None, order: tuple[int, ...]) -> Tensor:
    """uint8 codes of int32 words, which lie along `dim`; or of int8, whose middle is 0."""
    if dim is None:
        return (packed.short() + (1 << (bits - 1))).to(torch.uint8)
    if dim == 0:
        return _unpack(packed.T, bits, 1, order).T
    if order != NATURAL:
        return _unpack_places(packed, bits, order)
    codes = packed.contiguous().view(torch.uint8)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    return codes


def _unpack_places(packed: Tensor, bits: int, order: tuple[int, ...]) -> Tensor:
    """One place of all words after another, which is fast where the result is transposed."""
    words = packed.T.contiguous()
    codes = torch.empty((len(words), len(order), words.shape[1]), dtype=torch.uint8)
    for place, index in enumerate(order):
        codes[:, index] = (words >> place * bits).bitwise_and_((1 << bits) - 1)
    return codes.flatten(0, 1).T
