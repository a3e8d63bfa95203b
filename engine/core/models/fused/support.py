"""Which models the fused decoder computes: those whose every detail is known, and no other.

The config must name the family, which is checked before the weights are loaded; the modules are
checked after that: an unexpected parameter means that the model does something else, too.
"""

from typing import Any

from torch import nn

FAMILIES = frozenset(
    # The last three rotate by three positions, which are the same one in a text.
    ("llama", "mistral", "qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text")
)
# Models with other parts, whose text is one of the families, and nothing is done to it besides.
WHOLES = frozenset(
    """
    cosmos3_omni deepseek_vl deepseek_vl_hybrid glmasr got_ocr2 idefics2 idefics3 internvl janus
    lighton_ocr llava llava_next llava_next_video llava_onevision mistral3 moss_transcribe_diarize
    ovis2 pp_chart2table qianfan_ocr qwen2_5_vl qwen2_audio qwen2_vl qwen3_asr qwen3_vl smolvlm
    video_llama_3 video_llava vipllava voxtral
    """.split()
)
ROPE_TYPES = frozenset(("default", "linear", "llama3", "yarn"))  # one table for all lengths
GPU_WIDEST = 16_384  # a block keeps a row of so many in its registers, also in float32
GPU_WIDEST_HEAD = 512

_ALWAYS = frozenset(
    f"{name}.weight"
    for name in (
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    )
)
_QKV_BIAS = frozenset(f"self_attn.{name}_proj.bias" for name in "qkv")
_QK_NORMS = frozenset(f"self_attn.{name}_norm.weight" for name in "qk")


def obstacle(config: Any) -> str | None:
    """What of this config the fused decoder does not compute; None if it does all."""
    if config.model_type not in FAMILIES:
        return f"{config.model_type} is none of {', '.join(sorted(FAMILIES))}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act}"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "biases after attention or in the MLP"
    rope = getattr(config, "rope_parameters", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        return f"rotary positions of type {rope_type}"
    if rope.get("partial_rotary_factor", 1) != 1:
        return "heads that are rotated in part"
    if config.num_attention_heads % config.num_key_value_heads:
        return "key-value heads that do not divide the heads"
    width = head_dim(config)
    if width % 2 or config.hidden_size % 4 or width * config.num_attention_heads % 4:
        return "odd widths"  # inputs are packed by fours
    return None


def whole_obstacle(config: Any) -> str | None:
    """What of the whole config keeps its text, which has no `obstacle`, from being computed."""
    if config.get_text_config() is config:
        return None
    if config.model_type not in WHOLES:
        return f"{config.model_type} has other parts besides its text"
    return None


def gpu_obstacle(config: Any) -> str | None:
    """What of this config, which has no `obstacle`, the kernels of csrc/cuda do not take."""
    widths = (config.hidden_size, config.intermediate_size)
    if any(width % 8 for width in widths):
        return "widths that are not multiples of 8"  # 16 bytes are read at once
    if config.hidden_size > GPU_WIDEST:
        return f"rows of more than {GPU_WIDEST} numbers"
    if head_dim(config) > GPU_WIDEST_HEAD:
        return f"heads of more than {GPU_WIDEST_HEAD} numbers"
    return None


def int4_obstacle(config: Any) -> str | None:
    """What of this config, which has no `obstacle`, cannot be packed in 4 bits."""
    attended = head_dim(config) * config.num_attention_heads
    if config.hidden_size % 8 or attended % 8:
        return "widths that are not multiples of 8"  # inputs are packed by eights
    return None


def unknown_parameters(layer: nn.Module) -> set[str]:
    """Parameters of a decoder layer that are missing, or too many."""
    names = {name for name, _ in layer.named_parameters()}
    return names.symmetric_difference(_ALWAYS | (names & _QK_NORMS) | _whole(names, _QKV_BIAS))


def head_dim(config: Any) -> int:
    """The width of one head."""
    width: int = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    return width


def windows(config: Any) -> tuple[int, ...]:
    """How many tokens each layer sees, 0 = all: from where transformers takes it."""
    num_layers: int = config.num_hidden_layers
    window = getattr(config, "sliding_window", None) or 0
    if config.model_type in ("llama", "qwen3_vl_text"):  # have none, whatever the config says
        return (0,) * num_layers
    if config.model_type == "mistral":  # looks at no layer's type
        return (window,) * num_layers
    return tuple(window if kind == "sliding_attention" else 0 for kind in config.layer_types)


def _whole(names: set[str], group: frozenset[str]) -> frozenset[str]:
    return group if names & group else frozenset()
