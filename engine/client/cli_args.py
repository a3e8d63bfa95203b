"""Engine arguments as flags of a command line, named as vLLM's: `--max-num-seqs 8`.

A flag gets its kind from the field's type. Of arguments that are known by name only, the default
says the kind; they stay out of `--help`.
"""

import argparse
import json
import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field
from typing import Any, Union, get_args, get_origin

OTHER_FLAGS = {  # besides the name
    "gpu_memory_utilization": "--device-memory-utilization",
    "quantization": "-q",
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "nnodes": "-n",
    "node_rank": "-r",
    "decode_context_parallel_size": "-dcp",
    "prefill_context_parallel_size": "-pcp",
    "data_parallel_size": "-dp",
    "data_parallel_rank": "-dpn",
    "data_parallel_start_rank": "-dpr",
    "data_parallel_size_local": "-dpl",
    "data_parallel_address": "-dpa",
    "data_parallel_rpc_port": "-dpp",
    "data_parallel_backend": "-dpb",
    "data_parallel_hybrid_lb": "-dph",
    "data_parallel_external_lb": "-dpe",
    "data_parallel_multi_port_external_lb": "-dpm",
    "enable_expert_parallel": "-ep",
    "speculative_config": "-sc",
    "diffusion_config": "-dc",
    "compilation_config": "-cc",
    "attention_config": "-ac",
}
MULTIPLIERS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
MULTIPLIERS |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(
    parser: argparse.ArgumentParser,
    fields: Collection[Field[Any]],
    *,
    present: Collection[str],
    choices: Mapping[str, Collection[object]],
) -> None:
    """Add a flag for each field of a dataclass of arguments.

    `present` are the fields that `--help` shows, `choices` the values of those that have a few.
    """
    group = parser.add_argument_group("engine")
    for field in fields:
        options = _kind(field)
        if field.name in choices and "type" in options:
            options["choices"] = [each for each in choices[field.name] if each is not None]
        if field.name not in present:
            options["help"] = argparse.SUPPRESS
        written = field.name.replace("_", "-")
        flags = [f"--{written}", *filter(None, [OTHER_FLAGS.get(field.name)])]
        group.add_argument(*flags, dest=field.name, default=_default(field), **options)
        if "const" in options:
            negated, hidden = f"--no-{written}", argparse.SUPPRESS
            group.add_argument(
                negated, dest=field.name, action="store_const", const=False, help=hidden
            )


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _kind(field: Field[Any]) -> dict[str, Any]:
    """What tells argparse how the value is written."""
    is_union = get_origin(field.type) in (Union, types.UnionType)
    kinds = set(get_args(field.type) if is_union else (field.type,))
    default = _default(field)
    if bool in kinds or (Any in kinds and isinstance(default, bool)):
        return {"action": argparse.BooleanOptionalAction}
    if list[str] in kinds or (Any in kinds and isinstance(default, list | set)):
        return {"type": str, "nargs": "+"}
    if int in kinds:
        return {"type": integer}
    if float in kinds:
        return {"type": _number}
    if str in kinds:
        return {"type": _text}
    return {"type": _anything, "nargs": "?", "const": True}  # it may be a switch


def integer(text: str) -> int | None:
    """A number of tokens or bytes as people write it: 8192, 8k (8,000), 8K (8,192), 1.5m."""
    if text in ("None", "auto"):
        return None
    multiplier = MULTIPLIERS.get(text[-1:])
    if multiplier is None:
        return int(text)
    if text[-1].isupper():
        return int(text[:-1]) * multiplier
    return round(float(text[:-1]) * multiplier)


def _number(text: str) -> float | None:
    return None if text == "None" else float(text)


def _text(text: str) -> str | None:
    return None if text == "None" else text


def _anything(text: str) -> Any:
    """A value of an unknown kind: JSON if it is, else a string."""
    if text == "None":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
