"""`PlainConfig`: config.json of the fused families, read without transformers where all is plain.

Every field must be known here, with a value that means the same to transformers, and every weight
must be one of the family's, of its shape. Anything else is left to transformers, which knows more
fields and says what is wrong: so no folder is read in two ways, which `test_plain_config.py` shows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from engine.core.models.checkpoint import Checkpoint
from engine.core.models.gguf.headers import GgufTensor
from engine.folder.model_files import read_json
from engine.folder.quantized.layouts import QuantizedTensor
from engine.folder.weight_headers import StoredTensor

CLASSES = {  # of what generates text, in transformers
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
DTYPES = frozenset(("float32", "bfloat16", "float16"))
STORED_DTYPES = frozenset(("F32", "BF16", "F16"))
LAYER_TYPES = frozenset(("full_attention", "sliding_attention"))
QWEN3_HEAD_DIM = 128  # where its config.json does not say it

EMBEDDINGS, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """As transformers' config of the family says it: the fields have its names."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    rope_parameters: Mapping[str, Any]
    sliding_window: int | None
    layer_types: list[str] | None
    dtype: str | None
    eos_token_id: int | list[int] | None
    generation_eos_token_id: int | list[int] | None  # of generation_config.json

    def get_text_config(self) -> Self:
        """Itself, as for any model of text alone."""
        return self

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all weights of the model, by their names in a checkpoint."""
        hidden, head = self.hidden_size, self.head_dim
        queries, keys = self.num_attention_heads * head, self.num_key_value_heads * head
        layer = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "mlp.gate_proj.weight": (self.intermediate_size, hidden),
            "mlp.up_proj.weight": (self.intermediate_size, hidden),
            "mlp.down_proj.weight": (hidden, self.intermediate_size),
        }
        if self.model_type == "qwen2":
            layer |= {"self_attn.q_proj.bias": (queries,)}
            layer |= {f"self_attn.{name}_proj.bias": (keys,) for name in "kv"}
        if self.model_type == "qwen3":
            layer |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
        shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS: (self.vocab_size, hidden)}
        for index in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
        shapes[NORM] = (hidden,)
        if not self.tie_word_embeddings:
            shapes[HEAD] = (self.vocab_size, hidden)
        return shapes


def read_plain_config(checkpoint: Checkpoint) -> PlainConfig | None:
    """None if anything of the folder is not plain, be it wrong or only unknown here."""
    if not _all_known(checkpoint.config, _FIELDS):
        return None
    generation = read_json(checkpoint.generation_file) or {}
    if not _all_known(generation, _GENERATION_FIELDS):
        return None
    config = _read(checkpoint.config, generation.get("eos_token_id"))
    if config is None or not _has_plain_weights(checkpoint, config):
        return None
    return config


def _read(given: Mapping[str, Any], generation_eos: Any) -> PlainConfig | None:
    family = given.get("model_type", "")
    if family not in CLASSES or not _REQUIRED <= given.keys():
        return None
    if (given.get("architectures") or [CLASSES[family]]) != [CLASSES[family]]:
        return None
    heads, hidden = given["num_attention_heads"], given["hidden_size"]
    pad = given.get("pad_token_id")
    if hidden % heads or (pad is not None and pad >= given["vocab_size"]):
        return None
    groups = _with_default(given, "num_key_value_heads", heads if family == "llama" else None)
    rope = _rope_parameters(given)
    windows = _windows(family, given)
    if groups is None or rope is None or windows is None:
        return None
    if family.startswith("qwen") and given.get("head_dim", hidden) is None:
        return None
    own_width = QWEN3_HEAD_DIM if family == "qwen3" else hidden // heads
    return PlainConfig(
        **{name: given[name] for name in _REQUIRED},
        num_key_value_heads=groups,
        head_dim=_with_default(given, "head_dim", own_width),
        rms_norm_eps=given.get("rms_norm_eps", 1e-6),
        hidden_act="silu",
        tie_word_embeddings=given.get("tie_word_embeddings", False),
        rope_parameters=rope,
        sliding_window=windows[0],
        layer_types=windows[1],
        dtype=_with_default(given, "dtype", given.get("torch_dtype")),
        generation_eos_token_id=generation_eos,
    )


def _windows(family: str, given: Mapping[str, Any]) -> tuple[int | None, list[str] | None] | None:
    """`sliding_window` and `layer_types`; None if transformers' defaults would have a say."""
    window, types = given.get("sliding_window"), given.get("layer_types")
    qwens = ("use_sliding_window", "max_window_layers", "layer_types")
    if family not in ("qwen2", "qwen3"):
        if any(name in given for name in qwens):
            return None
        # A llama has no windows, a mistral one for all layers.
        if ("sliding_window" in given) is (family == "llama"):
            return None
        return window, None
    if not given.get("use_sliding_window", False):
        window = None
    elif window is None or "max_window_layers" not in given:
        return None
    num_layers = given["num_hidden_layers"]
    if types is None:
        first = num_layers if window is None else given["max_window_layers"]
        types = ["full_attention" if i < first else "sliding_attention" for i in range(num_layers)]
    return None if len(types) != num_layers else (window, types)


