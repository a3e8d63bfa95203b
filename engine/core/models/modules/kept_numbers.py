"""Weights that are whole numbers in their file, in models whose modules are transformers'.

transformers fills its modules with floats. So that nothing is made as wide as that, a weight which
our own layers read from its file (`linear.py`, `experts.py`) is given to transformers as a stand-in
of one number, and the module is told where the weight lies. That is done where tensors of the file
are a linear layer's weight or those of experts; what transformers puts together in other ways is
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
from engine.core.models.modules.experts import is_ours
from engine.core.models.modules.stored_experts import ExpertNumbers, experts_in, experts_of
from engine.core.models.modules.weight_names import Place
from engine.core.models.stored_weights import StoredNumbers, find_weight
from engine.errors import UnsupportedModelError
from engine.folder.weight_headers import StoredTensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """A weight of the model that is still in its file."""

    name: str  # in the model
    shape: tuple[int, ...]
    stored: StoredNumbers | list[ExpertNumbers]  # of a linear layer, or of each expert
    tensors: tuple[str, ...]  # of the checkpoint: what it is made of


class StandIn:
    """In the place of a weight: all numbers are the same one."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype

    def __getitem__(self, of_all: EllipsisType) -> Tensor:
        return torch.zeros((), dtype=self._dtype).expand(self._shape)

    def check(self) -> None:
        """Nothing was read."""


def find_kept(like: nn.Module, checkpoint: Checkpoint, places: Mapping[str, Place]) -> list[Kept]:
    """The weights that our layers read themselves.

    `like` is the model without memory, `places` where it has the tensors of the checkpoint. Raises
    `UnsupportedModelError` for files that have changed meanwhile.
    """
    parameters = dict(like.named_parameters())  # each of those that are shared but once
    kept: list[Kept] = []
    parts: dict[str, dict[int, list[str]]] = {}  # of experts, by names in the model
    for name, place in places.items():
        parameter = parameters.get(place.name)
        if parameter is None:
            continue
        if place.expert_part is not None:
            parts.setdefault(place.name, {}).setdefault(place.expert_part, []).append(name)
        shape = tuple(parameter.shape)
        if not place.is_whole or checkpoint.tensors[name].shape != shape:
            continue
        stored = _find_stored(*_owner(like, place.name), checkpoint.tensors[name])
        if stored is not None:
            kept.append(Kept(place.name, shape, stored, (name,)))
    for name, of_experts in parts.items():
        owner, _ = _owner(like, name)
        shape = tuple(parameters[name].shape)
        names = [of_experts[part] for part in sorted(of_experts)]
        is_whole = {len(part) for part in names} == {shape[0]}
        if not is_whole or not is_ours(owner) or owner.is_transposed:
            continue
        tensors = [[checkpoint.tensors[each] for each in part] for part in names]
        experts = experts_of(list(zip(*tensors, strict=True)))
        if experts is not None and {expert.shape for expert in experts} == {shape[1:]}:
            kept.append(Kept(name, shape, experts, tuple(each for part in names for each in part)))
    return kept


def _find_stored(
    owner: Any, own_name: str, tensor: StoredTensor
) -> StoredNumbers | list[ExpertNumbers] | None:
    """What a tensor is that is a parameter of this module, if our layers can read it."""
    if type(owner) is nn.Linear and own_name == "weight":
        stored = find_weight(tensor, keeps_numbers=True)
        return stored if isinstance(stored, StoredNumbers) else None
    if len(tensor.shape) == 3 and is_ours(owner):
        return experts_in(tensor, is_transposed=owner.is_transposed)
    return None


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
