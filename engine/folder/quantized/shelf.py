"""`Shelf`: the tensors of a checkpoint from which quantized weights are put together."""

import re
from collections.abc import Iterable, Mapping, Sequence

from engine.errors import UnsupportedModelError
from engine.folder.quantized.layouts import Layout, QuantizedTensor
from engine.folder.weight_headers import StoredTensor

SCALES = ("F16", "BF16", "F32")


class Shelf:
    """`tensors` are those that were not taken yet, `found` what was made of the others.

    All methods raise `UnsupportedModelError` for tensors that are missing or of another form.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._all = tensors
        self.tensors = dict(tensors)
        self.found: dict[str, QuantizedTensor] = {}
        self.unused: set[str] = set()  # that change how others compute, and not the weights
        self.zero_biases: set[str] = set()  # which a model may do without

    def names(self, pattern: str) -> list[str]:
        """Of tensors in which this expression is found."""
        return [name for name in self.tensors if re.search(pattern, name)]

    def take(self, name: str) -> StoredTensor | None:
        return self.tensors.pop(name, None)

    def need(self, name: str, whose: str) -> StoredTensor:
        """The tensor `name`, without which `whose` is nothing."""
        found = self.take(name)
        if found is None:
            problem = f"{whose} is there without {name}"
            raise UnsupportedModelError(f"{self._all[whose].file}: {problem}")
        return found

    def leave(self, pattern: str) -> None:
        """Take what is called so, and use it for nothing."""
        for name in self.names(pattern):
            del self.tensors[name]
            self.unused.add(name)

    def put(
        self, name: str, shape: tuple[int, ...], layout: Layout, parts: Mapping[str, StoredTensor]
    ) -> None:
        codes = parts["codes"]
        if name in self.tensors:
            raise UnsupportedModelError(f"{codes.file}: holds {name} as floats and as codes")
        self.found[name] = QuantizedTensor(
            file=codes.file,
            dtype=codes.dtype,
            shape=shape,
            num_bytes=sum(part.num_bytes for part in parts.values()),
            start=codes.start,
            name=name,
            layout=layout,
            parts=parts,
        )


def sizes(name: str, tensor: StoredTensor, count: int = 2) -> tuple[int, ...]:
    """So many of them. Raises `UnsupportedModelError` if there are not, or one is 0."""
    if len(tensor.shape) != count or not all(tensor.shape):
        problem = f"{name} has the shape {list(tensor.shape)}, and must have {count} sizes"
        raise UnsupportedModelError(f"{tensor.file}: {problem}")
    return tensor.shape


def expect(
    name: str, tensor: StoredTensor, dtypes: Sequence[str], shapes: Iterable[tuple[int, ...]]
) -> None:
    """Raise `UnsupportedModelError` unless the tensor is of one of these types and shapes."""
    shapes = list(shapes)
    if tensor.dtype not in dtypes:
        problem = f"{name} is of type {tensor.dtype}, and must be {' or '.join(dtypes)}"
    elif tensor.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        problem = f"{name} has the shape {list(tensor.shape)}, and must have {wanted}"
    else:
        return
    raise UnsupportedModelError(f"{tensor.file}: {problem}")


def read_bytes(tensor: StoredTensor) -> bytes:
    """Those of a small tensor that says something of another one."""
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.start)
        return stream.read(tensor.num_bytes)
