"""`ARCHITECTURES`: those of GGUF files that are read, by llama.cpp's names of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.folder.gguf.architectures import fields, layers
from engine.folder.gguf.architectures.fields import Fields
from engine.folder.gguf.architectures.places import (
    EMBEDDINGS,
    OUTPUT,
    OUTPUT_NORM,
    Config,
    Form,
    Layer,
    Place,
    Places,
    Sizes,
)
from engine.folder.gguf.architectures.rope import (
    long_rope,
    partial_rope,
    rope_parameters,
    yarn_rope,
)
from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.parts import GgufModel

Rope = Callable[[GgufModel, Metadata, int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What transformers calls it, and all that a file of it holds."""

    model_type: str
    class_name: str
    layer: Layer
    fields: Fields = fields.nothing
    rope: Rope = rope_parameters
    epsilon: str = "rms_norm_eps"  # of its norms, in config.json
    # Rows of queries and keys lie in another order: the halves of each head row by row in turn,
    # because ggml rotates neighbours for it where transformers rotates halves.
    interleaves: bool = False
    norm: Form = Form.WHOLE  # of the last norm
    has_norm_bias: bool = False
    is_tied: bool = False  # never has an output layer of its own
    is_strict: bool = True  # what its metadata says besides what is read here is refused


def _simple(model_type: str, class_name: str, layer: Layer, **others: Any) -> Architecture:
    return Architecture(model_type, f"{class_name}ForCausalLM", layer, **others)


_LLAMA = _simple("llama", "Llama", layers.llama, interleaves=True, is_strict=False)
_MIXTRAL = _simple("mixtral", "Mixtral", layers.mixtral, fields=fields.mixtral, interleaves=True)
_MISTRAL = _simple(
    "mistral", "Mistral", layers.llama, fields=fields.mistral, rope=yarn_rope, interleaves=True
)
_MINISTRAL = _simple(
    *("ministral3", "Ministral3", layers.llama),
    fields=fields.ministral3,
    rope=yarn_rope,
    interleaves=True,
)
ARCHITECTURES = {
    "llama": _LLAMA,
    "qwen2": _simple("qwen2", "Qwen2", layers.qwen2, is_strict=False),
    "qwen3": _simple("qwen3", "Qwen3", layers.qwen3, is_strict=False),
    "mistral3": _MISTRAL,
    "qwen2moe": _simple("qwen2_moe", "Qwen2Moe", layers.qwen2_moe, fields=fields.qwen2_moe),
    "qwen3moe": _simple("qwen3_moe", "Qwen3Moe", layers.qwen3_moe, fields=fields.qwen3_moe),
    "olmoe": _simple("olmoe", "Olmoe", layers.olmoe, fields=fields.olmoe),
    "gpt-oss": _simple("gpt_oss", "GptOss", layers.gpt_oss, fields=fields.gpt_oss, rope=yarn_rope),
    "gemma": _simple(
        "gemma", "Gemma", layers.gemma, fields=fields.gemma, norm=Form.LESS_ONE, is_tied=True
    ),
    "gemma2": _simple(
        "gemma2", "Gemma2", layers.gemma2, fields=fields.gemma2, norm=Form.LESS_ONE, is_tied=True
    ),
    "gemma3": _simple(
        "gemma3_text", "Gemma3", layers.gemma3, fields=fields.gemma3, norm=Form.LESS_ONE
    ),
    "phi3": _simple("phi3", "Phi3", layers.phi3, fields=fields.phi3, rope=long_rope),
    "glm4": _simple("glm4", "Glm4", layers.glm4, fields=fields.glm4, rope=partial_rope),
    "granite": _simple("granite", "Granite", layers.llama, fields=fields.granite, interleaves=True),
    "granitemoe": _simple(
        *("granitemoe", "GraniteMoe", layers.granitemoe),
        fields=fields.granitemoe,
        interleaves=True,
    ),
    "smollm3": _simple("smollm3", "SmolLM3", layers.llama, fields=fields.smollm3, interleaves=True),
    "olmo2": _simple("olmo2", "Olmo2", layers.olmo2, fields=fields.olmo2),
    "command-r": _simple(
        "cohere",
        "Cohere",
        layers.cohere,
        fields=fields.cohere,
        epsilon="layer_norm_eps",
        is_tied=True,
    ),
    "cohere2": _simple(
        "cohere2",
        "Cohere2",
        layers.cohere,
        fields=fields.cohere2,
        epsilon="layer_norm_eps",
        is_tied=True,
    ),
    "starcoder2": _simple(
        "starcoder2",
        "Starcoder2",
        layers.starcoder2,
        fields=fields.starcoder2,
        epsilon="norm_epsilon",
        has_norm_bias=True,
    ),
    "stablelm": _simple(
        "stablelm",
        "StableLm",
        layers.stablelm,
        fields=fields.stablelm,
        rope=partial_rope,
        epsilon="layer_norm_eps",
        has_norm_bias=True,
    ),
    "nemotron": _simple(
        "nemotron",
        "Nemotron",
        layers.nemotron,
        fields=fields.relu2,
        rope=partial_rope,
        epsilon="norm_eps",
        norm=Form.LESS_ONE,
        has_norm_bias=True,
    ),
    "arcee": _simple("arcee", "Arcee", layers.arcee, fields=fields.relu2, interleaves=True),
}
_BY_TYPE = {each.model_type: each for each in (*ARCHITECTURES.values(), _MIXTRAL, _MINISTRAL)}


def architecture_of(metadata: Metadata) -> Architecture:
    """Raises `UnsupportedModelError` for one that is not read."""
    name = metadata.architecture
    if name == "llama" and metadata.count("{arch}.expert_count", 0):
        return _MIXTRAL
    if name == "mistral3" and metadata.has("{arch}.attention.temperature_scale"):
        return _MINISTRAL
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        metadata.refuse(f"is of the architecture {name!r}; those read here are {known}")
    return ARCHITECTURES[name]


def interleaves(config: Config) -> bool:
    """Whether rows of queries and keys lie in another order in the file."""
    return _BY_TYPE[config["model_type"]].interleaves


def places(config: Config) -> Places:
    """Where each tensor of a file goes, by its name; `config` was made for the file."""
    of = _BY_TYPE[config["model_type"]]
    rows, hidden = config["vocab_size"], config["hidden_size"]
    found = {
        EMBEDDINGS: Place("model.embed_tokens.weight", (rows, hidden)),
        OUTPUT_NORM: Place("model.norm.weight", (hidden,), of.norm),
    }
    if of.has_norm_bias:
        found["output_norm.bias"] = Place("model.norm.bias", (hidden,))
    if not of.is_tied:
        found[OUTPUT] = Place("lm_head.weight", (rows, hidden))
    layer = of.layer(Sizes(config))
    for index in range(config["num_hidden_layers"]):
        for name, place in layer.items():
            own = f"model.layers.{index}.{place.name}"
            found[f"blk.{index}.{name}"] = Place(own, place.shape, place.form)
    return found
