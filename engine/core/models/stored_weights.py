"""`read_weights`: the weights of a checkpoint one after another, whatever files they lie in."""

from collections.abc import Iterator

import torch
from safetensors import safe_open
from torch import Tensor

from engine.core.models.checkpoint import Checkpoint
from engine.core.models.gguf.headers import GgufTensor


def read_weights(
    checkpoint: Checkpoint, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, in this dtype; None: as they are stored, or float32 if as no numbers.

    Raises what the libraries raise over files that change meanwhile.
    """
    for file in sorted({tensor.file for tensor in checkpoint.tensors.values()}):
        names = [name for name, tensor in checkpoint.tensors.items() if tensor.file == file]
        blocks = [tensor for tensor in map(checkpoint.tensors.get, names)]
        if isinstance(blocks[0], GgufTensor):
            from engine.core.models.gguf.weights import read_tensor  # for no other format

            for name in names:
                tensor = checkpoint.tensors[name]
                assert isinstance(tensor, GgufTensor)
                yield name, read_tensor(tensor, dtype or torch.float32)
            continue
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():
                weight: Tensor = stored.get_tensor(name)
                yield name, weight if dtype is None else weight.to(dtype)
