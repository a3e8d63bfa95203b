"""An adapter's folder: both files, read once, and what its tensors are to the modules of a model.

The folder comes from others. Only regular files are opened, never through a link, and none that is
longer than an adapter of this model can be. What is hashed is what is used: the same bytes.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from engine.core.models.lora.peft_config import AdapterError, PeftConfig, parse_config
from engine.errors import UnsupportedModelError
from engine.folder.model_files import decode, describe, parse_object
from engine.lora import ADAPTER_FILES, MAX_ADAPTER_BYTES

CONFIG, WEIGHTS = ADAPTER_FILES
MAX_HEADER_BYTES = 16 << 20  # of the weights: names and shapes
PREFIX = "base_model.model."  # of a tensor's name, in front of the module's
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MATRICES = {".lora_A.weight": 0, ".lora_B.weight": 1}

Shapes = Mapping[str, tuple[int, int]]  # of modules by name: outputs, inputs


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a module: up @ down, in float32."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank], with the scale in it


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A whole adapter, checked against the model."""

    modules: dict[str, LowRank]
    content_hash: str  # SHA-256 of both files, in hex


def read_adapter(folder: Path, shapes: Shapes, max_rank: int) -> AdapterWeights:
    """Read and check. `shapes` are of the modules that may be adapted.

    Raises `AdapterError`, which names the file.
    """
    config_bytes = _read(folder / CONFIG, MAX_ADAPTER_BYTES[CONFIG])
    num_weights = sum(max_rank * sum(shape) for shape in shapes.values())
    weights_bytes = _read(folder / WEIGHTS, MAX_HEADER_BYTES + 4 * num_weights)
    with _naming(folder / CONFIG):
        text = decode(folder / CONFIG, config_bytes)
        config = parse_config(parse_object(folder / CONFIG, text), max_rank)
    with _naming(folder / WEIGHTS):
        modules = _fit(_pairs(_parse(weights_bytes)), config, shapes)
    digest = hashlib.sha256(len(config_bytes).to_bytes(8, "little"))
    digest.update(config_bytes)
    digest.update(weights_bytes)
    return AdapterWeights(modules, digest.hexdigest())


class _naming:
    """Puts the name of a file in front of what is wrong with it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AdapterError):
            raise AdapterError(f"{self._file}: {error}") from None
        if isinstance(error, UnsupportedModelError):  # names it itself
            raise AdapterError(str(error)) from None


def _read(file: Path, max_bytes: int) -> bytes:
    try:
        # Without waiting for the other end of a pipe, should it be one.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        problem = "is a link" if file.is_symlink() else f"cannot be read: {error.strerror}"
        raise AdapterError(f"{file}: {problem}") from None
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AdapterError(f"{file}: is no regular file")
        if status.st_size > max_bytes:
            problem = f"has {status.st_size} bytes, such a file has at most {max_bytes}"
            raise AdapterError(f"{file}: {problem}")
        return stream.read(max_bytes)


def _parse(content: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # broken files fail in many ways
        raise AdapterError(f"is no whole safetensors file: {describe(error)}") from None


def _pairs(tensors: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """Both matrices of each module, of those that have both."""
    pairs: dict[str, list[Tensor | None]] = {}
    for name, tensor in sorted(tensors.items()):
        end = next((end for end in _MATRICES if name.endswith(end)), None)
        if end is None:
            raise AdapterError(f"{name} is not implemented")
        if not name.startswith(PREFIX):
            raise AdapterError(f"{name} does not begin with {PREFIX}")
        module = name.removeprefix(PREFIX).removesuffix(end)
        pairs.setdefault(module, [None, None])[_MATRICES[end]] = tensor
    whole: dict[str, list[Tensor]] = {}
    for module, matrices in pairs.items():
        whole[module] = [matrix for matrix in matrices if matrix is not None]
        if len(whole[module]) < len(matrices):
            raise AdapterError(f"{module} has one matrix of two")
    if not whole:
        raise AdapterError("has no weights")
    return whole


def _fit(
    pairs: Mapping[str, list[Tensor]], config: PeftConfig, shapes: Shapes
) -> dict[str, LowRank]:
    for module in shapes:
        if config.targets and not config.is_partial and config.names(module):
            if module not in pairs:
                raise AdapterError(f"lacks {module}, which target_modules names")
    modules: dict[str, LowRank] = {}
    for module, (down, up) in pairs.items():
        if module not in shapes:
            raise AdapterError(f"the model has no layer {module} that can be adapted")
        if not config.names(module):
            raise AdapterError(f"has {module}, which target_modules does not name")
        modules[module] = _low_rank(module, down, up, config, shapes[module])
    return modules


def _low_rank(
    module: str, down: Tensor, up: Tensor, config: PeftConfig, shape: tuple[int, int]
) -> LowRank:
    rank, (num_outputs, num_inputs) = config.rank_of(module), shape
    for name, matrix, wanted in (
        ("lora_A", down, (rank, num_inputs)),
        ("lora_B", up, (num_outputs, rank)),
    ):
        if matrix.dtype not in DTYPES:
            raise AdapterError(f"{module}: {name} has the dtype {matrix.dtype}")
        if tuple(matrix.shape) != wanted:
            problem = f"{name} has the shape {tuple(matrix.shape)}, not {wanted}"
            raise AdapterError(f"{module}: {problem}")
    scaled = up.float() * config.scale_of(module)
    for name, matrix in (("lora_A", down), ("lora_B", scaled)):
        if not bool(matrix.isfinite().all()):
            raise AdapterError(f"{module}: {name} has a number that is NaN or infinite")
    return LowRank(down.float().contiguous(), scaled)
