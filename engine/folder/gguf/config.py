"""config.json and generation_config.json of a GGUF file: its metadata in transformers' words.

Only architectures of which all is known are taken (`architectures/`). What llama.cpp leaves out of
account, such as the windows of a Mistral, is left out here too: the answers are those of the file,
not of the checkpoint that it was made of.
"""

from typing import Any

from engine.folder.gguf.architectures.fields import Source
from engine.folder.gguf.architectures.places import EMBEDDINGS, OUTPUT
from engine.folder.gguf.architectures.table import Architecture, architecture_of
from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.parts import GgufModel
from engine.folder.gguf.tensors import check_tensors
from engine.folder.model_config import MAX_LAYERS, MAX_SIZE, check_config, check_token_ids

# What would make other models of these, in the names of llama.cpp.
_UNKNOWN = (
    *("{arch}.expert_count", "{arch}.attention.max_alibi_bias", "{arch}.attention.clamp_kqv"),
    *("{arch}.attention.scale", "{arch}.logit_scale", "{arch}.embedding_scale"),
    *("{arch}.residual_scale", "{arch}.use_parallel_residual", "{arch}.pooling_type"),
    *("{arch}.attn_logit_softcapping", "{arch}.final_logit_softcapping"),
    *("{arch}.nextn_predict_layers", "{arch}.rope.scaling.attn_factor"),
)
# What may be said and changes nothing.
_HARMLESS = ("{arch}.vocab_size", "{arch}.rope.scaling.finetuned")
# What ends an answer besides the token that the metadata names; llama.cpp knows them by text too.
ENDS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|end_of_text|>"),
        *("<|endoftext|>", "<end_of_turn>", "<EOT>", "<|return|>", "<|call|>"),
    )
)
# Where an answer has several messages, as of gpt-oss, this ends one of them, and no answer.
_END_OF_MESSAGE, _ENDS_BESIDES = "<|end|>", frozenset(("<|return|>", "<|call|>"))


def make_config(model: GgufModel, metadata: Metadata) -> dict[str, Any]:
    """config.json. Raises `UnsupportedModelError` for a model that we do not compute."""
    of = architecture_of(metadata)
    if not of.is_strict and (unknown := metadata.changes(_UNKNOWN)):
        metadata.refuse(f"{unknown} is set, which is not computed")
    if not metadata.flag("{arch}.attention.causal", True):
        metadata.refuse("reads a text in both directions, so it continues none")
    if EMBEDDINGS not in model.tensors:
        metadata.refuse(f"has no {EMBEDDINGS}; is it a vocabulary, an adapter or a projector?")
    hidden = _size(metadata, "{arch}.embedding_length")
    heads = _size(metadata, "{arch}.attention.head_count")
    groups = metadata.count("{arch}.attention.head_count_kv", heads)
    head_dim = metadata.count("{arch}.attention.key_length", hidden // heads)
    if groups < 1 or heads % groups or not 2 <= head_dim <= MAX_SIZE or head_dim % 2:
        sizes = f"{heads} heads of {head_dim} numbers, {groups} for keys"
        metadata.refuse(f"has {sizes}, which no model has")
    if metadata.count("{arch}.attention.value_length", head_dim) != head_dim:
        metadata.refuse("has values of another width than its keys, which is not computed")
    config: dict[str, Any] = {
        "architectures": [of.class_name],
        "model_type": of.model_type,
        "vocab_size": model.tensors[EMBEDDINGS][1].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _width(metadata),
        "num_hidden_layers": _size(metadata, "{arch}.block_count", MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _size(metadata, "{arch}.context_length", 1 << 30),
        of.epsilon: metadata.number(_epsilon(of)),
        "rope_parameters": of.rope(model, metadata, head_dim),
        "tie_word_embeddings": OUTPUT not in model.tensors,
        "bos_token_id": metadata.token_id("bos"),
        "eos_token_id": metadata.token_id("eos"),
        "dtype": _dtype(model),
    }
    if of.is_strict:
        config |= {"pad_token_id": None} | of.fields(Source(model, metadata, config))
        if unknown := metadata.unasked(_HARMLESS):
            metadata.refuse(f"{unknown} is set, which is not computed")
    if problem := check_tensors(model, config):
        metadata.refuse(problem)
    check_config(metadata.file, config)
    check_token_ids(metadata.file, config, config["vocab_size"])
    return config


def make_generation_config(metadata: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """Which tokens end an answer: those that the file names, and those that are known to."""
    named = [metadata.token_id(name) for name in ("eos", "eot", "eom")]
    tokens = metadata.texts("tokenizer.ggml.tokens") or []
    kinds = metadata.numbers("tokenizer.ggml.token_type") or [0] * len(tokens)
    ends = ENDS - {_END_OF_MESSAGE} if _ENDS_BESIDES.issubset(tokens) else ENDS
    known = [
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == 3 and token in ends
    ]
    ids = list(dict.fromkeys(each for each in [*named, *known] if each is not None))
    return {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": [each for each in ids if each < config["vocab_size"]] or None,
    }


def _size(metadata: Metadata, key: str, most: int = MAX_SIZE) -> int:
    size = metadata.count(key)
    if not 1 <= size <= most:
        metadata.refuse_value(key, size, f"must be from 1 to {most}")
    return size


def _width(metadata: Metadata) -> int:
    """Of the feed-forward layer; a mixture may have none besides its experts."""
    key = "{arch}.feed_forward_length"
    if not metadata.count(key, 0) and metadata.count("{arch}.expert_count", 0):
        key = "{arch}.expert_feed_forward_length"
    return _size(metadata, key)


def _epsilon(of: Architecture) -> str:
    name = "layer_norm_rms_epsilon" if of.epsilon == "rms_norm_eps" else "layer_norm_epsilon"
    return f"{{arch}}.attention.{name}"


def _dtype(model: GgufModel) -> str:
    """In which the model computes: that of most of its bytes, if it is a type of float."""
    sizes: dict[str, int] = {}
    for _, tensor in model.tensors.values():
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.num_bytes
    most = max(sizes, key=lambda name: sizes[name])
    return {"F32": "float32", "F16": "float16"}.get(most, "bfloat16")
