"""`read_weights`: the weights of a checkpoint one after another, whatever files they lie in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor

from engine.core.models.checkpoint import Checkpoint
from engine.core.models.gguf.headers import GgufTensor, pieces_of
from engine.core.models.quantized.floats import read_floats
from engine.core.models.quantized.numbers import number_kind, read_numbers
from engine.core.ops.decoder_step import TokenTable
from engine.core.ops.numbers import NumberKind, Numbers, join, widest_of
from engine.core.ops.packing import PANEL_OUTPUTS
from engine.folder.quantized.layouts import QuantizedTensor
from engine.folder.weight_headers import StoredTensor

_FLOATS = frozenset(("F32", "F16", "BF16"))
PIECE_NUMBERS = 1 << 25  # read at once: an output layer as a whole is an eighth of a small model


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight that stays in its file, where it lies as codes, until somebody reads it."""

    tensor: GgufTensor | QuantizedTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def read_floats(self, dtype: torch.dtype) -> Tensor:
        """What they stand for. Raises `UnsupportedModelError` if the file has changed meanwhile."""
        if isinstance(self.tensor, QuantizedTensor):
            return read_floats(self.tensor, dtype)
        from engine.core.models.gguf.weights import read_tensor  # for no other format

        return read_tensor(self.tensor, dtype)

    def pieces(self) -> Iterator[tuple[int, Self]]:
        """Some rows after the other, of whole panels, with the number of the first of them.

        All at once, if they cannot be read apart.
        """
        if not isinstance(self.tensor, GgufTensor):
            yield 0, self
            return
        num_panels = max(1, PIECE_NUMBERS // (PANEL_OUTPUTS * self.shape[1]))
        for first, tensor in pieces_of(self.tensor, num_panels * PANEL_OUTPUTS):
            yield first, replace(self, tensor=tensor)

    def as_table(self, dtype: torch.dtype) -> TokenTable | None:
        """For lookups, as it lies in its file; None if that takes no less than floats."""
        tensor = self.tensor
        if type(tensor) is not GgufTensor or tensor.num_interleaved_heads:
            return None
        if tensor.row_bytes >= tensor.shape[1] * dtype.itemsize:
            return None
        from engine.core.models.gguf.token_blocks import TokenBlocks

        return TokenBlocks(tensor, dtype)


@dataclass(frozen=True, slots=True)
class StoredNumbers(StoredWeight):
    """One that can be packed as the whole numbers that it is there."""

    kind: NumberKind

    def read(self) -> Numbers:
        """Raises the same."""
        if isinstance(self.tensor, QuantizedTensor):
            return read_numbers(self.tensor, self.kind.part_inputs)
        from engine.core.models.gguf.numbers import read_numbers as read_blocks

        return read_blocks(self.tensor)


@dataclass(frozen=True, slots=True)
class JoinedNumbers:
    """Several with the same inputs, whose outputs are those of one weight."""

    parts: tuple[StoredNumbers, ...]
    takes_turns: bool  # one output of each; otherwise all of one after all of another

    @property
    def shape(self) -> tuple[int, ...]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def kind(self) -> NumberKind:
        return widest_of(part.kind for part in self.parts)

    def read(self) -> Numbers:
        """Raises `UnsupportedModelError` if a file has changed meanwhile."""

        def join_rows(parts: Sequence[Tensor]) -> Tensor:
            if self.takes_turns:
                return torch.stack(list(parts), dim=1).flatten(0, 1)
            return torch.cat(list(parts))

        return join([part.read() for part in self.parts], join_rows)


def numbers_of(module: Any) -> StoredNumbers | None:
    """The module's weight in its file, if it is whole numbers there."""
    stored: StoredWeight | None = getattr(module, "stored", None)
    return stored if isinstance(stored, StoredNumbers) else None


def weight_of(module: Any) -> Tensor:
    """The module's weight, of its dtype."""
    weight: Tensor = module.weight
    stored: StoredWeight | None = getattr(module, "stored", None)
    return weight if stored is None else stored.read_floats(weight.dtype)


def pieces_of_weight(module: Any) -> Iterator[tuple[int, Tensor]]:
    """The same in pieces: some rows after the other, with the number of the first of them."""
    stored: StoredWeight | None = getattr(module, "stored", None)
    if stored is None:
        yield 0, module.weight
        return
    for first, piece in stored.pieces():
        yield first, piece.read_floats(module.weight.dtype)


def table_of(module: Any) -> TokenTable | None:
    """The module's weight as it lies in its file, for lookups, if that takes less memory."""
    stored: StoredWeight | None = getattr(module, "stored", None)
    return None if stored is None else stored.as_table(module.weight.dtype)


class LazyWeight:
    """A weight that is read when it is asked for, as transformers asks: by `[...]`.

    What it raises then is also kept, for transformers takes it for a weight that is missing.
    """

    def __init__(self, tensor: StoredTensor, source: Any, dtype: torch.dtype | None) -> None:
        self._tensor, self._source, self._dtype = tensor, source, dtype
        self._error: Exception | None = None

    def __getitem__(self, of_all: EllipsisType) -> Tensor:
        try:
            return self._read()
        except Exception as error:
            self._error = error
            raise

    def check(self) -> None:
        """Raise what was raised when it was read."""
        if self._error is not None:
            raise self._error

    def _read(self) -> Tensor:
        if isinstance(self._tensor, GgufTensor | QuantizedTensor):
            return StoredWeight(self._tensor).read_floats(self._dtype or torch.float32)
        weight: Tensor = self._source[...]
        return weight if self._dtype is None else weight.to(self._dtype)


def lazy_weights(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> dict[str, LazyWeight]:
    """All weights by name; those of safetensors files stay mapped as long as they are kept."""
    files: dict[Path, Any] = {}
    weights: dict[str, LazyWeight] = {}
    for name, tensor in checkpoint.tensors.items():
        source = None
        if not isinstance(tensor, GgufTensor | QuantizedTensor):
            if tensor.file not in files:
                files[tensor.file] = safe_open(tensor.file, framework="pt")
            source = files[tensor.file].get_slice(name)
        weights[name] = LazyWeight(tensor, source, dtype)
    return weights


def read_weights(
    checkpoint: Checkpoint, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, in this dtype; None: as they are stored, or float32 if as no floats.

    Raises what the libraries raise over files that change meanwhile.
    """
    for name, weight in lazy_weights(checkpoint, dtype).items():
        yield name, weight[...]


def read_or_find_weights(
    checkpoint: Checkpoint, dtype: torch.dtype, *, keeps_numbers: bool
) -> Iterator[tuple[str, Tensor | StoredWeight]]:
    """The same, but matrices of codes stay in their file, of whole numbers if `keeps_numbers`.

    Those of which the kernels take no packed form are floats. Floats of a GGUF file, which is not
    mapped, stay there, too: all of them would be in memory twice.
    """
    for name, weight in lazy_weights(checkpoint, dtype).items():
        tensor = checkpoint.tensors[name]
        if stored := find_weight(tensor, keeps_numbers=keeps_numbers):
            yield name, stored
        elif isinstance(tensor, GgufTensor) and len(tensor.shape) == 2:
            yield name, StoredWeight(tensor)
        else:
            yield name, weight[...]


def find_weight(tensor: StoredTensor, *, keeps_numbers: bool) -> StoredWeight | None:
    """What a matrix of codes can be packed as; None for floats, and what is no matrix."""
    if len(tensor.shape) != 2:
        return None
    if isinstance(tensor, QuantizedTensor):
        kind = number_kind(tensor) if keeps_numbers else None
        return StoredWeight(tensor) if kind is None else StoredNumbers(tensor, kind)
    if not isinstance(tensor, GgufTensor) or tensor.dtype in _FLOATS:
        return None
    from engine.core.models.gguf.numbers import NUMBER_TYPES

    known = NUMBER_TYPES.get(tensor.type.name) if keeps_numbers else None
    return StoredWeight(tensor) if known is None else StoredNumbers(tensor, known)
