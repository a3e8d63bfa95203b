"""LoRA adapters in PEFT's format for tiny models, and the model that one makes of another.

PEFT itself is not needed: an adapter is two files, and merged with a model it is `weight + scale *
up @ down`, which is the oracle.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.pytorch_utils import Conv1D

from tests.engine.helpers.family_models import auto_class

ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def build_adapter(
    folder: Path,
    model: Path,
    targets: Sequence[str] = ALL_TARGETS,
    *,
    seed: int = 1,
    rank: int = 4,
    alpha: float = 8,
    dtype: torch.dtype = torch.float32,
    size: float = 0.3,
    **config: Any,
) -> Path:
    """Write a random adapter for the layers of a model's folder with these ends of names.

    `size` is that of its numbers: large enough to change every answer. `config` adds to
    adapter_config.json.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, layer in _layers(_load(model)).items():
        if name.split(".")[-1] not in targets:
            continue
        num_outputs, num_inputs = _shape(layer)
        down = torch.randn((rank, num_inputs), generator=generator) * size
        up = torch.randn((num_outputs, rank), generator=generator) * size
        tensors[f"{PREFIX}{name}.lora_A.weight"] = down.to(dtype)
        tensors[f"{PREFIX}{name}.lora_B.weight"] = up.to(dtype)
    content: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "anything",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "bias": "none",
        "target_modules": list(targets),
        "modules_to_save": None,
        "use_rslora": False,
        "inference_mode": True,
    }
    write_adapter(folder, content | config, tensors)
    return folder


def write_adapter(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")


def merged_model(model: Path, adapter: Path) -> Any:
    """transformers' float32 model with the adapter in its weights."""
    merged = _load(model, dtype=torch.float32).eval()
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, layer in _layers(merged).items():
        down = tensors.get(f"{PREFIX}{name}.lora_A.weight")
        if down is None:
            continue
        up = tensors[f"{PREFIX}{name}.lora_B.weight"]
        delta = _scale(config, name, len(down)) * (up.float() @ down.float())
        with torch.no_grad():
            layer.weight += delta.T if isinstance(layer, Conv1D) else delta
    return merged


def _load(folder: Path, **options: Any) -> Any:
    kind = auto_class(AutoConfig.from_pretrained(folder).model_type)
    return kind.from_pretrained(folder, **options)


def greedy(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The likeliest tokens after a prompt, without a cache; end-of-text does not end it."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def _scale(config: dict[str, Any], name: str, rank: int) -> float:
    patterns: dict[str, float] = config.get("alpha_pattern") or {}
    alpha = next((a for end, a in patterns.items() if name.endswith(end)), config["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _layers(model: Any) -> dict[str, Any]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }


def _shape(layer: Any) -> tuple[int, int]:
    first, second = layer.weight.shape
    return (second, first) if isinstance(layer, Conv1D) else (first, second)
