"""Tiny checkpoints as each tool publishes them: `config.json`, names and layouts are the tools'.

`write` makes both folders: the published one and its twin in floats.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.engine.helpers.published.writers import (
    Tensors,
    Writer,
    awq,
    bnb_int8,
    fp8,
    gptq,
    mxfp4,
    of_table,
    packed,
    whole,
    with_zero_biases,
)

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Published:
    """How one tool writes weights, and what it says in config.json."""

    write: Writer
    config: Mapping[str, Any]
    file: str = "config.json"  # or another, whose whole content that is then
    names: str = "_proj.weight"  # how those end that it quantizes
    others: Tensors = field(default_factory=dict)


def compressed(format: str, activations: Any = None, **weights: Any) -> dict[str, Any]:
    """llm-compressor's config."""
    scheme = {"dynamic": False, "observer": "minmax", "symmetric": True, "block_structure": None}
    group = {
        "targets": ["Linear"],
        "weights": scheme | {"actorder": None, "group_size": None} | weights,
        "input_activations": activations,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": 1.5,
    }


def _gptq_config(**fields: Any) -> dict[str, Any]:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    return (
        config | {"checkpoint_format": "gptq", "true_sequential": True, "lm_head": False} | fields
    )


_AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
_INT4: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel"}
_FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel"}
_BNB4: dict[str, Any] = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_quant_storage": "uint8",
}
_ONE = torch.tensor(0.5)
_CACHE = {f"model.layers.{i}.self_attn.{name}_scale": _ONE for i in range(3) for name in "kv"}
_MODELOPT_CACHE = {
    f"model.layers.{i}.self_attn.{name}_proj.{name}_scale": _ONE for i in range(3) for name in "kv"
}

FORMATS: dict[str, Published] = {
    "awq": Published(awq(32), _AWQ | {"group_size": 32, "modules_to_not_convert": None}),
    "awq, one group": Published(awq(None), _AWQ | {"group_size": -1}),
    "gptq": Published(gptq(4, 64, is_symmetric=True), _gptq_config(group_size=64)),
    "gptq, biases of zeros": Published(
        with_zero_biases(gptq(4, 32, is_symmetric=True)),
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False},
    ),
    "gptq, zero points": Published(gptq(4, 32), _gptq_config(sym=False)),
    "gptq_v2, zero points": Published(
        gptq(4, 16, version=2),
        _gptq_config(sym=False, checkpoint_format="gptq_v2", group_size=16),
    ),
    "gptq, 8 bits": Published(gptq(8, 32, is_symmetric=True), _gptq_config(bits=8)),
    "gptq, 8 bits, zero points": Published(gptq(8, None), _gptq_config(bits=8, group_size=-1)),
    "gptq, desc_act": Published(gptq(4, 32, shuffled=True), _gptq_config(desc_act=True)),
    "compressed, 4 bits": Published(
        packed(4, 32, is_symmetric=True), compressed("pack-quantized", **_INT4)
    ),
    "compressed, 4 bits, zero points": Published(
        packed(4, 32), compressed("pack-quantized", **_INT4 | {"symmetric": False})
    ),
    "compressed, 4 bits, channels": Published(
        packed(4, None, is_symmetric=True),
        compressed("pack-quantized", **_INT4 | {"strategy": "channel", "group_size": None}),
    ),
    "compressed, 4 bits, own order": Published(
        packed(4, 32, is_symmetric=True, shuffled=True),
        compressed("pack-quantized", **_INT4 | {"actorder": "group"}),
    ),
    "compressed, 8 bits": Published(
        whole(is_symmetric=True), compressed("int-quantized", {"num_bits": 8}, **_INT8)
    ),
    "compressed, 8 bits, zero points": Published(
        whole(), compressed("int-quantized", **_INT8 | {"symmetric": False})
    ),
    "compressed, fp8": Published(
        fp8("weight_scale", (1, 0)), compressed("float-quantized", {"num_bits": 8}, **_FLOAT8)
    ),
    "compressed, fp8, one scale": Published(
        fp8("weight_scale", None, input_scale=_ONE),
        compressed("float-quantized", {"num_bits": 8}, **_FLOAT8 | {"strategy": "tensor"})
        | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        others=_CACHE,
    ),
    "fp8, blocks": Published(
        fp8("weight_scale_inv", (48, 32)),
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [48, 32],
        },
    ),
    "fp8, one scale": Published(
        fp8("weight_scale", None, input_scale=_ONE),
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    ),
    "fbgemm": Published(
        fp8("weight_scale", (1, 0)),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    ),
    "modelopt": Published(
        fp8("weight_scale", None, input_scale=_ONE),
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8}},
        others=_MODELOPT_CACHE,
    ),
    "modelopt, a file of its own": Published(
        fp8("weight_scale", None, input_scale=_ONE),
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
        "hf_quant_config.json",
    ),
    "mxfp4": Published(mxfp4, {"quant_method": "mxfp4"}, names="_proj"),
    "nf4": Published(of_table(is_nested=False), _BNB4),
    "nf4, nested": Published(of_table(is_nested=True), _BNB4 | {"bnb_4bit_use_double_quant": True}),
    "bitsandbytes, 8 bits": Published(
        bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}
    ),
}


def write(
    original: Path, to: Path, published: Published, names: str | None = None, besides: str = ""
) -> tuple[Path, Path]:
    """The checkpoint as published, and the same in float32. Tensors lie in one file.

    Weights whose names begin with `besides` are quantized by nobody.
    """
    quantized, floats = to / "published", to / "floats"
    for folder in (quantized, floats):
        shutil.copytree(original, folder)
    stored, meant = dict(published.others), {}
    for name, weight in load_file(original / WEIGHTS).items():
        stored[name] = meant[name] = weight
        is_left = besides and name.startswith(besides)
        if name.endswith(names or published.names) and not is_left:
            tensors, meant[name] = published.write(name.removesuffix(".weight"), weight)
            stored = {other: kept for other, kept in stored.items() if other != name} | tensors
    stored = {name: tensor.clone() for name, tensor in stored.items()}  # a file shares none
    save_file(stored, quantized / WEIGHTS, {"format": "pt"})
    save_file(meant, floats / WEIGHTS, {"format": "pt"})
    if published.file == "config.json":
        declare(quantized, published.config)
    else:
        (quantized / published.file).write_text(json.dumps(published.config))
    return quantized, floats


def declare(folder: Path, quantization: Any, **fields: Any) -> None:
    """Write `quantization_config` into config.json."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {"quantization_config": quantization} | fields
    file.write_text(json.dumps(config))


def change(folder: Path, edit: Callable[[Tensors], object]) -> None:
    """Rewrite the tensors of a folder."""
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def split(folder: Path) -> None:
    """Let every second tensor lie in another file."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        part = {name: tensors[name] for name in tensors if places[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
