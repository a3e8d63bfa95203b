"""Weights as numbers from 0 to 15, with a scale and a least number for 32 inputs.

Both are float16, as in GGUF's Q4_1, so that a weight takes 5 bits in all.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops.numbers import Numbers

PART_INPUTS = 32  # that share a scale and a least number
MOST = 15
MOST_OF_HALF = torch.finfo(torch.float16).max


def quantize(weight: Tensor) -> Numbers:
    """[outputs, inputs] → numbers that stand for nearly the same.

    Weights are rounded to 15 steps from the least of a part to its most; then its scale and least
    number are those that fit the rounded ones best, by least squares.
    """
    parts = _parts(weight)
    low, high = torch.aminmax(parts, dim=-1, keepdim=True)
    step = ((high - low) / MOST).clamp_(min=torch.finfo(torch.float16).tiny)
    codes = ((parts - low) / step).round_()
    of_codes, of_parts = codes.mean(-1, keepdim=True), parts.mean(-1, keepdim=True)
    centered = codes - of_codes
    covariance = parts.mul_(centered).sum(-1, keepdim=True)
    variance = centered.square_().sum(-1, keepdim=True)
    scales = torch.where(variance > 0, covariance / variance, step)
    least = of_parts - scales * of_codes
    stored = codes.to(torch.uint8).flatten(-2)[:, : weight.shape[1]]
    scales, least = _to_half(scales.squeeze(-1)), _to_half(least.squeeze(-1))
    return Numbers(stored, scales, least, bits=4, part_inputs=PART_INPUTS)


def to_words(codes: Tensor) -> Tensor:
    """[..., 8] → [..., 1] int32: of each byte the low half, then the high halves."""
    return (codes[..., :4] | codes[..., 4:] << 4).contiguous().view(torch.int32)


def from_words(words: Tensor) -> Tensor:
    """[..., 1] → [..., 8] uint8."""
    stored = words.view(torch.uint8)
    return torch.cat([stored & MOST, stored >> 4], dim=-1)


def _to_half(numbers: Tensor) -> Tensor:
    """The nearest float16, which are never infinite."""
    return numbers.clamp(-MOST_OF_HALF, MOST_OF_HALF).half()


def _parts(weight: Tensor) -> Tensor:
    """[outputs, parts, 32] float32, a copy. What the last one lacks is its last weight again."""
    padding = -weight.shape[1] % PART_INPUTS
    copy = weight.to(torch.float32, copy=True)
    if padding:
        copy = functional.pad(copy[None], (0, padding), mode="replicate")[0]
    return copy.view(len(weight), -1, PART_INPUTS)
