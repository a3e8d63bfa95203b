"""The tensors of the architectures that we know: a file must hold those of its own, and no others.

Their shapes must be those that its metadata says: else it is of another model than its name says,
and its text would be wrong.
"""

from collections.abc import Mapping
from typing import Any

from engine.folder.gguf.architectures.places import NO_WEIGHTS, OUTPUT
from engine.folder.gguf.architectures.table import interleaves, places
from engine.folder.gguf.parts import GgufModel
from engine.folder.gguf.types import READABLE


def num_interleaved_heads(name: str, config: Mapping[str, Any]) -> int:
    """Of how many heads its rows are, if each head's rows are interleaved; 0: not so."""
    if not interleaves(config):
        return 0
    if name.endswith(".attn_q.weight"):
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if name.endswith(".attn_k.weight") else 0


def check_tensors(model: GgufModel, config: Mapping[str, Any]) -> str | None:
    """What is wrong with them, or None. `config` is the config.json that was made for the file."""
    wanted = places(config)
    for name, (_, tensor) in model.tensors.items():
        if name in NO_WEIGHTS:
            continue
        if name not in wanted:
            return f"holds {name!r}, which {config['model_type']} has no place for"
        if tensor.shape != wanted[name].shape:
            shapes = f"{list(tensor.shape)}, and its metadata {list(wanted[name].shape)}"
            return f"{name} has the shape {shapes}"
        if tensor.type.name not in READABLE:
            return f"{name} is of the type {tensor.type.name}, which is not read"
    missing = sorted(wanted.keys() - model.tensors.keys() - {OUTPUT})
    if missing:
        return f"lacks {len(missing)} weights, first {missing[0]}"
    return None
