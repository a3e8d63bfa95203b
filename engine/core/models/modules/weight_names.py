"""`places_in`: where transformers puts each tensor of a checkpoint.

Checkpoints of one family have had several names for a weight over the years, and transformers
renames them as it loads. Whoever gives it a weight in another form must know where that will be.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A weight of the model, by its name there."""

    name: str
    is_whole: bool  # it is the tensor as it lies, and not put together of several
    # It has a matrix for each expert, of whose outputs the tensor is the first part, or the second.
    expert_part: int | None = None


def places_in(model: Any, names: Iterable[str]) -> dict[str, Place]:
    """By name, those of the tensors that the model has a place for, experts in their order.

    `model` is one of transformers, and may have no memory.
    """
    steps = get_model_conversion_mapping(model)
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    known, prefix = model.state_dict(), model.base_model_prefix
    places: dict[str, Place] = {}
    for name in sorted(names, key=dot_natural_key):  # there are renamings that go by the order
        found, converted_by = rename_source_key(name, renamings, converters, prefix, known)
        if found not in known and name in known:
            found, converted_by = name, None
        if found in known:
            places[name] = Place(
                found, converted_by is None, _expert_part(converters, converted_by)
            )
    return places


def _expert_part(converters: Iterable[WeightConverter], pattern: str | None) -> int | None:
    """`pattern` is one of those that a converter takes tensors by."""
    for converter in converters:
        patterns: list[str] = converter.source_patterns
        if pattern is None or pattern not in patterns:
            continue
        merge, *others = converter.operations
        if not isinstance(merge, MergeModulelist) or merge.dim != 0:
            return None
        if len(patterns) == 1:
            return None if others else 0
        if len(others) == 1 and isinstance(others[0], Concatenate) and others[0].dim == 1:
            return patterns.index(pattern)
    return None
