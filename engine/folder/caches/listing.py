"""`list_models`: all models that lie in the caches of this machine, each with what it is.

Nothing but heads and configurations is read, so fifty models take a second or two. Each model
of a cache is shown, or left out with a line; none raises.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from engine.errors import one_line
from engine.folder.caches.checkpoint_description import describe_checkpoint
from engine.folder.caches.found import Found, name_problem
from engine.folder.caches.gguf_description import describe_gguf
from engine.folder.caches.local_model import LocalModel
from engine.folder.caches.names import all_models


def list_models() -> tuple[list[LocalModel], list[str]]:
    """The models by cache and name, and lines on what was left out."""
    notes: list[str] = []
    models = [_describe(found) for found in all_models(notes)]
    for index, model in enumerate(models):
        if model.problem is not None:
            models[index] = replace(model, problem=one_line(model.problem))
    return models, [one_line(note) for note in notes]


def _describe(found: Found) -> LocalModel:
    size = _size(_files(found))
    if problem := name_problem(found.name):
        return LocalModel(found.name, "", size, problem=problem)
    if found.folder is None and (found.problem is not None or not found.gguf):
        kind = "GGUF" if found.gguf else ""
        return LocalModel(found.name, kind, size, problem=found.problem)
    describe = describe_gguf if found.folder is None else describe_checkpoint
    try:
        return describe(found, size)
    except OSError as error:  # a disk that fails, or a file that is deleted meanwhile
        return LocalModel(found.name, "", size, problem=f"cannot be read: {error.strerror}")


def _files(found: Found) -> Iterable[Path]:
    """Those of its weights, each once."""
    folder = found.folder or {}
    weights = (path for name, path in folder.items() if name.endswith(".safetensors"))
    return {*found.gguf, *weights}


def _size(files: Iterable[Path]) -> int:
    size = 0
    for file in files:
        try:
            size += file.stat().st_size
        except OSError:  # it is gone meanwhile
            continue
    return size
