"""The weights of GGUF files as numbers; `numbers.py` reads their codes.

`read_tensor` computes what the blocks stand for, slab by slab in threads, so that nothing is in
memory twice: by the `gguf` package, which is ggml's own description of its formats, and is
imported here alone. It reads the slabs instead of mapping them: of a file that is cut meanwhile, a
read says so, where a mapping would end the process.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import torch
from torch import Tensor

from engine.core.models.gguf.headers import FormedTensor, GgufTensor, matrices_of
from engine.errors import UnsupportedModelError
from engine.folder.gguf.architectures.places import Form
from engine.folder.gguf.types import BlockType

SLAB_NUMBERS = 1 << 20  # 4 MB of float32
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def row_order(tensor: GgufTensor) -> Tensor | None:
    """[num_rows] int64: the row of the file that is each row of a checkpoint; None if all are."""
    num_heads = tensor.num_interleaved_heads
    if not num_heads:
        return None
    rows = torch.arange(tensor.num_rows).view(num_heads, -1, 2)
    return rows.transpose(1, 2).reshape(-1)


def read_tensor(tensor: GgufTensor, dtype: torch.dtype) -> Tensor:
    """Its numbers, of its shape. Raises `UnsupportedModelError` if the file has become shorter."""
    if isinstance(tensor, FormedTensor):
        return _read_formed(tensor, dtype)
    numbers = torch.empty(tensor.num_rows, tensor.shape[-1], dtype=dtype)

    def fill(first: int, blocks: Bytes) -> None:
        numbers[first : first + len(blocks)].copy_(numbers_in(blocks, tensor.type))

    read_slabs(tensor, fill)
    order = row_order(tensor)
    if order is not None:
        numbers = numbers[order]
    return numbers.view(tensor.shape)


def _read_formed(tensor: FormedTensor, dtype: torch.dtype) -> Tensor:
    """Matrix after matrix, so that only one of them is in memory twice."""
    numbers = torch.empty(tensor.shape, dtype=dtype)
    for form, part in tensor.parts:
        if form is Form.LESS_ONE:
            numbers.copy_(read_tensor(part, torch.float32) - 1)
        elif len(part.shape) < 3:
            _view(numbers, form).copy_(read_tensor(part, dtype))
        else:
            for matrix, one in zip(_view(numbers, form), matrices_of(part), strict=True):
                matrix.copy_(read_tensor(one, dtype))
    return numbers


def _view(numbers: Tensor, form: Form) -> Tensor:
    """What of a parameter a tensor of the file is, in the order that it has there."""
    match form:
        case Form.FIRST:
            return numbers[:, : numbers.shape[1] // 2]
        case Form.SECOND:
            return numbers[:, numbers.shape[1] // 2 :]
        case Form.EVEN | Form.ODD:
            columns = numbers[..., int(form is Form.ODD) :: 2]
            return columns if columns.dim() == 2 else columns.transpose(1, 2)
        case Form.TURNED:
            return numbers.transpose(-1, -2)
        case Form.ONE_ROW:
            return numbers[0]
    return numbers


def read_slabs(tensor: GgufTensor, fill: Callable[[int, Bytes], None]) -> None:
    """Call `fill` with some rows of blocks, [count, row_bytes], and the number of the first.

    It is called in several threads at once, until it has had all rows. Raises what it raises, and
    `UnsupportedModelError` if the file has become shorter.
    """
    slab_rows = max(1, SLAB_NUMBERS // tensor.shape[-1])
    slabs = range(0, tensor.num_rows, slab_rows)
    is_inference = torch.is_inference_mode_enabled()  # is of a thread, and what it makes is, too
    with tensor.file.open("rb", buffering=0) as stream:

        def read(first: int) -> None:
            count = min(slab_rows, tensor.num_rows - first)
            with torch.inference_mode(is_inference):
                fill(first, _read_rows(stream.fileno(), tensor, first, count))

        if len(slabs) == 1:
            read(0)
        else:
            with ThreadPoolExecutor(min(len(slabs), torch.get_num_threads())) as pool:
                deque(pool.map(read, slabs), maxlen=0)  # raises what one of them has raised


def _read_rows(descriptor: int, tensor: GgufTensor, first: int, count: int) -> Bytes:
    """Rows of blocks, [count, row_bytes]."""
    rows = np.empty((count, tensor.row_bytes), np.uint8)
    left, place = rows.reshape(-1).data, tensor.start + first * tensor.row_bytes
    while left:
        num_bytes = os.preadv(descriptor, [left], place)
        if not num_bytes:
            raise UnsupportedModelError(f"{tensor.file}: has become shorter while it was read")
        left, place = left[num_bytes:], place + num_bytes
    return rows


def numbers_in(rows: Bytes, type_: BlockType) -> Tensor:
    """What rows of blocks stand for, as the floats that they are, or as float32."""
    if (dtype := _FLOATS.get(type_.name)) is not None:
        return torch.from_numpy(rows).view(dtype)
    with np.errstate(all="ignore"):  # what is not finite shows in the trial of answers
        return torch.from_numpy(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[type_.name]))
