"""What can be checked of a model folder before torch is imported, so that faults show at once.

`model_files.py` reads the files, `model_config.py` checks the fields, `weight_headers.py` the
headers of the weights, `gguf/headers.py` those of a GGUF file that a folder stands for, and
`quantized/methods.py` puts weights together that lie there as codes and scales.
`tokenizer_folder.py` checks what the worker reads.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.core.models.gguf.headers import GgufTensor, read_gguf_headers
from engine.errors import UnsupportedModelError
from engine.folder.gguf.link import read_link
from engine.folder.model_config import (
    PARTS,
    check_config,
    check_token_ids,
    num_layers,
    text_config,
    vocab_size,
)
from engine.folder.model_files import read_json
from engine.folder.quantized.methods import FIELD, Quantization, find_quantized
from engine.folder.weight_headers import INDEX, StoredTensor, num_stored_layers, read_headers


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the files of a folder say, checked."""

    folder: Path
    config: Mapping[str, Any]  # config.json, without what it says of quantization
    tensors: Mapping[str, StoredTensor]  # by name; none if the weights are not needed
    quantization: Quantization | None = None  # of whose weights each is one of `tensors`

    @property
    def config_file(self) -> Path:
        return self.folder / "config.json"

    @property
    def generation_file(self) -> Path:
        return self.folder / "generation_config.json"

    @property
    def weights_file(self) -> Path:
        """The file of the weights, or the index of several; of the parts of a GGUF the first."""
        files = self.weight_files
        return min(files) if len(files) == 1 or self.is_gguf else self.folder / INDEX

    @property
    def weight_files(self) -> frozenset[Path]:
        """All of them."""
        return frozenset().union(*(tensor.files for tensor in self.tensors.values()))

    @property
    def zero_biases(self) -> frozenset[str]:
        """Tensors that a model may do without, as they add nothing."""
        return frozenset() if self.quantization is None else self.quantization.zero_biases

    @property
    def is_gguf(self) -> bool:
        """Whether the weights are blocks of GGUF files."""
        return any(isinstance(tensor, GgufTensor) for tensor in self.tensors.values())

    @property
    def is_of_codes(self) -> bool:
        """Whether weights may be codes of few bits, which kernels round to as they multiply."""
        return self.is_gguf or self.quantization is not None


def check_folder(folder: Path, *, needs_weights: bool = True) -> Checkpoint:
    """Raise `UnsupportedModelError` unless this is a Hugging Face folder that we may load."""
    if not folder.is_dir():
        raise UnsupportedModelError(f"{folder} is not a folder")
    file = folder / "config.json"
    config = read_json(file)
    if config is None:
        raise UnsupportedModelError(f"{folder} has no config.json")
    check_config(file, config)
    link = read_link(folder)
    tensors: Mapping[str, StoredTensor] = {}
    quantization = None
    if needs_weights:
        tensors = read_headers(folder) if link is None else read_gguf_headers(link, config)
        if link is None and (quantization := find_quantized(folder, config, tensors)):
            tensors = quantization.tensors
    found = Checkpoint(folder, _of_floats(config), tensors, quantization)
    _check_layers(found)
    _check_token_ids(found)
    return found


def file_stamps(checkpoint: Checkpoint) -> dict[Path, tuple[int, int]]:
    """The size and the time of the last change (ns) of each file that a model is made of."""
    files = checkpoint.weight_files | {
        checkpoint.config_file,
        checkpoint.generation_file,
        checkpoint.folder / INDEX,
    }
    stamps = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            found = file.stat()
            stamps[file] = (found.st_size, found.st_mtime_ns)
    return stamps


def check_unchanged(checkpoint: Checkpoint, stamps: Mapping[Path, tuple[int, int]]) -> None:
    """Raise `UnsupportedModelError` unless the files are those of which these are `file_stamps`."""
    found = file_stamps(checkpoint)
    for file in sorted(found.keys() | stamps.keys()):
        if found.get(file) != stamps.get(file):
            deed = "has changed" if file in found else "is gone"
            raise UnsupportedModelError(f"{file}: {deed} since the engine core was started")


def _of_floats(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json as if nobody had quantized the weights."""
    return {
        name: _of_floats(value) if name in PARTS and isinstance(value, dict) else value
        for name, value in config.items()
        if name != FIELD
    }


def _check_token_ids(checkpoint: Checkpoint) -> None:
    """Those of both files. Random weights never end an answer, whatever the ids are."""
    limit = vocab_size(checkpoint.config) if checkpoint.tensors else None
    check_token_ids(checkpoint.config_file, text_config(checkpoint.config), limit)
    check_token_ids(checkpoint.config_file, checkpoint.config, limit)
    if (generation := read_json(checkpoint.generation_file)) is not None:
        check_token_ids(checkpoint.generation_file, generation, limit)


def _check_layers(checkpoint: Checkpoint) -> None:
    """Before anything is made for each layer that config.json promises."""
    stored, said = num_stored_layers(checkpoint.tensors), num_layers(checkpoint.config)
    if said is not None and 0 < stored < said[1]:
        problem = f"{said[0]} is {said[1]}, the weights hold {stored}"
        raise UnsupportedModelError(f"{checkpoint.config_file}: {problem}")
