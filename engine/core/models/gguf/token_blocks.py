"""`TokenBlocks`: embeddings that stay blocks of a GGUF file, in memory as long as there.

A step needs a few rows of them. As floats all would take 2 or 4 bytes a number, where a file of
four bits has 0.56: of a model of 8B that is a gigabyte against three tenths of one.
"""

import torch
from torch import Tensor

from engine.core.models.gguf.headers import GgufTensor
from engine.core.models.gguf.weights import Bytes, numbers_in, read_slabs
from engine.core.tensors import huge_pages


class TokenBlocks:
    """A `TokenTable`. Its rows are the numbers that `read_tensor` gives, of the same dtype."""

    def __init__(self, tensor: GgufTensor, dtype: torch.dtype) -> None:
        """Read the blocks. Raises `UnsupportedModelError` if the file has become shorter."""
        self._type = tensor.type
        blocks = huge_pages.zeros((tensor.num_rows, tensor.row_bytes), torch.uint8)
        self._blocks: Bytes = blocks.numpy()
        # As long as the op wants a table; of its memory only what is written into is ever taken.
        with torch.inference_mode():
            self.window = huge_pages.zeros(tensor.shape, dtype)

        def fill(first: int, rows: Bytes) -> None:
            self._blocks[first : first + len(rows)] = rows

        read_slabs(tensor, fill)

    @property
    def num_bytes(self) -> int:
        return self._blocks.nbytes

    def look_up(self, input_ids: Tensor) -> Tensor:
        """Each token's row once: so they fit into the window, whatever the vocabulary."""
        places: Tensor
        with torch.inference_mode():  # in which the window was made
            ids, places = torch.unique(input_ids, return_inverse=True)
            self.window[: len(ids)] = numbers_in(self._blocks[ids.numpy()], self._type)
        return places
