"""What `adapter_config.json` says of an adapter, in PEFT's words.

A setting that changes the numbers and that is not computed here is refused by its name, known or
not: an adapter that loads gives the text that PEFT gives.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.errors import one_line

T = TypeVar("T")

MAX_ALPHA = 1e9
_PLAIN_NAME = re.compile(r"[\w.]+")

# Settings that are read here, that only training reads, or that only say where it came from.
_KNOWN = frozenset(
    """
    alpha_pattern auto_mapping base_model_name_or_path bias eva_config exclude_modules
    fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config
    lora_alpha lora_dropout megatron_core peft_type peft_version qalora_group_size r rank_pattern
    revision runtime_config target_modules task_type use_rslora
    """.split()
)
# With others the weights of the model itself were changed before the training.
_INITIAL_WEIGHTS = ("gaussian", "eva", "orthogonal")
_TASKS = (None, "CAUSAL_LM", "FEATURE_EXTRACTION")  # those without weights of their own


class AdapterError(ValueError):
    """Why an adapter cannot be used, in one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """Ranks and scales of an adapter's modules, and which modules it has."""

    rank: int
    alpha: float
    uses_root: bool = False  # of the rank, in the scale: PEFT's `use_rslora`
    # The ends of the modules' names; None: a pattern, so that only the weights say which.
    targets: tuple[str, ...] | None = None
    is_partial: bool = False  # whether not all modules of these names have weights
    ranks: Mapping[str, int] = field(default_factory=dict)  # by the end of a name
    alphas: Mapping[str, float] = field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        return _value_of(module, self.ranks, self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of its two matrices is multiplied by."""
        rank = self.rank_of(module)
        return _value_of(module, self.alphas, self.alpha) / (
            math.sqrt(rank) if self.uses_root else rank
        )

    def names(self, module: str) -> bool:
        """Whether the adapter is meant for this module."""
        return self.targets is None or any(_ends_with(module, name) for name in self.targets)


def parse_config(content: Mapping[str, Any], max_rank: int) -> PeftConfig:
    """Raises `AdapterError` for what is wrong, or is not computed here."""
    if content.get("peft_type") != "LORA":
        raise AdapterError(f"peft_type must be 'LORA', got {content.get('peft_type')!r}")
    for name, value in content.items():
        if name not in _KNOWN and value:
            raise AdapterError(f"{name}={value!r} is not implemented")
    if content.get("bias", "none") != "none":
        raise AdapterError(f"bias={content['bias']!r} is not implemented")
    if content.get("task_type") not in _TASKS:
        raise AdapterError(f"task_type={content['task_type']!r} is not implemented")
    initial = content.get("init_lora_weights", True)
    if not isinstance(initial, bool | None) and initial not in _INITIAL_WEIGHTS:
        raise AdapterError(f"init_lora_weights={initial!r} is not implemented")
    targets = content.get("target_modules")
    if not targets or not (isinstance(targets, str) or _are_names(targets)):
        raise AdapterError(f"target_modules must be names of modules, got {targets!r}")
    uses_root = content.get("use_rslora") or False
    if not isinstance(uses_root, bool):
        raise AdapterError(f"use_rslora must be true or false, got {uses_root!r}")
    ranks = _pattern(content, "rank_pattern")
    return PeftConfig(
        rank=_rank("r", content.get("r"), max_rank),
        alpha=_number("lora_alpha", content.get("lora_alpha")),
        uses_root=uses_root,
        targets=None if isinstance(targets, str) else tuple(targets),
        is_partial=any(
            content.get(name)
            for name in ("exclude_modules", "layers_to_transform", "layers_pattern")
        ),
        ranks={name: _rank("rank_pattern", rank, max_rank) for name, rank in ranks.items()},
        alphas={
            name: _number("alpha_pattern", alpha)
            for name, alpha in _pattern(content, "alpha_pattern").items()
        },
    )


def _rank(name: str, value: Any, max_rank: int) -> int:
    if type(value) is not int or value < 1:
        raise AdapterError(f"{name} must be a rank of at least 1, got {value!r}")
    if value > max_rank:
        raise AdapterError(f"{name} is {value}, above max_lora_rank, {max_rank}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_ALPHA:
        raise AdapterError(f"{name} must be a number of at most {MAX_ALPHA:g}, got {value!r}")
    return float(value)


def _pattern(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A setting by the end of a module's name. Real patterns are not: they may take for ever."""
    pattern = content.get(name) or {}
    if not isinstance(pattern, dict):
        raise AdapterError(f"{name} must be an object, got {pattern!r}")
    for key in pattern:
        if not _PLAIN_NAME.fullmatch(key):
            raise AdapterError(f"{name} with the pattern {key!r} is not implemented")
    return pattern


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) and name for name in names)


def _ends_with(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")


def _value_of(module: str, values: Mapping[str, T], default: T) -> T:
    return next((value for name, value in values.items() if _ends_with(module, name)), default)
