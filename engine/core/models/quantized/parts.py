"""`read_part`: one tensor of a safetensors file, and what is done with all of its numbers.

It is read instead of mapped: of a file that is cut meanwhile a read says so, where a mapping would
end the process. And nobody reads the head of a large file again for each of its tensors.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.folder.weight_headers import StoredTensor

DTYPES = {
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def read_part(tensor: StoredTensor) -> Tensor:
    """Raises `UnsupportedModelError` if the file has become shorter."""
    content = torch.empty(tensor.num_bytes, dtype=torch.uint8)
    left = content.numpy().data
    with tensor.file.open("rb", buffering=0) as stream:
        stream.seek(tensor.start)
        while left:
            num_bytes = stream.readinto(left)
            if not num_bytes:
                problem = "has become shorter while it was read"
                raise UnsupportedModelError(f"{tensor.file}: {problem}")
            left = left[num_bytes:]
    return content.view(DTYPES[tensor.dtype]).view(tensor.shape)


def groups_of(rows: Tensor, group_inputs: int) -> Iterator[tuple[Tensor, slice]]:
    """Views of [num_rows, inputs] as [num_rows, groups, inputs of one], and which groups these are.

    The last group may have fewer inputs than the others, and is a view of its own then.
    """
    num_whole = rows.shape[1] // group_inputs
    first = num_whole * group_inputs
    if num_whole:
        yield rows[:, :first].view(len(rows), num_whole, group_inputs), slice(num_whole)
    if first < rows.shape[1]:
        yield rows[:, None, first:], slice(num_whole, num_whole + 1)


def look_up(table: Tensor, codes: Tensor) -> Tensor:
    """Of each code its value in `table`; many times as fast as indexing with them."""
    return table.index_select(0, codes.reshape(-1).int()).view(codes.shape)
