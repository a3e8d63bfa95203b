"""`QuantizedTensor`: a weight that lies in its files as several tensors, and how these lie."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.folder.weight_headers import StoredTensor

NATURAL = tuple(range(8))


@dataclass(frozen=True, slots=True)
class Integers:
    """[outputs, inputs]: (code - zero) * scale, of the group that an input belongs to.

    Parts: `codes`, `scales`, and perhaps `zeros` and `groups`. Without zeros the middle code is
    zero; without groups an input belongs to the one of its place. Codes and zeros are int8, or lie
    in int32 words along one dimension, the lowest bits first.
    """

    bits: int  # 4 or 8
    group_inputs: int
    inputs_first: bool  # all parts are transposed
    codes_dim: int | None  # along which they are packed; None: they are int8
    zeros_dim: int | None
    order: tuple[int, ...] = NATURAL  # the output of each place in a word
    zeros_are_less: bool = False  # by one, in each place of a word
    scale_divisor: int = 1


@dataclass(frozen=True, slots=True)
class Fp8:
    """[outputs, inputs] of eight bits, `codes`, times `scales`, of blocks of this many of each."""

    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """[experts, inputs, outputs]: values of four bits times a power of two for 32 inputs.

    Parts: `codes` are [experts, outputs, inputs / 32, 16], `scales` the same without the last.
    """


@dataclass(frozen=True, slots=True)
class Table:
    """Any shape: `table` at a code of four bits, times one of `scales` for `block` of them.

    The scales may be codes themselves: then they are `scale_table` there, times one of
    `scale_scales` for `scale_block` of them, and `offset`.
    """

    block: int
    scale_block: int = 0
    offset: float = 0.0


Layout = Integers | Fp8 | Mxfp4 | Table


@dataclass(frozen=True, slots=True)
class QuantizedTensor(StoredTensor):
    """One weight. `file`, `dtype` and `start` are those of its codes, `shape` is the weight's."""

    name: str
    layout: Layout
    parts: Mapping[str, StoredTensor]

    @property
    def files(self) -> frozenset[Path]:
        return frozenset(part.file for part in self.parts.values())
