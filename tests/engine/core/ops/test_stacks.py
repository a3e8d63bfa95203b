"""A stack's layers are its pieces, whatever they are packed as."""

import torch

from engine.core.ops.numbers import NumberKind, Numbers
from engine.core.ops.packing import PackedWeight
from engine.core.ops.stacks import PackedStack, Piece, piece_table

NARROW, WIDE = NumberKind(4, 32, has_least=False), NumberKind(6, 16, has_least=True)


def packed(kind: NumberKind, num_outputs: int, *layers: int) -> PackedWeight:
    """Layers of numbers that all are the given one."""
    weight = PackedWeight.of_numbers(len(layers), num_outputs, 32, kind)
    for place, number in enumerate(layers):
        codes = torch.full((num_outputs, 32), 8 + number, dtype=torch.uint8)
        scales = torch.ones(num_outputs, 1, dtype=torch.float16)
        weight.fill_numbers(place, Numbers(codes, scales, None, 4, 32))
    return weight


def test_a_layer_is_its_pieces_without_their_padding() -> None:
    kinds = packed(NARROW, 20, 1, 2), packed(WIDE, 5, 3)
    stack = PackedStack(kinds, ((Piece(0, 1, 20), Piece(1, 0, 5)), (Piece(0, 0, 20),)))
    assert stack.unpack(0)[:, 0].tolist() == [2] * 20 + [3] * 5
    assert stack.unpack(1)[:, 0].tolist() == [1] * 20
    assert stack.formats == ("int4_parts", "int6")
    assert (stack.num_outputs, stack.num_inputs) == (25, 32)


def test_the_table_counts_kinds_over_all_stacks() -> None:
    alike = PackedStack.alike(packed(NARROW, 16, 1, 2), 16)
    mixed = PackedStack(
        (packed(NARROW, 8, 1), packed(WIDE, 8, 1)), ((Piece(0, 0, 8),), (Piece(1, 0, 8),))
    )
    assert piece_table([alike, mixed, alike]).tolist() == [
        *([0, 0, 0, 0, 16], [0, 1, 0, 1, 16]),
        *([1, 0, 1, 0, 8], [1, 1, 2, 0, 8]),
        *([2, 0, 3, 0, 16], [2, 1, 3, 1, 16]),
    ]
