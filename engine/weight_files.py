"""What the weight files of a checkpoint hold, and whether a model has taken all of it.

transformers leaves out what it has no place for, and turns numbers of any kind into the model's
own, with a warning at most. But scales that nobody multiplies with, or a layer too many, make
another model of it, whose text is wrong. So what was not taken is refused by name, unless it is
known to change nothing.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.checkpoint import UnsupportedModelError

FLOATS = frozenset(("F64", "F32", "F16", "BF16"))  # as safetensors names them
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # as safetensors itself allows

# What no text depends on, and why. transformers adds, family by family, what it leaves out on
# purpose: towers for pictures that a model of text alone has no use for, and the like.
HARMLESS = (
    r"rotary_emb\.(original_)?inv_freq$",  # computed from the config
    r"\b(attn|attention|self_attn)\.(masked_)?bias$",  # the triangle of a causal mask, and -1e9
    r"\b(position|token_type)_ids$",  # 0, 1, 2 and so on, or zeros
    r"\b(en|de)coder\.version$",  # fairseq's number of its own format
    r"\bnum_batches_tracked$",  # how long batch norms were trained
    r"(^|\.)mtp(_|\.)",  # heads that guess the tokens behind the next one
)
_SCALES = re.compile(r"scale|zero_point|qzeros|qweight|absmax|amax|quant|packed", re.IGNORECASE)

Header = dict[str, dict[str, Any]]  # of each tensor: dtype, shape, data_offsets


def read_headers(folder: Path) -> dict[str, Header]:
    """The tensors of each file that is loaded; what cannot be read is left for the loader."""
    return {name: header for name in _names(folder) if (header := _read_header(folder / name))}


def check_dtypes(folder: Path, headers: Mapping[str, Header]) -> None:
    """Refuse 8-bit and other quantized numbers, for which the config names nobody who reads them.

    They would be taken for the weights themselves. Raises UnsupportedModelError.
    """
    for file, header in sorted(headers.items()):
        for name, tensor in sorted(header.items()):
            dtype = tensor.get("dtype")
            if dtype not in FLOATS and not is_harmless(name):
                raise UnsupportedModelError(
                    f"{folder / file}: {name} is of type {dtype}, and config.json does not say "
                    "how its weights were quantized; take the checkpoint in bfloat16 or float16"
                )


def check_all_taken(
    folder: Path, headers: Mapping[str, Header], unexpected: Iterable[str], config: Any
) -> None:
    """Refuse a checkpoint of whose tensors the model left out `unexpected`, unless harmless.

    Raises UnsupportedModelError.
    """
    left = sorted(
        name for name in unexpected if not is_harmless(name) and not _guesses_ahead(name, config)
    )
    if not left:
        return
    scales = [name for name in left if _SCALES.search(name)]
    first = (scales or left)[0]
    reason = f"is it of the type {config.model_type}, of {config.num_hidden_layers} layers?"
    if scales:
        reason = "scales that nobody applies; take the checkpoint in bfloat16 or float16"
    others = f" and {len(left) - 1} others" if len(left) > 1 else ""
    raise UnsupportedModelError(
        f"{folder / _file_of(first, headers)} holds what the model does not take, "
        f"{first}{others}: {reason}"
    )


def is_harmless(name: str) -> bool:
    """Whether no text depends on a tensor of this name that a model has no place for."""
    return any(re.search(pattern, name) for pattern in HARMLESS)


def _guesses_ahead(name: str, config: Any) -> bool:
    """Whether this is of one of the layers behind the last that only guess further tokens."""
    number = re.search(r"\blayers\.(\d+)\.", name)
    num_layers: int = config.num_hidden_layers
    num_guessing = getattr(config, "num_nextn_predict_layers", None) or 0
    return number is not None and 0 <= int(number[1]) - num_layers < num_guessing


def _names(folder: Path) -> list[str]:
    """The files that are loaded: one, or those of the index."""
    if (folder / SINGLE_FILE).exists():
        return [SINGLE_FILE]
    try:
        places = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
        return sorted({str(name) for name in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _read_header(file: Path) -> Header:
    """Of a safetensors file: 8 bytes of length, little end first, and so much JSON."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, MAX_HEADER_BYTES)))
    except (OSError, ValueError):
        return {}
    if not isinstance(header, dict):
        return {}
    tensors = {name: value for name, value in header.items() if isinstance(value, dict)}
    tensors.pop("__metadata__", None)
    return tensors


def _file_of(name: str, headers: Mapping[str, Header]) -> str:
    """Where a tensor lies, which the model may call by a longer or a shorter name."""
    for file, header in headers.items():
        if any(f".{name}".endswith(f".{own}") or own.endswith(f".{name}") for own in header):
            return file
    return next(iter(headers), "")
