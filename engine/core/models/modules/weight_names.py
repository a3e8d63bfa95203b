"""`places_in`: where transformers puts each tensor of a checkpoint.

Checkpoints of one family have had several names for a weight over the years, and transformers
renames them as it loads. Whoever gives it a weight in another form must know where that will be.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
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


def places_in(model: Any, names: Iterable[str]) -> dict[str, Place]:
    """By name, those of the tensors that the model has a place for.

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
            places[name] = Place(found, converted_by is None)
    return places
