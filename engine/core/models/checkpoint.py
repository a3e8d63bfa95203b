"""What can be checked of a model folder before torch is imported, so that faults show at once.

`model_files.py` reads the files, `model_config.py` checks the fields, `weight_headers.py` the
headers of the weights, `gguf/headers.py` those of a GGUF file that a folder stands for.
`tokenizer_folder.py` checks what the worker reads.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.core.models.gguf.headers import GgufTensor, read_gguf_headers
from engine.core.models.weight_headers import INDEX, StoredTensor, num_stored_layers, read_headers
from engine.errors import UnsupportedModelError
from engine.folder.gguf.link import read_link
from engine.folder.model_config import (
    check_config,
    check_token_ids,
    num_layers,
    text_config,
    vocab_size,
)
from engine.folder.model_files import read_json


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the files of a folder say, checked."""

    folder: Path
    config: Mapping[str, Any]  # config.json
    tensors: Mapping[str, StoredTensor]  # by name; none if the weights are not needed

    @property
    def config_file(self) -> Path:
        return self.folder / "config.json"

    @property
    def generation_file(self) -> Path:
        return self.folder / "generation_config.json"

    @property
    def weights_file(self) -> Path:
        """The file of the weights, or the index of several; of the parts of a GGUF the first."""
        files = {tensor.file for tensor in self.tensors.values()}
        return min(files) if len(files) == 1 or self.is_gguf else self.folder / INDEX

    @property
    def is_gguf(self) -> bool:
        """Whether the weights are blocks of GGUF files."""
        return any(isinstance(tensor, GgufTensor) for tensor in self.tensors.values())


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
    if needs_weights:
        tensors = read_headers(folder) if link is None else read_gguf_headers(link, config)
    found = Checkpoint(folder, config, tensors)
    _check_layers(found)
    _check_token_ids(found)
    return found


def file_stamps(checkpoint: Checkpoint) -> dict[Path, tuple[int, int]]:
    """The size and the time of the last change (ns) of each file that a model is made of."""
    files = {tensor.file for tensor in checkpoint.tensors.values()}
    files |= {checkpoint.config_file, checkpoint.generation_file, checkpoint.folder / INDEX}
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
