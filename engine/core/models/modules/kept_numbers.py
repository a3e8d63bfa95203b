"""Weights that are whole numbers in their file, in models whose modules are transformers'.

transformers fills its modules with floats. So that nothing is made as wide as that, a weight which
our own layers read from its file (`linear.py`, `experts.py`) is given to transformers as a stand-in
of one number, and the module is told where the weight lies. That is done only where a tensor of the
file is a parameter of the model, by whatever name: what transformers puts together of several is
floats.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from engine.core.models.checkpoint import Checkpoint
from engine.core.models.modules.weight_names import Place
from engine.core.models.quantized.numbers import matrices
from engine.core.models.stored_weights import StoredNumbers, find_weight
from engine.errors import UnsupportedModelError
from engine.folder.quantized.layouts import Mxfp4, QuantizedTensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """A weight of the model that is still in its file."""

    name: str  # in the model
    stored: StoredNumbers | list[StoredNumbers]  # of a linear layer, or of each expert


class StandIn:
    """In the place of a weight: all numbers are the same one."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype

    def __getitem__(self, of_all: EllipsisType) -> Tensor:
        return torch.zeros((), dtype=self._dtype).expand(self._shape)

    def check(self) -> None:
        """Nothing was read."""


def find_kept(
    like: nn.Module, checkpoint: Checkpoint, places: Mapping[str, Place]
) -> dict[str, Kept]:
    """By their names in the checkpoint, the weights that our layers read themselves.

    `like` is the model without memory, `places` where it has them. Raises `UnsupportedModelError`
    for files that have changed meanwhile.
    """
    parameters = dict(like.named_parameters())  # each of those that are shared but once
    kept: dict[str, Kept] = {}
    for name, place in places.items():
        tensor, parameter = checkpoint.tensors[name], parameters.get(place.name)
        if not place.is_whole or parameter is None or tuple(parameter.shape) != tensor.shape:
            continue
        owner, own_name = _owner(like, place.name)
        if type(owner) is nn.Linear and own_name == "weight":
            stored = find_weight(tensor, keeps_numbers=True)
            if isinstance(stored, StoredNumbers):
                kept[name] = Kept(place.name, stored)
        elif isinstance(tensor, QuantizedTensor) and isinstance(tensor.layout, Mxfp4):
            if getattr(owner, "is_transposed", False):
                experts = [find_weight(each, keeps_numbers=True) for each in matrices(tensor)]
                found = [each for each in experts if isinstance(each, StoredNumbers)]
                if len(found) == len(experts):
                    kept[name] = Kept(place.name, found)
    return kept


def attach_kept(model: nn.Module, kept: Iterable[Kept]) -> None:
    """Tell the modules of a loaded model where their weights lie.

    Raises `UnsupportedModelError` if transformers has put a stand-in elsewhere.
    """
    num_weights = 0
    for each in kept:
        owner, own_name = _owner(model, each.name)
        weight: Tensor = getattr(owner, own_name)
        if weight.untyped_storage().nbytes() != weight.element_size():
            problem = f"{each.name} is not where the model has it; take another --dtype than auto"
            raise UnsupportedModelError(problem)
        num_weights += weight.numel()
        if isinstance(each.stored, StoredNumbers):
            owner.stored = each.stored
        else:
            owner.stored = {**getattr(owner, "stored", {}), own_name: each.stored}
    if num_weights:
        logger.info("%.1fM weights stay the numbers of their file", num_weights / 1e6)


def _owner(model: nn.Module, name: str) -> tuple[Any, str]:
    """The module that has a parameter, and its name there."""
    path, _, own_name = name.rpartition(".")
    return model.get_submodule(path), own_name
