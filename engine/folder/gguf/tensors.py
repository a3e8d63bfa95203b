"""The tensors of the families that we know: their names in a GGUF file, and in a checkpoint.

A file must hold those of its family, of the shapes that its metadata says, and no others: else it
is of another model than its name says, and its text would be wrong.
"""

import re
from collections.abc import Mapping
from typing import Any

from engine.folder.gguf.parts import GgufModel
from engine.folder.gguf.types import READABLE

EMBEDDINGS, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"

_WHOLE = {
    EMBEDDINGS: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    OUTPUT: "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)")


def checkpoint_name(name: str) -> str | None:
    """What transformers calls it; None for a name that is none of a weight."""
    if name in _WHOLE:
        return _WHOLE[name]
    found = _LAYER.fullmatch(name)
    if found is None or found[2] not in _OF_LAYER:
        return None
    return f"model.layers.{int(found[1])}.{_OF_LAYER[found[2]]}.{found[3]}"


def num_interleaved_heads(name: str, config: Mapping[str, Any]) -> int:
    """How many heads the rows of a tensor are of, if each head's rows are interleaved; 0: not so.

    Files of `llama` have the two halves of each query's and key's head row by row in turn, because
    ggml rotates neighbours for it. transformers rotates halves, for every family.
    """
    if config["model_type"] != "llama":
        return 0
    if name.endswith(".attn_q.weight"):
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if name.endswith(".attn_k.weight") else 0


def check_tensors(model: GgufModel, config: Mapping[str, Any]) -> str | None:
    """What is wrong with them, or None. `config` is the config.json that was made for the file."""
    wanted = _shapes(config)
    for name, (_, tensor) in model.tensors.items():
        if name == ROPE_FACTORS:
            continue
        if name not in wanted:
            return f"holds {name!r}, which {config['model_type']} has no place for"
        if tensor.shape != wanted[name]:
            shapes = f"{list(tensor.shape)}, and its metadata {list(wanted[name])}"
            return f"{name} has the shape {shapes}"
        if tensor.type.name not in READABLE:
            return f"{name} is of the type {tensor.type.name}, which is not read"
    missing = sorted(wanted.keys() - model.tensors.keys() - {OUTPUT})
    if missing:
        return f"lacks {len(missing)} weights, first {missing[0]}"
    return None


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width, head = (config[n] for n in ("hidden_size", "intermediate_size", "head_dim"))
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
        "attn_q.weight": (queries, hidden),
        "attn_k.weight": (keys, hidden),
        "attn_v.weight": (keys, hidden),
        "attn_output.weight": (hidden, queries),
        "ffn_gate.weight": (width, hidden),
        "ffn_up.weight": (width, hidden),
        "ffn_down.weight": (hidden, width),
    }
    if config["model_type"] == "qwen2":
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if config["model_type"] == "qwen3":
        layer |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    rows = config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS: (rows, hidden), OUTPUT: (rows, hidden)}
    shapes["output_norm.weight"] = (hidden,)
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes
