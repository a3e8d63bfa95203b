"""Weights as whole numbers: codes, each part of which has a scale and a least number of its own."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor


class Numbers(NamedTuple):
    """[outputs, inputs] weights: code * scale + least, of the part that an input belongs to."""

    codes: Tensor  # [outputs, inputs] uint8, below 2 ** bits
    scales: Tensor  # [outputs, parts] float16
    least: Tensor  # [outputs, parts] float16
    bits: int  # 4 or 8
    part_inputs: int  # 16 or 32: of the last part the rest

    def in_parts_of(self, part_inputs: int) -> "Numbers":
        """The same in parts of so many inputs: of as many as now, or half of them."""
        if part_inputs == self.part_inputs:
            return self
        num_parts = -(-self.codes.shape[1] // part_inputs)
        scales, least = (
            part.repeat_interleave(2, 1)[:, :num_parts] for part in (self.scales, self.least)
        )
        return self._replace(scales=scales, least=least, part_inputs=part_inputs)


def join(numbers: Sequence[Numbers], join_rows: Callable[[Sequence[Tensor]], Tensor]) -> Numbers:
    """Several weights of the same inputs as one; `join_rows` puts their outputs in order."""
    part_inputs = min(each.part_inputs for each in numbers)
    alike = [each.in_parts_of(part_inputs) for each in numbers]
    return Numbers(
        join_rows([each.codes for each in alike]),
        join_rows([each.scales for each in alike]),
        join_rows([each.least for each in alike]),
        max(each.bits for each in numbers),
        part_inputs,
    )
