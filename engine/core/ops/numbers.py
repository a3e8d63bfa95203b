"""Weights as whole numbers: codes, each part of which has a scale of its own, or more than that."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

ZEROS: Mapping[int, int] = {4: 8, 6: 32, 8: 128}  # bits → the code that stands for 0


class NumberKind(NamedTuple):
    """As what weights that are numbers can be packed."""

    bits: int  # 4, 6 or 8
    part_inputs: int  # 16 or 32
    has_least: bool


def widest_of(kinds: Iterable[NumberKind]) -> NumberKind:
    """The kind as which weights of all these can be packed."""
    bits, part_inputs, has_least = zip(*kinds, strict=True)
    return NumberKind(max(bits), min(part_inputs), any(has_least))


class Numbers(NamedTuple):
    """[outputs, inputs] weights, of whose parts each has a scale: (code - zero) * scale.

    `zero` is the middle of the codes. With least numbers it is code * scale + least instead.
    """

    codes: Tensor  # [outputs, inputs] uint8, below 2 ** bits
    scales: Tensor  # [outputs, parts] float16
    least: Tensor | None  # [outputs, parts] float16
    bits: int  # 4, 6 or 8
    part_inputs: int  # 16 or 32: of the last part the rest

    @property
    def kind(self) -> NumberKind:
        return NumberKind(self.bits, self.part_inputs, self.least is not None)

    def in_bits(self, bits: int) -> "Numbers":
        """The same in so many bits, which are no fewer."""
        if bits == self.bits:
            return self
        if self.least is not None:
            return self._replace(bits=bits)
        return self._replace(codes=self.codes + (ZEROS[bits] - ZEROS[self.bits]), bits=bits)

    def in_parts_of(self, part_inputs: int) -> "Numbers":
        """The same in parts of so many inputs: of as many as now, or half of them."""
        if part_inputs == self.part_inputs:
            return self
        num_parts = -(-self.codes.shape[1] // part_inputs)
        scales = self.scales.repeat_interleave(2, 1)[:, :num_parts]
        least = None
        if self.least is not None:
            least = self.least.repeat_interleave(2, 1)[:, :num_parts]
        return self._replace(scales=scales, least=least, part_inputs=part_inputs)

    def with_least(self) -> "Numbers":
        """The same with least numbers: exactly, as a zero is a power of two."""
        if self.least is not None:
            return self
        return self._replace(least=self.scales * -ZEROS[self.bits])


def join(numbers: Sequence[Numbers], join_rows: Callable[[Sequence[Tensor]], Tensor]) -> Numbers:
    """Several weights of the same inputs as one; `join_rows` puts their outputs in order."""
    bits, part_inputs, has_least = widest_of(each.kind for each in numbers)
    alike = [each.in_parts_of(part_inputs) for each in numbers]
    least = None
    if has_least:
        alike = [each.with_least() for each in alike]
        least = join_rows([each.least for each in alike if each.least is not None])
    alike = [each.in_bits(bits) for each in alike]
    return Numbers(
        join_rows([each.codes for each in alike]),
        join_rows([each.scales for each in alike]),
        least,
        bits,
        part_inputs,
    )
