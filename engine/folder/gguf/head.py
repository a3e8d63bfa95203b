"""`read_head`: what a GGUF file says of itself, in front of its weights.

The file comes from others, so nothing in it is believed: every count and length is held against
the bytes that are there before anything is made of that size, and every tensor must lie in the
file, beside the others. The reader of the `gguf` package trusts them. Each fault is one line.

Only as much is read as the head has. The rest of the file is never touched here, and nothing is
mapped: a file that is cut meanwhile would otherwise end the process.
"""

import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from engine.errors import UnsupportedModelError
from engine.folder.gguf.types import BLOCK_TYPES, BlockType
from engine.folder.model_files import exists, open_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17  # the largest models have some thousands
MAX_KEY_BYTES = (1 << 16) - 1  # as the format has it
MAX_NAME_BYTES = 255  # of a tensor; the format allows 64
MAX_TEXTS = 1 << 22  # in arrays: a large vocabulary has 300,000 tokens and twice as many merges
# A head is read in pieces, each up to here; that of the largest vocabularies has 20 MB.
READ_BYTES = (16 << 20, 64 << 20, 256 << 20)

# An array of any numbers: `array` names one kind of them in its type, and a file has each.
Value = bool | int | float | str | list[str] | array  # type: ignore[type-arg]

_BOOL, _TEXT, _ARRAY = 7, 8, 9
_NUMBERS = {  # type → how struct and array name it
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    10: "Q",
    11: "q",
    12: "d",
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {number: struct.Struct(f"<{code}") for number, code in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor, and where in its file it lies."""

    name: str
    type: BlockType
    shape: tuple[int, ...]  # the last is that of a row, as in torch; the file has it first
    start: int  # in the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Head:
    """What stands in front of the weights, checked."""

    file: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]


def read_head(file: Path, *, with_arrays: bool = True) -> Head:
    """Read and check it. Without arrays these are skipped, which is quicker.

    Raises `UnsupportedModelError`, also if there is no such file.
    """
    if not exists(file):
        raise UnsupportedModelError(f"{file}: is missing")
    with open_file(file) as stream:
        size = file.stat().st_size
        content = b""
        for limit in READ_BYTES:
            content += stream.read(limit - len(content))
            try:
                return _HeadParser(file, content, size, with_arrays).parse()
            except _ContentEnds:
                if len(content) < limit:
                    raise UnsupportedModelError(
                        f"{file}: is cut: its {len(content)} bytes end in its head"
                    ) from None
    raise UnsupportedModelError(f"{file}: its head has more than {READ_BYTES[-1]} bytes")


class _ContentEnds(Exception):
    """The head goes on after what was read of it."""


class _HeadParser:
    """Goes through the bytes from the front; each method takes what it returns."""

    def __init__(self, file: Path, content: bytes, file_size: int, with_arrays: bool) -> None:
        self._file = file
        self._content = content
        self._size = file_size
        self._with_arrays = with_arrays
        self._at = 0
        self._num_texts = 0

    def parse(self) -> Head:
        num_tensors, num_keys = self._counts()
        metadata: dict[str, Value] = {}
        seen: set[str] = set()
        for _ in range(num_keys):
            key = self._text("a key", MAX_KEY_BYTES)
            if key in seen:
                self._refuse(f"gives {key!r} two values")
            seen.add(key)
            value = self._value(key)
            if value is not None:
                metadata[key] = value
        infos: dict[str, tuple[BlockType, tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._text("the name of a tensor", MAX_NAME_BYTES)
            if name in infos:
                self._refuse(f"holds {name!r} twice")
            infos[name] = self._tensor(name)
        alignment = self._alignment(metadata)
        first = -(-self._at // alignment) * alignment
        tensors = {
            name: TensorInfo(name, kind, shape, first + offset, num_bytes)
            for name, (kind, shape, offset, num_bytes) in infos.items()
        }
        self._check_places(tensors, alignment)
        return Head(self._file, metadata, tensors)

    def _counts(self) -> tuple[int, int]:
        """Of tensors and of keys."""
        if self._content[: len(MAGIC)] != MAGIC:
            self._refuse("is no GGUF file: it does not begin with GGUF")
        self._at = len(MAGIC)
        version = self._number(_U32)
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                self._refuse("is big-endian; take the file for other machines")
            self._refuse(f"is of version {version} of the format; those read here are 2 and 3")
        num_tensors, num_keys = self._number(_U64), self._number(_U64)
        if num_tensors > MAX_TENSORS:
            self._refuse(f"says that it has {num_tensors} tensors; the most is {MAX_TENSORS}")
        if num_keys > MAX_KEYS:
            self._refuse(f"says that it has {num_keys} keys; the most is {MAX_KEYS}")
        return num_tensors, num_keys

    def _value(self, key: str) -> Value | None:
        """None for an array that is skipped."""
        kind = self._number(_U32)
        if kind != _ARRAY:
            return self._scalar(key, kind)
        kind, count = self._number(_U32), self._number(_U64)
        if kind == _TEXT:
            return self._texts(key, count)
        if kind == _ARRAY:
            self._refuse(f"{key} holds arrays of arrays")
        code = "B" if kind == _BOOL else _NUMBERS.get(kind)
        if code is None:
            self._refuse(f"{key} is of the type {kind}, which is unknown")
        numbers = array(code)
        start = self._take(key, count * numbers.itemsize)
        if not self._with_arrays:
            return None
        numbers.frombytes(self._content[start : self._at])
        return numbers

    def _scalar(self, key: str, kind: int) -> Value:
        if kind == _TEXT:
            return self._text(key, self._size)
        if kind == _BOOL:
            flag = self._content[self._take(key, 1)]
            if flag > 1:
                self._refuse(f"{key} is neither true nor false, but {flag}")
            return bool(flag)
        if kind not in _SCALARS:
            self._refuse(f"{key} is of the type {kind}, which is unknown")
        number: int | float = _SCALARS[kind].unpack_from(
            self._content, self._take(key, _SCALARS[kind].size)
        )[0]
        return number

    def _texts(self, key: str, count: int) -> list[str] | None:
        self._num_texts += count
        if count * _U64.size > self._size - self._at:
            self._refuse(f"is cut, or {key} lies: it says that it holds {count} texts")
        if self._num_texts > MAX_TEXTS:
            self._refuse(f"{key} holds {count} texts, which no vocabulary has")
        content, end, at, unpack = self._content, len(self._content), self._at, _U64.unpack_from
        found: list[bytes] = []
        keep = found.append if self._with_arrays else None
        try:
            for _ in range(count):  # some hundred thousand times
                start = at + 8
                at = start + unpack(content, at)[0]
                if at > end:
                    break
                if keep is not None:
                    keep(content[start:at])
        except struct.error:
            raise _ContentEnds from None
        if at > end:
            self._at = start
            self._take(key, at - start)
        self._at = at
        if not self._with_arrays:
            return None
        return [self._decode(key, each) for each in found]

    def _tensor(self, name: str) -> tuple[BlockType, tuple[int, ...], int, int]:
        """Type, shape, offset in the weights, and bytes."""
        num_dimensions = self._number(_U32)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self._refuse(f"{name} has {num_dimensions} dimensions; there are 1 to 4")
        sizes = [self._number(_U64) for _ in range(num_dimensions)]
        if not all(sizes) or math.prod(sizes) >= 1 << 63:
            self._refuse(f"{name} has the shape {sizes}, which is none")
        number = self._number(_U32)
        kind = BLOCK_TYPES.get(number)
        if kind is None:
            self._refuse(f"{name} is of the type {number}, which is unknown")
        if sizes[0] % kind.block_size:
            self._refuse(f"{name} has rows of {sizes[0]}, no whole blocks of {kind.name}")
        num_bytes = kind.row_bytes(sizes[0]) * math.prod(sizes[1:])
        return kind, tuple(reversed(sizes)), self._number(_U64), num_bytes

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT:
            self._refuse(f"general.alignment is {alignment!r}")
        if alignment & (alignment - 1):
            self._refuse(f"general.alignment is {alignment}, no power of two")
        return alignment

    def _check_places(self, tensors: Mapping[str, TensorInfo], alignment: int) -> None:
        reached, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda each: each.start):
            if tensor.start % alignment:
                self._refuse(f"{tensor.name} begins at byte {tensor.start}, which is not aligned")
            if tensor.start < reached:
                self._refuse(f"{tensor.name} overlaps {before}, at byte {tensor.start}")
            reached, before = tensor.start + tensor.num_bytes, tensor.name
            if reached > self._size:
                self._refuse(f"is cut: {before} ends at byte {reached} of {self._size}")

    def _text(self, what: str, max_bytes: int) -> str:
        length = self._number(_U64)
        if length > max_bytes:
            self._refuse(f"{what} says that it has {length} bytes")
        start = self._take(what, length)
        return self._decode(what, self._content[start : self._at])

    def _decode(self, what: str, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError:
            if what.startswith("general."):  # who made it, and the like, which nobody reads
                return text.decode(errors="replace")
            self._refuse(f"{what} is not UTF-8")

    def _number(self, form: struct.Struct) -> int:
        number: int = form.unpack_from(self._content, self._take("a number", form.size))[0]
        return number

    def _take(self, what: str, num_bytes: int) -> int:
        """Where they begin."""
        start, end = self._at, self._at + num_bytes
        if end > self._size:
            self._refuse(f"is cut: {what} would end at byte {end} of {self._size}")
        if end > len(self._content):
            raise _ContentEnds
        self._at = end
        return start

    def _refuse(self, problem: str) -> NoReturn:
        raise UnsupportedModelError(f"{self._file}: {problem}")
