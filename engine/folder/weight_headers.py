"""What the weights of a folder say of themselves: the headers of its safetensors files.

They are read and checked before torch is imported and before anything is allocated: names, types,
shapes, and that each tensor lies in its file, beside the others.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.model_files import decode, exists, open_file, parse_object, read_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
MAX_HEADER_BYTES = 100_000_000  # that of the safetensors library
MAX_DIMENSIONS = 16
_LENGTH_BYTES = 8  # of the header's length, in front of it
_BITS = (
    {name: 8 for name in ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0")}
    | {name: 8 for name in ("F8_E4M3FNUZ", "F8_E5M2FNUZ")}
    | {name: 16 for name in ("I16", "U16", "F16", "BF16")}
    | {name: 32 for name in ("I32", "U32", "F32")}
    | {name: 64 for name in ("I64", "U64", "F64", "C64")}
    | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
)
_NUMBERED = re.compile(r"^(.*?)\.?(\d+)\.")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its file describes it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    start: int  # in its file

    @property
    def files(self) -> frozenset[Path]:
        """All that it is read from."""
        return frozenset((self.file,))


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """The tensors that transformers will find in a folder, by name. Raises UnsupportedModelError.

    Those are of `model.safetensors`, or of the files that its index names.
    """
    weights, index = folder / WEIGHTS, folder / INDEX
    if exists(weights):
        return _read_header(weights)
    names = read_json(index)
    if names is None:
        _refuse_without_weights(folder)
    assert names is not None
    return _read_shards(index, _weight_map(index, names))


def num_stored_layers(names: Iterable[str]) -> int:
    """How many layers tensors of these names belong to; 0 if the names have no numbers."""
    highest: dict[str, int] = {}
    for name in names:
        if found := _NUMBERED.match(name):
            highest[found[1]] = max(highest.get(found[1], -1), int(found[2][:9]))
    return max(highest.values(), default=-1) + 1


def _refuse_without_weights(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        problem = f"there are safetensors, but neither {WEIGHTS} nor {INDEX}"
        raise UnsupportedModelError(f"{folder}: {problem}")
    if any(file for pattern in PICKLED for file in folder.glob(pattern)):
        raise UnsupportedModelError(f"{folder} has only pickled weights; safetensors are needed")
    raise UnsupportedModelError(f"{folder} has no safetensors; {WEIGHTS} is missing")


def _weight_map(index: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Tensor → file, each of this folder."""
    found = content.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise UnsupportedModelError(f"{index}: weight_map must be an object, tensor → file")
    metadata = content.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise UnsupportedModelError(f"{index}: metadata must be an object")
    for tensor, name in found.items():
        if not isinstance(name, str) or not name.endswith(".safetensors"):
            problem = f"weight_map names {name!r} for {tensor}, which is no safetensors file"
            raise UnsupportedModelError(f"{index}: {problem}")
        if Path(name).name != name or "\0" in name:
            problem = f"weight_map names {name!r} for {tensor}, outside this folder"
            raise UnsupportedModelError(f"{index}: {problem}")
    return found


def _read_shards(index: Path, weight_map: Mapping[str, str]) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for name in sorted(set(weight_map.values())):
        file = index.with_name(name)
        if not exists(file):
            raise UnsupportedModelError(f"{file}: is missing; {INDEX} names it")
        for tensor, found in _read_header(file).items():
            if tensor in stored:
                problem = f"holds {tensor}, as {stored[tensor].file.name} does"
                raise UnsupportedModelError(f"{file}: {problem}")
            stored[tensor] = found
    for tensor, name in weight_map.items():
        if tensor not in stored or stored[tensor].file.name != name:
            problem = f"lacks {tensor}, which {INDEX} says it holds"
            raise UnsupportedModelError(f"{index.with_name(name)}: {problem}")
    return stored


def _read_header(file: Path) -> dict[str, StoredTensor]:
    size = file.stat().st_size
    with open_file(file) as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            problem = f"is cut, or no safetensors file: it has {size} bytes, its header {length}"
            raise UnsupportedModelError(f"{file}: {problem}")
        if length > MAX_HEADER_BYTES:
            problem = f"has a header of {length} bytes, the most is {MAX_HEADER_BYTES}"
            raise UnsupportedModelError(f"{file}: {problem}")
        header = parse_object(file, decode(file, stream.read(length)))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise UnsupportedModelError(f"{file}: __metadata__ must be an object of texts")
    first = _LENGTH_BYTES + length
    places: list[tuple[int, int, str]] = []
    stored: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        tensor = stored[name] = _read_entry(file, name, entry, first, size)
        places.append((tensor.start, tensor.start + tensor.num_bytes, name))
    _check_places(file, sorted(places), first, size)
    return stored


def _read_entry(file: Path, name: str, entry: Any, first: int, size: int) -> StoredTensor:
    """`first` is the byte at which the tensors begin, `size` that of the file."""
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise UnsupportedModelError(f"{file}: {name} has the dtype {dtype!r}, which is unknown")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise UnsupportedModelError(f"{file}: {name} has the shape {shape!r}, which is none")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UnsupportedModelError(f"{file}: {name} has the data_offsets {offsets!r}")
    start, end = offsets
    if first + end > size:
        problem = f"is cut: {name} ends at byte {end} of {size - first}"
        raise UnsupportedModelError(f"{file}: {problem}")
    if math.prod(shape) * _BITS[dtype] != 8 * (end - start):
        problem = f"{name} has the shape {shape} of {dtype}, but {end - start} bytes"
        raise UnsupportedModelError(f"{file}: {problem}")
    return StoredTensor(file, dtype, tuple(shape), end - start, first + start)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 63 for value in values
    )


def _check_places(file: Path, places: list[tuple[int, int, str]], first: int, size: int) -> None:
    """Check that they follow each other without a gap, as the library requires."""
    reached = first
    for start, end, name in places:
        if start != reached:
            problem = "overlaps another tensor" if start < reached else "has a gap before it"
            raise UnsupportedModelError(f"{file}: {name} {problem}, at byte {start - first}")
        reached = end
    if reached != size:
        problem = f"holds {size - first} bytes of weights, its header describes {reached - first}"
        raise UnsupportedModelError(f"{file}: {problem}")
