"""Rotary positions of a GGUF file, in the words of config.json.

Llama 3's are the difficult ones: a file holds a factor for each frequency, `rope_freqs.weight`,
and not the four numbers from which its converter computed them. Those are found again, and must
give every factor that the file has, so nothing is guessed.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from engine.folder.gguf.architectures.places import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from engine.folder.gguf.metadata import Metadata, shortest
from engine.folder.gguf.parts import GgufModel
from engine.folder.model_files import open_file

LOW, HIGH = 1.0, 4.0  # of every model of Llama 3
ORIGINAL_POSITIONS = 8192  # of most of them
MAX_DIFFERENCE = 1e-4  # of a factor, by the rounding to 32 bits and back
_KIND = "{arch}.rope.scaling.type"
_SCALES = ("{arch}.rope.scaling.factor", "{arch}.rope.scale_linear")
_ORIGINAL = "{arch}.rope.scaling.original_context_length"


def rope_parameters(model: GgufModel, metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` of config.json. Raises `UnsupportedModelError` for others than we have."""
    turned = metadata.count("{arch}.rope.dimension_count", head_dim)
    if turned != head_dim:
        metadata.refuse(f"rotates {turned} of the {head_dim} numbers of a head, which we do not")
    return _scaled(model, metadata, head_dim)


def partial_rope(model: GgufModel, metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """The same of a family that may rotate only the first numbers of each head."""
    turned, share = _turned(metadata, head_dim)
    return _scaled(model, metadata, turned) | {"partial_rotary_factor": share}


def yarn_rope(model: GgufModel, metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """The same of a family that has been trained with YaRN."""
    if metadata.text(_KIND) != "yarn":
        return rope_parameters(model, metadata, head_dim)
    if metadata.count("{arch}.rope.dimension_count", head_dim) != head_dim:
        metadata.refuse("rotates a part of each head by YaRN, which is not computed")
    factor = metadata.number(_SCALES[0])
    if factor < 1:
        metadata.refuse_value(_SCALES[0], factor, "must be 1 or more")
    original = metadata.count(_ORIGINAL)
    if not 1 <= original <= 1 << 30:
        metadata.refuse_value(_ORIGINAL, original, "must be a number of positions")
    fast = metadata.number("{arch}.rope.scaling.yarn_beta_fast", 32.0)
    slow = metadata.number("{arch}.rope.scaling.yarn_beta_slow", 1.0)
    if not 0 < slow < fast:
        metadata.refuse(f"scales by YaRN from {slow} to {fast} turns, which is no range")
    return {
        "rope_type": "yarn",
        "rope_theta": _theta(metadata),
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": fast,
        "beta_slow": slow,
    }


def long_rope(model: GgufModel, metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """The same of Phi 3, which has two lists of factors: for short texts, and for long ones."""
    has = [name in model.tensors for name in (SHORT_FACTORS, LONG_FACTORS)]
    if not all(has):
        if any(has):
            metadata.refuse(f"has one of {SHORT_FACTORS} and {LONG_FACTORS}")
        return partial_rope(model, metadata, head_dim)
    if (kind := metadata.text(_KIND)) not in (None, "none", "longrope"):
        metadata.refuse(f"scales its rotary positions by {kind!r}, which is not computed")
    turned, share = _turned(metadata, head_dim)
    short, long = (
        list(_read_factors(model, metadata, turned, name)) for name in (SHORT_FACTORS, LONG_FACTORS)
    )
    return {
        "rope_type": "longrope",
        "rope_theta": _theta(metadata),
        "partial_rotary_factor": share,
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": metadata.count(_ORIGINAL),
        "attention_factor": metadata.number("{arch}.rope.scaling.attn_factor"),
    }


def _scaled(model: GgufModel, metadata: Metadata, turned: int) -> dict[str, Any]:
    theta = _theta(metadata)
    kind = metadata.text(_KIND) or "linear"  # older files have a factor alone
    if kind not in ("none", "linear"):
        metadata.refuse(f"scales its rotary positions by {kind!r}, which is not computed")
    factor = next((metadata.number(key) for key in _SCALES if metadata.has(key)), 1.0)
    is_linear = kind == "linear" and factor not in (0.0, 1.0)
    if ROPE_FACTORS in model.tensors:
        factors = _read_factors(model, metadata, turned, ROPE_FACTORS)
        if any(each != 1 for each in factors):
            if is_linear:
                metadata.refuse("scales its rotary positions in two ways")
            return _llama3(factors, theta, metadata)
    if is_linear:
        if factor < 1:
            metadata.refuse_value(_SCALES[0], factor, "must be 1 or more")
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    return {"rope_type": "default", "rope_theta": theta}


def _turned(metadata: Metadata, head_dim: int) -> tuple[int, float]:
    """How many numbers of each head are rotated, and which part that is."""
    turned = metadata.count("{arch}.rope.dimension_count", head_dim)
    share = turned / head_dim
    if not 2 <= turned <= head_dim or turned % 2 or int(head_dim * share) != turned:
        metadata.refuse(f"rotates {turned} of the {head_dim} numbers of a head")
    return turned, share


def _theta(metadata: Metadata) -> float:
    theta = metadata.number("{arch}.rope.freq_base", 10_000.0)
    if theta <= 0:
        metadata.refuse_value("{arch}.rope.freq_base", theta, "must be above 0")
    return theta


def _read_factors(model: GgufModel, metadata: Metadata, turned: int, name: str) -> Sequence[float]:
    file, tensor = model.tensors[name]
    if tensor.shape != (turned // 2,) or tensor.type.name != "F32":
        problem = f"{name} has the shape {list(tensor.shape)} of {tensor.type.name}"
        metadata.refuse(f"{problem}, not [{turned // 2}] of F32")
    with open_file(file) as stream:
        stream.seek(tensor.start)
        content = stream.read(tensor.num_bytes)
    if len(content) != tensor.num_bytes:
        metadata.refuse("has been cut while it was read")
    factors = struct.unpack(f"<{turned // 2}f", content)
    if not all(math.isfinite(each) and each > 0 for each in factors):
        metadata.refuse(f"{name} must be above 0 and finite")
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
    if metadata.has(_ORIGINAL):
        yield metadata.count(_ORIGINAL)
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
