"""What a checkpoint in Hugging Face's form is, by config.json and the names of its files.

Where its weights are quantized, the heads of these are read as well, and checked as for loading.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.caches.families import family_problem
from engine.folder.caches.found import Found, reason
from engine.folder.caches.local_model import LocalModel
from engine.folder.model_config import POSITIONS, check_config, parts_of, text_config
from engine.folder.model_files import exists, open_file, read_json
from engine.folder.quantized.methods import FIELD, MODELOPT_FILE, find_quantized
from engine.folder.weight_headers import INDEX, WEIGHTS, read_headers

MAX_HEADER_BYTES = 16 << 20  # that is read here, for the type of the weights alone
TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def describe_checkpoint(found: Found, size: int) -> LocalModel:
    """Never raises for what a file holds: that is the problem of the model."""
    files = found.folder or {}
    config: dict[str, Any] = {}
    problem = found.problem
    try:
        config = _config(files)
        problem = problem or family_problem(config) or _missing(files)
        if problem is None and _method(files, config) is not None:
            find_quantized(found.path, config, read_headers(found.path))
    except UnsupportedModelError as error:
        problem = problem or _named(error, found)
    context = [text_config(config).get(name) for name in POSITIONS[:2]]
    family = config.get("model_type")
    return LocalModel(
        found.name,
        _format(files, config),
        size,
        architecture=family if isinstance(family, str) else None,
        context_length=next((each for each in context if type(each) is int and each > 0), None),
        problem=problem,
    )


def _config(files: Mapping[str, Path]) -> dict[str, Any]:
    file = files.get("config.json")
    config = None if file is None else read_json(file)
    if file is None or config is None:
        raise UnsupportedModelError("it has no config.json")
    check_config(file, config)
    return config


def _missing(files: Mapping[str, Path]) -> str | None:
    """Which file is, if there is one."""
    if WEIGHTS not in files:
        index = None if INDEX not in files else read_json(files[INDEX])
        if index is None:
            return f"{WEIGHTS} is missing"
        named = index.get("weight_map")
        if not isinstance(named, dict):
            return f"{INDEX}: weight_map must be an object, tensor → file"
        missing = {str(name) for name in named.values()} - files.keys()
        if missing:
            return f"{len(missing)} files of its weights are missing, first {min(missing)}"
    if not any(all(name in files for name in names) for names in TOKENIZERS):
        return "tokenizer.json is missing"
    return None


def _method(files: Mapping[str, Path], config: Mapping[str, Any]) -> str | None:
    """By which weights are quantized; empty if it has no name, and None if they are not."""
    for part in parts_of(config):
        if declared := part.get(FIELD):
            method = declared.get("quant_method")
            return method if isinstance(method, str) else ""
    return "modelopt" if MODELOPT_FILE in files else None


def _format(files: Mapping[str, Path], config: Mapping[str, Any]) -> str:
    weights = sorted(name for name in files if name.endswith(".safetensors"))
    if not weights:
        return ""
    if method := _method(files, config):
        return f"safetensors {method}"
    text = text_config(config)
    said = text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")
    kind = said if isinstance(said, str) else _stored_type(files[weights[0]])
    return f"safetensors {kind.removeprefix('torch.')}".strip()


def _stored_type(file: Path) -> str:
    """That of most tensors of a safetensors file; empty if it is unknown."""
    try:
        exists(file)
        with open_file(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if length <= MAX_HEADER_BYTES else {}
    except (UnsupportedModelError, OSError, ValueError, RecursionError):
        return ""
    entries = header.values() if isinstance(header, dict) else ()
    kinds = Counter(str(each.get("dtype")) for each in entries if isinstance(each, dict))
    kinds.pop("None", None)  # of the metadata
    most = max(kinds, key=lambda kind: kinds[kind], default="")
    return _TYPES.get(most, most)


def _named(error: Exception, found: Found) -> str:
    """The line with the name of a file in the place of its path, or that of its blob."""
    for name, file in (found.folder or {}).items():
        for place in (file, found.path / name):
            if (text := reason(error, place)) != str(error):
                return f"{name}: {text}"
    return str(error)
