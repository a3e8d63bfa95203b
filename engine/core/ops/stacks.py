"""`PackedStack`: the same weight of all layers of a decoder, each as wide as its own numbers are.

A file may have some layers in more bits than others, or in one layer the values in more than the
queries. So a layer's weight is one packed weight or several, of some outputs each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.core.ops.packing import PackedWeight


class Piece(NamedTuple):
    """Some outputs of a layer's weight."""

    kind: int  # which of `PackedStack.kinds` has them
    place: int  # as which of its layers
    num_outputs: int


@dataclass(frozen=True, slots=True)
class PackedStack:
    """`layers` has the pieces of each layer, whose outputs follow each other."""

    kinds: tuple[PackedWeight, ...]
    layers: tuple[tuple[Piece, ...], ...]

    @classmethod
    def alike(cls, packed: PackedWeight, num_outputs: int) -> "PackedStack":
        """One whose layers are packed in the same way."""
        layers = tuple((Piece(0, layer, num_outputs),) for layer in range(len(packed.panels)))
        return cls((packed,), layers)

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(packed.format for packed in self.kinds)

    @property
    def num_inputs(self) -> int:
        """With the padding of the kind that has most of it."""
        return max(packed.num_inputs for packed in self.kinds)

    @property
    def num_outputs(self) -> int:
        return sum(piece.num_outputs for piece in self.layers[0])

    def unpack(self, layer: int) -> Tensor:
        """[num_outputs, inputs] float32, the inputs with their padding."""
        parts = [
            self.kinds[piece.kind].unpack(piece.place)[: piece.num_outputs]
            for piece in self.layers[layer]
        ]
        return torch.cat(parts)


def piece_table(stacks: Sequence[PackedStack]) -> Tensor:
    """All pieces of all layers of these in order, as the op reads them: [pieces, 5] int64.

    Of each the number of its stack, its layer, kind, place and number of outputs. Kinds are counted
    over all stacks.
    """
    rows: list[tuple[int, ...]] = []
    num_kinds = 0
    for number, stack in enumerate(stacks):
        for layer, pieces in enumerate(stack.layers):
            rows += [(number, layer, num_kinds + kind, *rest) for kind, *rest in pieces]
        num_kinds += len(stack.kinds)
    return torch.tensor(rows, dtype=torch.int64)