def _rope_parameters(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """In today's form, also where config.json has an older one."""
    rope = given.get("rope_scaling") or given.get("rope_parameters") or {}
    rope = dict(rope)
    if "rope_theta" in given:
        rope.setdefault("rope_theta", given["rope_theta"])
    old_name = rope.pop("type", "default")
    kind = rope.setdefault("rope_type", old_name)
    if kind not in _ROPE_FIELDS or rope.keys() != _ROPE_FIELDS[kind]:
        return None
    if not all(_ROPE_CHECKS[name](value) for name, value in rope.items()):
        return None
    if kind == "llama3" and rope["low_freq_factor"] >= rope["high_freq_factor"]:
        return None
    return rope


def _has_plain_weights(checkpoint: Checkpoint, config: PlainConfig) -> bool:
    """Whether there are those of the model, in one type of float, and no others."""
    stored = checkpoint.tensors
    if any(not _is_readable(tensor) for tensor in stored.values()):
        return False
    wanted = config.weight_shapes()
    if config.tie_word_embeddings and HEAD in stored:  # a second time
        wanted[HEAD] = wanted[EMBEDDINGS]
    spare = checkpoint.zero_biases - wanted.keys()
    return {name: stored[name].shape for name in stored.keys() - spare} == wanted


def _is_readable(tensor: StoredTensor) -> bool:
    """Whether it is floats, or codes of which is known what they stand for."""
    return isinstance(tensor, GgufTensor | QuantizedTensor) or tensor.dtype in STORED_DTYPES


def _all_known(given: Mapping[str, Any], checks: Mapping[str, Check]) -> bool:
    return all(name in checks and checks[name](value) for name, value in given.items())


def _with_default(given: Mapping[str, Any], name: str, default: Any) -> Any:
    value = given.get(name)
    return default if value is None else value


# ---- what is known of each field: with these values it means here what it means to transformers --


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_id(each) for each in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _only(*values: Any) -> Check:
    """Of these values, and their types: 1 is not True."""
    return lambda value: any(type(value) is type(each) and value == each for each in values)


_REQUIRED = frozenset(
    (
        *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "max_position_embeddings", "eos_token_id"),
    )
)
_FIELDS: dict[str, Check] = {
    "architectures": _or_none(lambda value: isinstance(value, list)),
    "attention_bias": _only(False),
    "attention_dropout": _is_share,
    "bos_token_id": _or_none(_is_id),
    "dtype": _or_none(DTYPES.__contains__),
    "eos_token_id": lambda value: value is None or _is_id(value) or _are_ids(value),
    "head_dim": _or_none(_is_count),
    "hidden_act": _only("silu"),
    "hidden_size": _is_count,
    "initializer_range": lambda value: type(value) is float and 0 <= value <= 1,
    "intermediate_size": _is_count,
    "layer_types": lambda value: isinstance(value, list) and set(value) <= LAYER_TYPES,
    "max_position_embeddings": _is_count,
    "max_window_layers": _is_id,
    "mlp_bias": _only(False),
    "model_type": _is_text,
    "num_attention_heads": _is_count,
    "num_hidden_layers": _is_count,
    "num_key_value_heads": _is_count,
    "pad_token_id": _or_none(_is_id),
    "pretraining_tp": _only(1),
    "rms_norm_eps": lambda value: type(value) is float and 0 < value <= 1,
    "rope_parameters": lambda value: isinstance(value, dict) and bool(value),
    "rope_scaling": _or_none(lambda value: isinstance(value, dict) and bool(value)),
    "rope_theta": _is_number,
    "sliding_window": _or_none(_is_count),
    "tie_word_embeddings": _is_flag,
    "torch_dtype": _or_none(DTYPES.__contains__),
    "transformers_version": _is_text,
    "use_cache": _is_flag,
    "use_sliding_window": _is_flag,
    "vocab_size": _is_count,
}
_GENERATION_FIELDS: dict[str, Check] = {
    "_from_model_config": _is_flag,
    "bos_token_id": _or_none(_is_id),
    "do_sample": _is_flag,
    "eos_token_id": _FIELDS["eos_token_id"],
    "max_length": _is_count,
    "max_new_tokens": _is_count,
    "output_attentions": _only(False),
    "output_hidden_states": _only(False),
    "pad_token_id": _or_none(_is_id),
    "repetition_penalty": _is_number,
    "temperature": _is_number,
    "top_k": _is_count,
    "top_p": lambda value: type(value) is float and 0 < value <= 1,
    "transformers_version": _is_text,
    "use_cache": _is_flag,
}
_ROPE_FIELDS = {
    "default": {"rope_type", "rope_theta"},
    "linear": {"rope_type", "rope_theta", "factor"},
    "llama3": {
        *("rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    },
}
_ROPE_CHECKS: dict[str, Check] = {
    "rope_type": _is_text,
    "rope_theta": _is_number,
    "factor": lambda value: type(value) is float and value >= 1,
    "low_freq_factor": _is_number,
    "high_freq_factor": _is_number,
    "original_max_position_embeddings": _is_count,
}
