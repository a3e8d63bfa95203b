"""The tensors of a GGUF file under the names that a checkpoint gives them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.gguf.architectures.places import NO_WEIGHTS, Form, Place
from engine.folder.gguf.architectures.table import places
from engine.folder.gguf.head import TensorInfo
from engine.folder.gguf.link import GgufLink
from engine.folder.gguf.parts import read_parts
from engine.folder.gguf.tensors import num_interleaved_heads
from engine.folder.gguf.types import READABLE, BlockType
from engine.folder.weight_headers import StoredTensor


@dataclass(frozen=True, slots=True)
class GgufTensor(StoredTensor):
    """One tensor of blocks. `dtype` is the name of its type in ggml, F16 as well as Q4_K."""

    name: str  # in a checkpoint
    type: BlockType
    num_interleaved_heads: int  # whose rows are in another order than in a checkpoint; 0: none are

    @property
    def num_rows(self) -> int:
        """A vector is one row."""
        return self.num_bytes // self.row_bytes

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.shape[-1])


@dataclass(frozen=True, slots=True)
class FormedTensor(GgufTensor):
    """A parameter that is made of one or two tensors of the file, which lie there in other forms.

    What it is as a `GgufTensor` is that of the first, but for its name and shape.
    """

    parts: tuple[tuple[Form, GgufTensor], ...]


def read_gguf_headers(link: GgufLink, config: Mapping[str, Any]) -> dict[str, GgufTensor]:
    """What the files hold, by the names of a checkpoint. Raises `UnsupportedModelError`.

    `config` is the config.json that was made of them.
    """
    wanted = places(config)
    found: dict[str, GgufTensor] = {}
    formed: dict[str, list[tuple[Place, GgufTensor]]] = {}
    for name, (file, info) in read_parts(link.files, with_arrays=False).tensors.items():
        if name in NO_WEIGHTS:  # config.json says what they stand for
            continue
        place = wanted.get(name)
        if place is None or info.shape != place.shape or info.type.name not in READABLE:
            raise UnsupportedModelError(f"{file}: {name!r} is no weight that we know")
        tensor = _tensor(file, info, place.name, num_interleaved_heads(name, config))
        if place.form is Form.WHOLE:
            found[place.name] = tensor
        elif place.form is Form.EACH_ROW:
            for row in rows_of(tensor):
                found[row.name] = row
        else:
            formed.setdefault(place.name, []).append((place, tensor))
    for own, parts in formed.items():
        found[own] = _join(own, parts)
    return found


def rows_of(tensor: GgufTensor) -> Iterator[GgufTensor]:
    """Each as a vector; the tensor's name has a place for its number."""
    for index in range(tensor.num_rows):
        yield replace(
            tensor,
            name=tensor.name.format(index),
            shape=tensor.shape[1:],
            start=tensor.start + index * tensor.row_bytes,
            num_bytes=tensor.row_bytes,
        )


def pieces_of(tensor: GgufTensor, num_rows: int) -> Iterator[tuple[int, GgufTensor]]:
    """So many rows of a matrix after the other, with the number of the first of them.

    All at once, if they lie in another order than in a checkpoint.
    """
    if isinstance(tensor, FormedTensor) or tensor.num_interleaved_heads:
        yield 0, tensor
        return
    for first in range(0, tensor.num_rows, num_rows):
        count = min(num_rows, tensor.num_rows - first)
        yield (
            first,
            replace(
                tensor,
                shape=(count, tensor.shape[1]),
                start=tensor.start + first * tensor.row_bytes,
                num_bytes=count * tensor.row_bytes,
            ),
        )


def matrices_of(tensor: GgufTensor) -> Iterator[GgufTensor]:
    """Those of the last two dimensions, one after another."""
    count = math.prod(tensor.shape[:-2])
    for index in range(count):
        num_bytes = tensor.num_bytes // count
        start = tensor.start + index * num_bytes
        yield replace(tensor, shape=tensor.shape[-2:], start=start, num_bytes=num_bytes)


def _tensor(file: Path, info: TensorInfo, name: str, num_heads: int) -> GgufTensor:
    return GgufTensor(
        file=file,
        dtype=info.type.name,
        shape=info.shape,
        num_bytes=info.num_bytes,
        name=name,
        type=info.type,
        start=info.start,
        num_interleaved_heads=num_heads,
    )


def _join(name: str, parts: list[tuple[Place, GgufTensor]]) -> FormedTensor:
    place, first = parts[0]
    return FormedTensor(
        file=first.file,
        dtype=first.dtype,
        shape=place.parameter_shape,
        num_bytes=sum(tensor.num_bytes for _, tensor in parts),
        name=name,
        type=first.type,
        start=first.start,
        num_interleaved_heads=0,
        parts=tuple((place.form, tensor) for place, tensor in parts),
    )
