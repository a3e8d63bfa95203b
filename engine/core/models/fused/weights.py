"""`pack_weights`: a model's weights, layer by layer, as the fused decoder of a CPU reads them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.core.models.fused.shape import DecoderShape, drop_weights
from engine.core.models.stored_weights import (
    numbers_of,
    pieces_of_weight,
    table_of,
    weight_of,
)
from engine.core.ops import numbers
from engine.core.ops.decoder_step import DecoderWeights
from engine.core.ops.packing import PARTS, PackedWeight, join_gate_up

Join = Callable[[Sequence[Tensor]], Tensor]


class Stack:
    """The same weight of all layers, which may be several that are joined.

    Weights that are numbers in their file are packed as these, into no more bits than the widest of
    them has.
    """

    def __init__(
        self, modules: Sequence[Sequence[Any]], num_outputs: int, format: str, join: Join
    ) -> None:
        self._modules, self._join = modules, join
        num_inputs = modules[0][0].weight.shape[1]
        stored = [numbers_of(module) for layer in modules for module in layer]
        whole = [each for each in stored if each is not None]
        self._keeps_numbers = len(whole) == len(stored)
        if self._keeps_numbers:
            self.packed = PackedWeight.allocate(
                len(modules),
                num_outputs,
                num_inputs,
                PARTS[max(each.bits for each in whole)],
                min(each.part_inputs for each in whole),
                has_least=any(each.has_least for each in whole),
            )
        else:
            self.packed = PackedWeight.allocate(len(modules), num_outputs, num_inputs, format)

    def fill(self, layer: int) -> None:
        """Pack the weights of one layer: one that is joined with no other piece by piece."""
        modules = self._modules[layer]
        stored = [each for module in modules if (each := numbers_of(module))]
        if self._keeps_numbers and len(stored) == 1:
            for first, piece in stored[0].pieces():
                self.packed.fill_numbers(layer, piece.read(), first)
        elif self._keeps_numbers:
            joined = numbers.join([each.read() for each in stored], self._join)
            self.packed.fill_numbers(layer, joined)
        elif len(modules) == 1:
            for first, weight in pieces_of_weight(modules[0]):
                self.packed.fill(layer, weight, first)
        else:
            self.packed.fill(layer, self._join([weight_of(module) for module in modules]))


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
    qkv = Stack([(a.q_proj, a.k_proj, a.v_proj) for a in attentions], num_qkv, format, _join_rows)
    attention_out = Stack([(a.o_proj,) for a in attentions], hidden, format, _join_rows)
    gate_up = Stack([(m.gate_proj, m.up_proj) for m in mlps], padded, format, _take_turns)
    down = Stack([(m.down_proj,) for m in mlps], hidden, format, _join_rows)
    head = Stack([(output,)], shape.vocab_size, format, _join_rows)
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
        head=head.packed,
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
