"""What config.json and generation_config.json may say, checked before anything uses it.

transformers checks some types, allocates by what it reads, and loops as often as a field says. So
the fields that decide on sizes have bounds here, far above what any model has; `implied_shapes.py`
checks whether the weights are of a model of these sizes.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.folder.model_files import wrong

MAX_LAYERS = 10_000
MAX_SIZE = 1 << 27  # of anything that has a weight for each
MAX_POSITIONS = 1 << 30

# Those that text is in: of a model that also speaks, the one that thinks of what to say.
PARTS = ("thinker_config", "text_config")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
POSITIONS = ("max_position_embeddings", "n_positions", "original_max_position_embeddings")
_SIZES = (
    *("hidden_size", "n_embd", "d_model", "vocab_size", "head_dim"),
    *("num_attention_heads", "n_head", "n_heads", "num_key_value_heads"),
)
_SIZES_OR_NONE = (  # 0 is said where there are none
    *("intermediate_size", "n_inner", "ffn_dim", "moe_intermediate_size", "sliding_window"),
    *("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts"),
    *("num_experts_per_tok", "q_lora_rank", "kv_lora_rank", "v_head_dim"),
    *("qk_rope_head_dim", "qk_nope_head_dim", "word_embed_proj_dim"),
)
_EPSILONS = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
    *("norm_eps", "norm_epsilon"),
)
_POSITIVE = ("rope_theta", "rotary_emb_base", "factor", "low_freq_factor", "high_freq_factor")
_BOUNDS = (
    {name: (1, MAX_LAYERS) for name in LAYERS}
    | {name: (1, MAX_POSITIONS) for name in POSITIONS}
    | {name: (1, MAX_SIZE) for name in _SIZES}
    | {name: (0, MAX_SIZE) for name in _SIZES_OR_NONE}
)
_TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("model_type", "hidden_act", "rope_type", "type"), (str, "text")),
    **dict.fromkeys(("architectures", "layer_types"), (list, "a list")),
    **dict.fromkeys(
        (*PARTS, "quantization_config", "rope_scaling", "rope_parameters"),
        (dict, "an object"),
    ),
}
_DTYPES = frozenset(
    ("auto", "float", "float32", "double", "float64", "half", "float16", "bfloat16")
)
_LISTS_OF_TEXT = ("architectures", "layer_types")
TOKEN_IDS = ("eos_token_id", "bos_token_id", "pad_token_id")


def check_config(file: Path, config: Mapping[str, Any]) -> None:
    """Raise `UnsupportedModelError` for a field that no model can have. `file` is config.json."""
    if "model_type" in config and config["model_type"] is None:
        raise wrong(file, "model_type", None, "must be text")
    if "auto_map" in config:
        _check_names_of_code(file, config["auto_map"])
    for prefix, section in _sections(config):
        for name, value in section.items():
            if value is not None:
                _check_field(file, prefix, name, value)
        _check_heads(file, prefix, section)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model."""
    return parts_of(config)[-1]


def parts_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """config.json, and the parts in each other that lead to its language model."""
    parts = [config]
    for name in PARTS:
        inner = parts[-1].get(name)
        if isinstance(inner, dict):
            parts.append(inner)
    return parts


def own_code_problem(config: Mapping[str, Any]) -> str | None:
    """What is wrong with a config of a type that only the folder's own code would know, if it is.

    `auto_map` names that code. It never runs, also where it is not needed.
    """
    if "auto_map" not in config:
        return None
    family = config.get("model_type")
    return f"{family!r} needs code of its own (auto_map), which never runs"


def vocab_size(config: Mapping[str, Any]) -> int | None:
    """As config.json says it; None if it leaves it to the architecture's default."""
    size = text_config(config).get("vocab_size", config.get("vocab_size"))
    return size if type(size) is int else None


def num_layers(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """The name that config.json gives to the number of layers, and the number."""
    text = text_config(config)
    for name in LAYERS:
        if type(text.get(name)) is int:
            return name, text[name]
    return None


def check_token_ids(file: Path, config: Mapping[str, Any], vocab_size: int | None) -> None:
    """Raise `UnsupportedModelError` unless they are ids or lists of ids.

    Of those that end an answer one at least must be in the vocabulary, if its size is known.
    """
    for name in TOKEN_IDS:
        value = config.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if type(token_id) is not int:
                raise wrong(file, name, value, "must be a token id, or a list of them")
    eos = config.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    limit = MAX_SIZE if vocab_size is None else vocab_size
    if ids and not any(0 <= token_id < limit for token_id in ids):
        problem = f"must be below vocab_size, which is {limit}: else no answer ends"
        raise wrong(file, "eos_token_id", eos, problem)


def _sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """config.json's own fields, and those objects in it that our fields are in, with their path."""
    yield "", config
    for name in (*PARTS, "rope_scaling", "rope_parameters"):
        inner = config.get(name)
        if isinstance(inner, dict):
            for prefix, section in _sections(inner):
                yield f"{name}.{prefix}", section
    for name, inner in config.items():  # rope parameters for each type of layer
        if name.endswith("_attention") and isinstance(inner, dict):
            yield f"{name}.", inner


def _check_names_of_code(file: Path, value: Any) -> None:
    """They are used for nothing, but libraries look whether there are any."""
    names = value.values() if isinstance(value, dict) else [None]
    if not all(isinstance(name, str | list) for name in names):
        raise wrong(file, "auto_map", value, "must be an object of names")


def _check_field(file: Path, prefix: str, name: str, value: Any) -> None:
    place = prefix + name
    if name in _BOUNDS:
        for each in value if isinstance(value, list) else [value]:  # one for each layer
            _check_count(file, place, each, *_BOUNDS[name])
    elif name in _EPSILONS or name in _POSITIVE:
        _check_number(file, place, name, value)
    elif name in _TYPES and not isinstance(value, _TYPES[name][0]):
        raise wrong(file, place, value, f"must be {_TYPES[name][1]}")
    elif name in _LISTS_OF_TEXT and not all(isinstance(each, str) for each in value):
        raise wrong(file, place, value, "must be a list of texts")
    elif name in ("dtype", "torch_dtype") and isinstance(value, str):
        if value.removeprefix("torch.") not in _DTYPES and not value.startswith("float8"):
            raise wrong(file, place, value, "must be a floating point type")
    elif isinstance(value, float) and math.isinf(value):
        raise wrong(file, place, value, "must be finite")


def _check_count(file: Path, place: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(file, place, value, "must be a whole number")
    if not low <= value <= high:
        raise wrong(file, place, value, f"must be from {low} to {high}")
    if value != int(value):
        raise wrong(file, place, value, "must be a whole number")


def _check_number(file: Path, place: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(file, place, value, "must be a number")
    if name in _EPSILONS and not 0 <= value <= 1:
        raise wrong(file, place, value, "must be from 0 to 1")
    if name in _POSITIVE and not 0 < value < math.inf:
        raise wrong(file, place, value, "must be above 0 and finite")


def _check_heads(file: Path, prefix: str, config: Mapping[str, Any]) -> None:
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if type(heads) is int and type(groups) is int and heads % groups:
        problem = f"must divide num_attention_heads, which is {heads}"
        raise wrong(file, f"{prefix}num_key_value_heads", groups, problem)
