"""`zeros`: memory that is read from end to end, in huge pages where the system has such.

Weights are read in each step, and so are keys and values. In pages of 4 KiB the system is asked for
a page, and the processor for its place, five hundred times as often.
"""

import math
import mmap

import torch
from torch import Tensor


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory is taken page by page when it is first used, which `torch.zeros` would not do.

    Raises MemoryError if the system refuses so much at once.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_bytes} bytes: {error}") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without them
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)
