"""The groups of a step against the schema of the op, to whose order they are flattened."""

from typing import Any

import torch

from engine.core.ops import library as ops
from engine.core.ops.adapters import StepAdapters
from engine.core.ops.decoder_step import (
    DecoderCache,
    DecoderSettings,
    DecoderWeights,
    HiddenRows,
    LoadedDecoder,
    StepInput,
    flatten,
)
from engine.core.ops.packing import PackedWeight
from engine.core.ops.stacks import PackedStack, Piece
from tests.helpers.built_kernels import needs_kernels

OP_NAMES = {
    "keys": "key_cache",
    "values": "value_cache",
    "scales": "cache_scales",
    "rows": "hidden_rows",
    "out": "hidden",
}


def named(name: str) -> Any:
    """In the place of the argument that the op gives this name."""
    return OP_NAMES.get(name, name)


def packed(name: str) -> PackedWeight:
    return PackedWeight(named(name), named(f"{name}_scales"))


def stack(name: str) -> PackedStack:
    return PackedStack((packed(name),), ((Piece(0, 0, 16),),))


@needs_kernels
def test_the_groups_are_flattened_to_the_order_of_the_schema() -> None:
    decoder = DecoderWeights(
        embeddings=named("embeddings"),
        norms=named("norms"),
        qk_norms=named("qk_norms"),
        qkv=stack("qkv"),
        qkv_bias=named("qkv_bias"),
        attention_out=stack("attention_out"),
        gate_up=stack("gate_up"),
        down=stack("down"),
        head=packed("head"),
    )
    inputs = StepInput(*map(named, StepInput._fields))
    cache = DecoderCache(*map(named, DecoderCache._fields))
    settings = DecoderSettings(*map(named, DecoderSettings._fields))
    loaded = LoadedDecoder(decoder, named("rotary"), cache, settings)
    assert ops.load_library()
    declared = torch.ops.parley.decoder_step.default._schema.arguments
    names = [argument.name for argument in declared]
    hidden = HiddenRows(*map(named, HiddenRows._fields))
    fields = ("adapter_rows", "adapters", "adapter_targets", "adapter_ranks")
    adapters = StepAdapters(*map(named, fields))
    flat = list(flatten(inputs, loaded, named("logits"), hidden, adapters))
    first = names.index("weights")
    weights, scales, pieces = flat[first : first + 3]
    stacks = ["qkv", "attention_out", "gate_up", "down"]
    assert weights == stacks and scales == [f"{name}_scales" for name in stacks]
    assert pieces.tolist() == [[place, 0, place, 0, 16] for place in range(4)]
    flat[first : first + 3] = names[first : first + 3]
    assert flat == names
