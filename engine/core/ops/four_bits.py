"""Weights as numbers from -8 to 7, each 32 of which have a scale in float16: 4.5 bits in all.

So they lie in GGUF's Q4_0. A least number beside the scale would take 5 bits, and what is gained by
it is hardly more than what a second scale to choose from gains (docs/performance.md).
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops.numbers import ZEROS, Numbers

PART_INPUTS = 32  # that share a scale
# Of the step with which a part's largest weight is the number -8. With the smaller one this weight
# is cut off a little and the others, which are many, are rounded less.
STEPS = (1.0, 0.88)
MOST_OF_HALF = torch.finfo(torch.float16).max


def quantize(weight: Tensor) -> Numbers:
    """[outputs, inputs] → numbers that stand for nearly the same.

    Weights are rounded to numbers of each step; then the scale is the one that fits these best, by
    least squares. Each part keeps those with the smaller error.
    """
    parts = _parts(weight)
    largest = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
    numbers, scales = _fit(parts, largest, STEPS[0])
    for step in STEPS[1:]:
        others, their_scales = _fit(parts, largest, step)
        is_better = _error(parts, others, their_scales) < _error(parts, numbers, scales)
        numbers = torch.where(is_better, others, numbers)
        scales = torch.where(is_better, their_scales, scales)
    codes = (numbers + ZEROS[4]).to(torch.uint8).flatten(-2)[:, : weight.shape[1]]
    return Numbers(codes, scales.squeeze(-1), None, bits=4, part_inputs=PART_INPUTS)


def _fit(parts: Tensor, largest: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Numbers [..., 32] and scales [..., 1] float16, which are never infinite."""
    size = largest * (-step / ZEROS[4])
    numbers = (parts / torch.where(size == 0, 1.0, size)).round_().clamp_(-ZEROS[4], ZEROS[4] - 1)
    squares = numbers.square().sum(-1, keepdim=True)
    fitting = (parts * numbers).sum(-1, keepdim=True) / squares
    scales = torch.where(squares > 0, fitting, 0.0)
    return numbers, scales.clamp_(-MOST_OF_HALF, MOST_OF_HALF).half()


def _error(parts: Tensor, numbers: Tensor, scales: Tensor) -> Tensor:
    return (numbers * scales.float()).sub_(parts).square_().sum(-1, keepdim=True)


def _parts(weight: Tensor) -> Tensor:
    """[outputs, parts, 32] float32. The last one is filled up with zeros."""
    padded = functional.pad(weight.float(), (0, -weight.shape[1] % PART_INPUTS))
    return padded.view(len(weight), -1, PART_INPUTS)
