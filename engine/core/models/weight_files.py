"""Whether a model takes all that the weight files of a checkpoint hold, and as what it is.

What they hold, their headers say (`weight_headers.py`). transformers leaves out what it has no
place for, and turns numbers of any kind into the model's own, with a warning at most. But scales
that nobody multiplies with, or a layer too many, make another model of it, whose text is wrong. So
what was not taken is refused by name, unless it is known to change nothing.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from engine.core.models.checkpoint import Checkpoint
from engine.core.models.gguf.headers import GgufTensor
from engine.errors import UnsupportedModelError
from engine.folder.quantized.layouts import QuantizedTensor

FLOATS = frozenset(("F64", "F32", "F16", "BF16"))  # as safetensors names them

# What no text depends on, and why. transformers adds, family by family, what it leaves out on
# purpose: towers for pictures that a model of text alone has no use for, and the like.
HARMLESS = (
    r"rotary_emb\.(original_)?inv_freq$",  # computed from the config
    r"\b(attn|attention|self_attn)\.(masked_)?bias$",  # the triangle of a causal mask, and -1e9
    r"\b(position|token_type)_ids$",  # 0, 1, 2 and so on, or zeros
    r"\b(en|de)coder\.version$",  # fairseq's number of its own format
    r"\bnum_batches_tracked$",  # how long batch norms were trained
    r"(^|\.)mtp(_|\.)",  # heads that guess the tokens after the next one
)
_SCALES = re.compile(r"scale|zero_point|qzeros|qweight|absmax|amax|quant|packed", re.IGNORECASE)


def check_dtypes(checkpoint: Checkpoint) -> None:
    """Refuse 8-bit and other quantized numbers if the config names no format for them.

    They would be taken for the weights themselves. Raises UnsupportedModelError.
    """
    said = "config.json does not say how its weights were quantized"
    if checkpoint.quantization is not None:
        said = f"is no part of a weight of {checkpoint.quantization.method!r}"
    for name, tensor in checkpoint.tensors.items():
        if isinstance(tensor, GgufTensor | QuantizedTensor):
            continue
        if tensor.dtype not in FLOATS and not is_harmless(name):
            raise UnsupportedModelError(
                f"{tensor.file}: {name} is of type {tensor.dtype}, and {said}; take the checkpoint "
                "in bfloat16 or float16"
            )


def check_all_taken(
    checkpoint: Checkpoint, unexpected: Iterable[str], config: Any, left_out: Collection[str] = ()
) -> None:
    """Refuse a checkpoint of whose tensors the model left out `unexpected`, unless harmless.

    `left_out` are the modules and weights, by the model's names, that are no part of its text.

    Raises UnsupportedModelError.
    """
    parts = [re.escape(name.removeprefix("model.")) for name in left_out]
    besides = re.compile(rf"(model\.)?({'|'.join(parts)})(\.|$)" if parts else "(?!)")
    names = [name for name in unexpected if not besides.match(name)]
    guessing = _guessing_layers(names, config)
    left = sorted(
        name for name in names if not is_harmless(name) and _layer_of(name) not in guessing
    )
    if not left:
        return
    scales = [name for name in left if _SCALES.search(name)]
    first = (scales or left)[0]
    reason = f"is it of the type {config.model_type}, of {config.num_hidden_layers} layers?"
    if scales:
        reason = "scales that nobody applies; take the checkpoint in bfloat16 or float16"
    others = f" and {len(left) - 1} others" if len(left) > 1 else ""
    raise UnsupportedModelError(
        f"{_file_of(first, checkpoint)} holds what the model does not take, "
        f"{first}{others}: {reason}"
    )


def is_harmless(name: str) -> bool:
    """Whether no text depends on a tensor of this name that a model has no place for."""
    return any(re.search(pattern, name) for pattern in HARMLESS)


def _guessing_layers(names: Iterable[str], config: Any) -> set[int]:
    """The layers after the last that only guess further tokens.

    The config says how many there are, for any family. But only such a layer joins what is known of
    a token and the embedding of the next one, by `eh_proj`: without it, it is a layer of the model.
    """
    num_layers: int = config.num_hidden_layers
    num_guessing = getattr(config, "num_nextn_predict_layers", None) or 0
    joining = {_layer_of(name) for name in names if name.endswith(".eh_proj.weight")}
    return joining & set(range(num_layers, num_layers + num_guessing))


def _layer_of(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1: none."""
    number = re.search(r"\blayers\.(\d+)\.", name)
    return -1 if number is None else int(number[1])


def _file_of(name: str, checkpoint: Checkpoint) -> Path:
    """Where a tensor lies, which the model may call by a longer or a shorter name."""
    for own, tensor in checkpoint.tensors.items():
        if f".{name}".endswith(f".{own}") or own.endswith(f".{name}"):
            return tensor.file
    return checkpoint.weights_file
