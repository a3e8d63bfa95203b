"""What numbers stand for, by their definition."""

from torch import Tensor

from engine.core.ops.numbers import ZEROS, Numbers


def floats_of(numbers: Numbers) -> Tensor:
    """[outputs, inputs] float32."""

    def of_inputs(part: Tensor) -> Tensor:
        return part.float().repeat_interleave(numbers.part_inputs, 1)[:, : numbers.codes.shape[1]]

    scales = of_inputs(numbers.scales)
    if numbers.least is None:
        return (numbers.codes.float() - ZEROS[numbers.bits]) * scales
    return numbers.codes.float() * scales + of_inputs(numbers.least)
