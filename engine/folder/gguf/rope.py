"""Rotary positions of a GGUF file, in the words of config.json.

Llama 3's are the difficult ones: a file holds a factor for each frequency, `rope_freqs.weight`,
and not the four numbers from which its converter computed them. Those are found again, and must
give every factor that the file has, so nothing is guessed.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from engine.folder.gguf.metadata import Metadata, shortest
from engine.folder.gguf.parts import GgufModel
from engine.folder.gguf.tensors import ROPE_FACTORS
from engine.folder.model_files import open_file

LOW, HIGH = 1.0, 4.0  # of every model of Llama 3
ORIGINAL_POSITIONS = 8192  # of most of them
MAX_DIFFERENCE = 1e-4  # of a factor, by the rounding to 32 bits and back
_SCALES = ("{arch}.rope.scaling.factor", "{arch}.rope.scale_linear")


def rope_parameters(model: GgufModel, metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` of config.json. Raises `UnsupportedModelError` for others than we have."""
    turned = metadata.count("{arch}.rope.dimension_count", head_dim)
    if turned != head_dim:
        metadata.refuse(f"rotates {turned} of the {head_dim} numbers of a head, which we do not")
    theta = metadata.number("{arch}.rope.freq_base", 10_000.0)
    if theta <= 0:
        metadata.refuse_value("{arch}.rope.freq_base", theta, "must be above 0")
    kind = metadata.text("{arch}.rope.scaling.type") or "linear"  # older files have a factor alone
    if kind not in ("none", "linear"):
        metadata.refuse(f"scales its rotary positions by {kind!r}, which is not computed")
    factor = next((metadata.number(key) for key in _SCALES if metadata.has(key)), 1.0)
    is_linear = kind == "linear" and factor not in (0.0, 1.0)
    if ROPE_FACTORS in model.tensors:
        factors = _read_factors(model, metadata, head_dim)
        if any(each != 1 for each in factors):
            if is_linear:
                metadata.refuse("scales its rotary positions in two ways")
            return _llama3(factors, theta, metadata)
    if is_linear:
        if factor < 1:
            metadata.refuse_value(_SCALES[0], factor, "must be 1 or more")
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    return {"rope_type": "default", "rope_theta": theta}


def _read_factors(model: GgufModel, metadata: Metadata, head_dim: int) -> Sequence[float]:
    file, tensor = model.tensors[ROPE_FACTORS]
    if tensor.shape != (head_dim // 2,) or tensor.type.name != "F32":
        problem = f"{ROPE_FACTORS} has the shape {list(tensor.shape)} of {tensor.type.name}"
        metadata.refuse(f"{problem}, not [{head_dim // 2}] of F32")
    with open_file(file) as stream:
        stream.seek(tensor.start)
        content = stream.read(tensor.num_bytes)
    if len(content) != tensor.num_bytes:
        metadata.refuse("has been cut while it was read")
    factors = struct.unpack(f"<{head_dim // 2}f", content)
    if not all(math.isfinite(each) and each > 0 for each in factors):
        metadata.refuse(f"{ROPE_FACTORS} must be above 0 and finite")
    return factors


def _llama3(factors: Sequence[float], theta: float, metadata: Metadata) -> dict[str, Any]:
    factor = shortest(max(factors))
    for original in _possible_positions(metadata):
        given = _llama3_factors(len(factors), theta, factor, original)
        pairs = zip(given, factors, strict=True)
        if all(abs(one - other) <= MAX_DIFFERENCE * other for one, other in pairs):
            return {
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": factor,
                "low_freq_factor": LOW,
                "high_freq_factor": HIGH,
                "original_max_position_embeddings": original,
            }
    metadata.refuse(f"{ROPE_FACTORS} has factors that are not those of Llama 3")


def _possible_positions(metadata: Metadata) -> Iterator[int]:
    key = "{arch}.rope.scaling.original_context_length"
    if metadata.has(key):
        yield metadata.count(key)
    yield ORIGINAL_POSITIONS
    yield from (1 << exponent for exponent in range(6, 21))


def _llama3_factors(count: int, theta: float, factor: float, original: int) -> list[float]:
    """By how much each frequency is divided, as the converter of llama.cpp computes it."""
    factors = []
    for index in range(count):
        length = 2 * math.pi * theta ** (index / count)  # of a whole turn, in positions
        if length < original / HIGH:
            factors.append(1.0)
        elif length > original / LOW:
            factors.append(factor)
        else:
            share = (original / length - LOW) / (HIGH - LOW)
            factors.append(1 / ((1 - share) / factor + share))
    return factors
