"""`read_weights`: the weights of a checkpoint one after another, whatever files they lie in."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from safetensors import safe_open
from torch import Tensor

from engine.core.models.checkpoint import Checkpoint
from engine.core.models.gguf.headers import GgufTensor
from engine.core.ops.numbers import Numbers


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """A weight that stays in its file until `read`, as the whole numbers that it is there."""

    tensor: GgufTensor
    bits: int
    part_inputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def read(self) -> Numbers:
        """Raises `UnsupportedModelError` if the file has changed meanwhile."""
        from engine.core.models.gguf.numbers import read_numbers

        return read_numbers(self.tensor)

    def read_floats(self, dtype: torch.dtype) -> Tensor:
        """What they stand for; raises the same."""
        from engine.core.models.gguf.weights import read_tensor

        return read_tensor(self.tensor, dtype)


def read_weights(
    checkpoint: Checkpoint, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, in this dtype; None: as they are stored, or float32 if as no floats.

    Raises what the libraries raise over files that change meanwhile.
    """
    for file in sorted({tensor.file for tensor in checkpoint.tensors.values()}):
        names = [name for name, tensor in checkpoint.tensors.items() if tensor.file == file]
        if isinstance(checkpoint.tensors[names[0]], GgufTensor):
            from engine.core.models.gguf.weights import read_tensor  # for no other format

            for name in names:
                tensor = checkpoint.tensors[name]
                assert isinstance(tensor, GgufTensor)
                yield name, read_tensor(tensor, dtype or torch.float32)
            continue
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():
                weight: Tensor = stored.get_tensor(name)
                yield name, weight if dtype is None else weight.to(dtype)


def read_or_find_weights(
    checkpoint: Checkpoint, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor | StoredNumbers]]:
    """The same, but matrices of whole numbers stay in their file."""
    found: dict[str, StoredNumbers] = {}
    if checkpoint.is_gguf:
        from engine.core.models.gguf.numbers import NUMBER_TYPES

        for name, tensor in checkpoint.tensors.items():
            assert isinstance(tensor, GgufTensor)
            if (kind := NUMBER_TYPES.get(tensor.type.name)) and len(tensor.shape) == 2:
                found[name] = StoredNumbers(tensor, *kind)
    yield from found.items()
    others = {name: t for name, t in checkpoint.tensors.items() if name not in found}
    yield from read_weights(replace(checkpoint, tensors=others), dtype)
