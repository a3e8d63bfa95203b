"""`pack_weights`: a model's weights, layer by layer, as the fused decoder of a CPU reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from engine.core.models.fused.shape import DecoderShape, drop_weights
from engine.core.models.stored_weights import (
    StoredNumbers,
    numbers_of,
    pieces_of_weight,
    table_of,
    weight_of,
)
from engine.core.ops.decoder_step import DecoderWeights
from engine.core.ops.numbers import NumberKind, join, widest_of
from engine.core.ops.packing import PackedWeight, join_gate_up
from engine.core.ops.stacks import PackedStack, Piece

Join = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Modules that are packed as one weight: as numbers if all of them are such in their file."""

    modules: tuple[Any, ...]
    num_outputs: int
    kind: NumberKind | None  # None: floats

    def pack(self, packed: PackedWeight, place: int, join_rows: Join) -> None:
        """One that is joined with no other is packed piece by piece."""
        if self.kind is not None:
            self._pack_numbers(packed, place, join_rows)
        elif len(self.modules) == 1:
            for first, weight in pieces_of_weight(self.modules[0]):
                packed.fill(place, weight, first)
        else:
            packed.fill(place, join_rows([weight_of(module) for module in self.modules]))

    def _pack_numbers(self, packed: PackedWeight, place: int, join_rows: Join) -> None:
        stored = _stored(self.modules)
        if len(stored) == 1:
            for first, piece in stored[0].pieces():
                packed.fill_numbers(place, piece.read(), first)
        else:
            numbers = join([each.read() for each in stored], join_rows)
            packed.fill_numbers(place, numbers)


class Stack:
    """The same weight of all layers, which may be several that are joined.

    Weights that are numbers in their file are packed as these, in each layer into no more bits than
    they have there. Where neighbours differ in that they are pieces of their own, but for those of
    which every other panel is the other's.
    """

    def __init__(self, layers: Sequence[Sequence[Part]], format: str, join_rows: Join) -> None:
        self._layers, self._join = layers, join_rows
        num_inputs = layers[0][0].modules[0].weight.shape[1]
        places: dict[tuple[NumberKind | None, int], int] = {}  # how many there are of each kind
        pieces: list[tuple[Piece, ...]] = []
        for layer in layers:
            of_layer = []
            for part in layer:
                kind = part.kind, part.num_outputs
                place = places.get(kind, 0)
                places[kind] = place + 1
                of_layer.append(Piece(list(places).index(kind), place, part.num_outputs))
            pieces.append(tuple(of_layer))
        kinds = []
        for (numbers, num_outputs), count in places.items():
            sizes = count, num_outputs, num_inputs
            if numbers is None:
                kinds.append(PackedWeight.allocate(*sizes, format))
            else:
                kinds.append(PackedWeight.of_numbers(*sizes, numbers))
        self.packed = PackedStack(tuple(kinds), tuple(pieces))

    def fill(self, layer: int) -> None:
        """Pack the weights of one layer."""
        for part, piece in zip(self._layers[layer], self.packed.layers[layer], strict=True):
            part.pack(self.packed.kinds[piece.kind], piece.place, self._join)


def whole(modules: Sequence[Any], num_outputs: int | None = None) -> list[Part]:
    """A layer's weight as one part."""
    if num_outputs is None:
        num_outputs = sum(module.weight.shape[0] for module in modules)
    stored = _stored(modules)
    is_stored = len(stored) == len(modules)
    kind = widest_of(each.kind for each in stored) if is_stored else None
    return [Part(tuple(modules), num_outputs, kind)]


def split(modules: Sequence[Any]) -> list[Part]:
    """A layer's weight, of neighbours those in one part that are as wide."""
    parts: list[Part] = []
    for _, alike in groupby(modules, key=lambda module: getattr(numbers_of(module), "kind", None)):
        parts += whole(list(alike))
    return parts


def _stored(modules: Sequence[Any]) -> list[StoredNumbers]:
    return [each for module in modules if (each := numbers_of(module)) is not None]


def pack_weights(model: Any, shape: DecoderShape, format: str) -> DecoderWeights:
    """Pack a loaded model, which loses its weights thereby: two copies of a large one may not fit.

    `format` is that of weights which are floats.
    """
    layers = model.model.layers
    output, table = model.get_output_embeddings(), model.get_input_embeddings()
    first, count = layers[0], shape.num_layers
    num_gated = first.mlp.gate_proj.weight.shape[0]
    padded = 2 * (num_gated + -num_gated % 16)
    hidden = shape.hidden_size
    num_qkv = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    attentions = [layer.self_attn for layer in layers]
    mlps = [layer.mlp for layer in layers]
    has_bias = first.self_attn.q_proj.bias is not None
    has_norms = hasattr(first.self_attn, "q_norm")
    qkv = Stack([split((a.q_proj, a.k_proj, a.v_proj)) for a in attentions], format, _join_rows)
    attention_out = Stack([whole([a.o_proj]) for a in attentions], format, _join_rows)
    gate_up = Stack([whole([m.gate_proj, m.up_proj], padded) for m in mlps], format, _take_turns)
    down = Stack([whole([m.down_proj]) for m in mlps], format, _join_rows)
    head = Stack([whole([output])], format, _join_rows)
    is_tied = table.weight is output.weight
    kept = None if is_tied else table_of(table)
    embeddings = None if kept is None else kept.window
    if embeddings is None and not is_tied:
        embeddings = weight_of(table).detach().clone()
    weights = DecoderWeights(
        embeddings=embeddings,
        norms=torch.empty((2 * count + 1, hidden)),
        qk_norms=torch.empty((count, 2, shape.head_dim)) if has_norms else None,
        qkv=qkv.packed,
        qkv_bias=torch.empty((count, num_qkv)) if has_bias else None,
        attention_out=attention_out.packed,
        gate_up=gate_up.packed,
        down=down.packed,
        head=head.packed.kinds[0],
        table=kept,
    )
    if not is_tied:
        drop_weights(table)
    for index, layer in enumerate(layers):
        for stack in (qkv, attention_out, gate_up, down):
            stack.fill(index)
        _copy_vectors(weights, index, layer)
        drop_weights(layer)
    weights.norms[-1] = model.model.norm.weight
    head.fill(0)
    drop_weights(model)
    return weights


def _copy_vectors(weights: DecoderWeights, index: int, layer: Any) -> None:
    """What of a layer is no matrix."""
    attention = layer.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weights.norms[2 * index] = layer.input_layernorm.weight
    weights.norms[2 * index + 1] = layer.post_attention_layernorm.weight
    if weights.qkv_bias is not None:
        weights.qkv_bias[index] = torch.cat([projection.bias for projection in projections])
    if weights.qk_norms is not None:
        weights.qk_norms[index, 0] = attention.q_norm.weight
        weights.qk_norms[index, 1] = attention.k_norm.weight


def _join_rows(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _take_turns(gate_up: Sequence[Tensor]) -> Tensor:
    return join_gate_up(*gate_up)
