"""Whether config.json and the weights are of one model, checked before memory is taken for it.

transformers creates what a checkpoint does not hold, at the size that config.json names: one digit
too many there fills the machine. So the model is first made without memory, and its size compared.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.core.models.checkpoint import Checkpoint
from engine.errors import UnsupportedModelError
from engine.folder.model_files import wrong

# A model may have more numbers than its weights: those that are tied, or missing and named later.
MAX_GROWTH = 2
FREE_NUMBERS = 1 << 20  # that a model may have anyway
ROPE_TYPES = frozenset(("default", "mrope", *ROPE_INIT_FUNCTIONS))
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_FIELDS = ("vocab_size", "intermediate_size", "hidden_size", "max_position_embeddings")


def check_names(checkpoint: Checkpoint, config: Any) -> None:
    """Raise `UnsupportedModelError` for rotations and activations unknown to transformers."""
    for field in _ACTIVATIONS:
        name = getattr(config, field, None)
        if isinstance(name, str) and name not in ACT2FN:
            raise wrong(checkpoint.config_file, field, name, "must be one that transformers has")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *rope.values()]:
        kind = parameters.get("rope_type") if isinstance(parameters, dict) else None
        if kind is not None and kind not in ROPE_TYPES:
            problem = f"must be one of {', '.join(sorted(ROPE_TYPES))}"
            raise wrong(checkpoint.config_file, "rope_type", kind, problem)


def check_size(checkpoint: Checkpoint, config: Any, model: nn.Module) -> None:
    """Raise `UnsupportedModelError` if config.json describes a far larger model than is stored.

    `model` is what transformers makes of `config`, without memory.
    """
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    num_wanted = sum(map(math.prod, shapes.values()))
    num_stored = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    num_possible = MAX_GROWTH * num_stored
    if num_wanted <= num_possible + FREE_NUMBERS:
        return
    found = [
        (math.prod(shape) / max(1, math.prod(checkpoint.tensors[name].shape)), name)
        for name, shape in shapes.items()
        if name in checkpoint.tensors
    ]
    growth, name = max(found, default=(1.0, ""))
    text = config.get_text_config()
    if growth > 1:
        raise mismatch(checkpoint, text, name, checkpoint.tensors[name].shape, shapes[name])
    problem = f"describes a model of {num_wanted} numbers, the weights hold far less"
    raise UnsupportedModelError(f"{checkpoint.config_file}: {problem}")


def mismatch(
    checkpoint: Checkpoint, config: Any, name: str, stored: Sequence[int], wanted: Sequence[int]
) -> UnsupportedModelError:
    """The refusal of a weight of another shape than config.json says, naming the likely field."""
    file = checkpoint.tensors[name].file.name if name in checkpoint.tensors else "the weights"
    where = f"but {name} in {file} has the shape {list(stored)}"
    known = {size: field for field, size in _sizes(config)}
    for size, other in zip(wanted, stored, strict=False):
        if size != other and size in known:
            return UnsupportedModelError(
                f"{checkpoint.config_file}: {known[size]} is {size}, {where}"
            )
    return UnsupportedModelError(
        f"{checkpoint.config_file}: describes {name} with the shape {list(wanted)}, {where}"
    )


def _sizes(config: Any) -> Iterator[tuple[str, int]]:
    """What dimensions of weights are called in config.json; the likeliest comes last."""
    for heads in ("num_key_value_heads", "num_attention_heads"):
        for width in ("qk_rope_head_dim", "v_head_dim", "head_dim"):
            num_heads, size = getattr(config, heads, None), getattr(config, width, None)
            if isinstance(num_heads, int) and isinstance(size, int):
                yield f"{heads} × {width}", num_heads * size
    for field in reversed(_FIELDS):
        size = getattr(config, field, None)
        if isinstance(size, int):
            yield field, size
