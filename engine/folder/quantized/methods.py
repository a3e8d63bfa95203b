"""`find_quantized`: the weights that a checkpoint holds as codes and scales, put together.

Nothing is read here but headers, and a few bytes that say what a weight is like. What is not known
in every detail is refused: codes that are taken for something else answer gibberish.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.model_config import parts_of
from engine.folder.model_files import read_json
from engine.folder.quantized.declaration import Declaration
from engine.folder.quantized.formats.awq import find_awq
from engine.folder.quantized.formats.bitsandbytes import find_bitsandbytes
from engine.folder.quantized.formats.compressed import find_compressed
from engine.folder.quantized.formats.fp8 import find_fbgemm, find_fp8, find_modelopt
from engine.folder.quantized.formats.gptq import find_gptq
from engine.folder.quantized.formats.mxfp4 import find_mxfp4
from engine.folder.quantized.shelf import Shelf
from engine.folder.weight_headers import StoredTensor

FIELD = "quantization_config"
MODELOPT_FILE = "hf_quant_config.json"  # of ModelOpt, in the place of that field
METHODS: Mapping[str, Callable[[Declaration, Shelf], None]] = {
    "awq": find_awq,
    "gptq": find_gptq,
    "compressed-tensors": find_compressed,
    "fp8": find_fp8,
    "fbgemm_fp8": find_fbgemm,
    "modelopt": find_modelopt,
    "mxfp4": find_mxfp4,
    "bitsandbytes": find_bitsandbytes,
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """What others have quantized in a checkpoint."""

    method: str
    tensors: Mapping[str, StoredTensor]  # of all weights
    num_weights: int  # that are quantized
    num_unused: int  # scales of activations, keys and values
    zero_biases: frozenset[str]  # which a model may do without


def find_quantized(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> Quantization | None:
    """None if nothing says that weights are quantized. Raises `UnsupportedModelError`.

    `config` is config.json, `tensors` what the files hold.
    """
    declared = _declaration(folder, config)
    if declared is None:
        return None
    method = declared.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        known = ", ".join(METHODS)
        raise declared.wrong("quant_method", f"must be one of {known}: no other is read here")
    shelf = Shelf(tensors)
    METHODS[method](declared, shelf)
    if not shelf.found:
        problem = f"says that its weights are quantized by {method!r}, but none of them is"
        raise UnsupportedModelError(f"{declared.file}: {problem}")
    found = {**shelf.tensors, **shelf.found}
    zero_biases = frozenset(shelf.zero_biases)
    return Quantization(method, found, len(shelf.found), len(shelf.unused), zero_biases)


def _declaration(folder: Path, config: Mapping[str, Any]) -> Declaration | None:
    for part in parts_of(config):
        if part.get(FIELD):
            return Declaration(folder / "config.json", part[FIELD])
    said = read_json(folder / MODELOPT_FILE)
    if said is None:
        return None
    return Declaration(folder / MODELOPT_FILE, {**said, "quant_method": "modelopt"}, "")
