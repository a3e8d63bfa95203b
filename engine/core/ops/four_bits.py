"""Weights in four bits: a code for each, a step and a zero for 16 inputs, a scale for 128.

A weight is `(code - zero) * step * scale`, and its part before the scale a whole number of eight
bits: so csrc multiplies it as int8, with one scale for 128 inputs. There are sixteen pairs of step
and zero, whose names take four bits: 4.375 bits a weight in all. They were found by a search for
those with which weights of several distributions, with and without outliers, are rounded least.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

GROUP_INPUTS = 128  # that share a scale
PART_INPUTS = 16  # that share a pair of step and zero
PARTS = GROUP_INPUTS // PART_INPUTS
MOST = 15  # the codes are from 0 on
# As in csrc's `product.h`. Half of the zeros are below the middle, for parts that reach further up.
STEPS = (3, 5, 7, 9, 10, 11, 12, 14, 3, 5, 7, 9, 10, 11, 12, 14)
ZEROS = (6, 6, 6, 7, 5, 7, 5, 7, 9, 9, 9, 8, 10, 8, 10, 8)
# As how many scales the largest weight of a group is tried. With the smaller one it is cut off a
# little, where steps and zeros don't fit it, and the others, which are many, are rounded less.
LARGEST = (120, 104)
MOST_OF_HALF = torch.finfo(torch.float16).max


class FourBits(NamedTuple):
    """[outputs, inputs] weights. Of the last group and part there may be less than the whole."""

    codes: Tensor  # [outputs, inputs] uint8
    pairs: Tensor  # [outputs, groups, 8] uint8: places in STEPS and ZEROS
    scales: Tensor  # [outputs, groups] float16


def quantize(weight: Tensor) -> FourBits:
    """Nearly the same weights. Each group takes the scale with which it is rounded less."""
    groups = _groups(weight)
    least, most = groups.amin(-1), groups.amax(-1)  # of each part
    whole = torch.maximum(-least, most).amax(1, keepdim=True)  # the largest of each group
    errors, codes, pairs = _round(groups, least, most, whole / LARGEST[0])
    for largest in LARGEST[1:]:
        their_errors, their_codes, their_pairs = _round(groups, least, most, whole / largest)
        is_better = their_errors < errors
        errors = torch.where(is_better, their_errors, errors)
        codes = torch.where(is_better[:, None, None], their_codes, codes)
        pairs = torch.where(is_better[:, None], their_pairs, pairs)
    scales = _fitting(groups, codes, pairs)
    num_outputs, num_inputs = weight.shape
    return FourBits(
        codes.view(num_outputs, -1)[:, :num_inputs].to(torch.uint8),
        pairs.view(num_outputs, -1, PARTS).to(torch.uint8),
        scales.view(num_outputs, -1),
    )


def whole_numbers(codes: Tensor, pairs: Tensor) -> Tensor:
    """What is multiplied with the scale: [..., inputs] float32, of parts [..., parts]."""
    steps, zeros = _of(STEPS, pairs), _of(ZEROS, pairs)
    num_inputs = codes.shape[-1]
    steps, zeros = (
        each.repeat_interleave(PART_INPUTS, -1)[..., :num_inputs] for each in (steps, zeros)
    )
    return (codes.float() - zeros) * steps


def _of(table: tuple[int, ...], pairs: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.float32)[pairs.long()]


def _groups(weight: Tensor) -> Tensor:
    """[groups of all outputs, 8, 16] float32. The last one of an output is filled up with zeros."""
    padded = functional.pad(weight.float(), (0, -weight.shape[1] % GROUP_INPUTS))
    return padded.reshape(-1, PARTS, PART_INPUTS)


def _round(
    groups: Tensor, least: Tensor, most: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Errors [groups], codes [groups, 8, 16], pairs [groups, 8] with these scales [groups, 1]."""
    factors = 1 / torch.where(scales == 0, 1.0, scales)
    pairs = _promising(least * factors, most * factors)
    steps, zeros = (_of(table, pairs).unsqueeze(-1) for table in (STEPS, ZEROS))
    numbers = groups * factors.unsqueeze(-1)
    codes = (numbers / steps).add_(zeros).round_().clamp_(0, MOST)
    errors = ((codes - zeros) * steps).sub_(numbers).square_().sum((1, 2))
    return errors * scales.squeeze(1).square(), codes, pairs


def _promising(least: Tensor, most: Tensor) -> Tensor:
    """For each part the pair that seems best, [groups, 8], from its least and its largest number.

    What a step rounds off is known on average, and what codes from 0 to 15 cut off at the ends.
    """
    steps, zeros = (
        torch.tensor(table, dtype=torch.float32)[:, None, None] for table in (STEPS, ZEROS)
    )
    above = (most - (MOST - zeros) * steps).clamp_(min=0).square_()
    below = (-zeros * steps - least).clamp_(min=0).square_()
    rounded = steps.square() * (PART_INPUTS / 12)
    errors = above.add_(below).add_(rounded)
    # Numbers above 0 are in the order of their bits, the last of which hold the place instead:
    # torch finds the least number of many sixteen much sooner than where it is.
    places = torch.arange(len(STEPS), dtype=torch.int32)[:, None, None]
    return (errors.view(torch.int32) & -len(STEPS) | places).amin(0) & len(STEPS) - 1


def _fitting(groups: Tensor, codes: Tensor, pairs: Tensor) -> Tensor:
    """The scales [groups] that fit best, by least squares, and are never infinite."""
    steps, zeros = (_of(table, pairs).unsqueeze(-1) for table in (STEPS, ZEROS))
    numbers = (codes - zeros).mul_(steps)
    squares = numbers.square().sum((1, 2))
    scales = numbers.mul_(groups).sum((1, 2)) / squares
    scales = torch.where(squares > 0, scales, 0.0)
    return scales.clamp_(-MOST_OF_HALF, MOST_OF_HALF).half()
