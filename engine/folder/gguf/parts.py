"""`read_parts`: a model that lies in one GGUF file, or in several that were split from one.

A part says its number and how many there are; all are beside each other, named
`NAME-00001-of-00003.gguf`. The first one has the metadata, and each the tensors that it holds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UnsupportedModelError
from engine.folder.gguf.head import Head, TensorInfo, Value, read_head
from engine.folder.model_files import exists

SUFFIX = ".gguf"
MAX_PARTS = 1000
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.I | re.S)
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class GgufModel:
    """All of a model's parts as one."""

    files: tuple[Path, ...]
    metadata: Mapping[str, Value]
    tensors: Mapping[str, tuple[Path, TensorInfo]]

    @property
    def file(self) -> Path:
        """The one that has the metadata."""
        return self.files[0]


def part_name(name: str) -> tuple[str, int, int] | None:
    """Of a part's file name what all parts share, its number from 1 and how many there are."""
    found = _PART.fullmatch(name)
    return None if found is None else (found["name"], int(found["number"]), int(found["count"]))


def part_files(file: Path) -> tuple[Path, ...]:
    """All parts of what this file is one of; itself if its name is not that of a part.

    Raises `UnsupportedModelError` for one that is missing.
    """
    found = part_name(file.name)
    if found is None:
        return (file,)
    name, number, count = found
    if not 1 <= number <= count <= MAX_PARTS:
        raise UnsupportedModelError(f"{file}: is named as part {number} of {count}")
    suffix = file.name[-len(SUFFIX) :]
    files = tuple(
        file.with_name(f"{name}-{each:05d}-of-{count:05d}{suffix}") for each in range(1, count + 1)
    )
    for each in files:
        if not exists(each):
            raise UnsupportedModelError(f"{each}: is missing, one of the {count} parts of a model")
    return files


def read_parts(files: tuple[Path, ...], *, with_arrays: bool = True) -> GgufModel:
    """Their heads as one. Raises `UnsupportedModelError` unless they are all of one model."""
    heads = [
        read_head(file, with_arrays=with_arrays and number == 0)
        for number, file in enumerate(files)
    ]
    tensors: dict[str, tuple[Path, TensorInfo]] = {}
    for number, head in enumerate(heads):
        _check_part(head, number, len(files))
        for name, tensor in head.tensors.items():
            if name in tensors:
                problem = f"holds {name!r}, as {tensors[name][0].name} does"
                raise UnsupportedModelError(f"{head.file}: {problem}")
            tensors[name] = (head.file, tensor)
    said = heads[0].metadata.get(_TENSORS)
    if said is not None and said != len(tensors):
        problem = f"{_TENSORS} is {said}, the parts hold {len(tensors)}"
        raise UnsupportedModelError(f"{files[0]}: {problem}")
    return GgufModel(files, heads[0].metadata, tensors)


def _check_part(head: Head, number: int, count: int) -> None:
    said_count, said_number = head.metadata.get(_COUNT, 0), head.metadata.get(_NUMBER, 0)
    if count == 1 and said_count in (0, 1) and said_number == 0:
        return
    if count == 1:
        problem = f"is a part of {said_count}; parts are named NAME-00001-of-0000N{SUFFIX}"
        raise UnsupportedModelError(f"{head.file}: {problem}")
    if (said_count, said_number) != (count, number):
        problem = f"is named as part {number + 1} of {count}, and says {_NUMBER} {said_number}"
        raise UnsupportedModelError(f"{head.file}: {problem}, {_COUNT} {said_count}")
