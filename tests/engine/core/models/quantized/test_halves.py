"""Published checkpoints of models that also take pictures or sounds: their text is read as any."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.core.models.checkpoint import check_folder
from engine.core.models.fused.decoder import FusedDecoder
from engine.core.models.modules.general import read_configs
from engine.core.models.modules.text_half import thinking_config
from tests.engine.core.models.quantized.test_answers import check_equal, packed_layers
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.published.formats import (
    FORMATS,
    WEIGHTS,
    Published,
    change,
    write,
)
from tests.engine.helpers.published.writers import Tensors, fp8
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = torch.tensor(0.5)
# As Qwen publishes Qwen2.5-VL, and Mistral its models since Ministral 3.
QWEN = replace(
    FORMATS["awq"], config={**FORMATS["awq"].config, "modules_to_not_convert": ["visual"]}
)
MISTRAL = Published(
    fp8("weight_scale_inv", None, activation_scale=ONE),
    {
        "quant_method": "fp8",
        "activation_scheme": "static",
        "dequantize": False,
        "weight_block_size": None,
        "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
    },
)
# As Red Hat publishes Mistral Small 3.
RED_HAT = replace(
    FORMATS["compressed, fp8"],
    config={
        **FORMATS["compressed, fp8"].config,
        "ignore": ["re:.*lm_head", "re:multi_modal_projector.*", "re:vision_tower.*"],
    },
)


def publish(
    model_type: str, published: Published, to: Path, besides: str = "", **fields: Any
) -> tuple[Path, Path]:
    return write(build_family(to / "whole", model_type, **fields), to, published, None, besides)


HALVES = [
    ("qwen2_5_vl", QWEN, "visual"),
    ("mistral3", MISTRAL, "vision_tower"),
    ("mistral3", RED_HAT, "vision_tower"),
    ("gemma3", FORMATS["compressed, 4 bits"], "vision_tower"),
    ("llava", FORMATS["gptq, biases of zeros"], "vision_tower"),
    ("qwen3_vl", FORMATS["nf4"], ""),  # its tower as well
]


@needs_kernels
@pytest.mark.parametrize(("model_type", "published", "tower"), HALVES)
def test_the_text_of_a_quantized_whole_is_that_of_its_formula(
    model_type: str, published: Published, tower: str, tmp_path: Path
) -> None:
    folders = publish(model_type, published, tmp_path, tower)
    engine = check_equal(folders, dtype="float32")
    assert engine.runner.loaded.is_half


def of_this_generation(tensors: Tensors) -> None:
    """The model's own names, which hub repositories know nothing of."""
    for name in list(tensors):
        if name.startswith("model.layers"):
            own_name = name.replace("model.layers", "model.language_model.layers")
            tensors[own_name] = tensors.pop(name)


@needs_kernels
@pytest.mark.parametrize("is_old", [True, False])
def test_numbers_of_a_half_stay_numbers_in_the_fused_decoder(is_old: bool, tmp_path: Path) -> None:
    published, floats = publish("qwen2_5_vl", QWEN, tmp_path, "visual")
    names = load_file(published / WEIGHTS)
    assert "model.layers.0.mlp.up_proj.qweight" in names
    if not is_old:
        change(published, of_this_generation)
    fused = SteppedEngine(published).runner.loaded.fused
    assert isinstance(fused, FusedDecoder)
    weights = fused.weights
    assert [stack.formats for stack in weights.stacks] == [("int4_parts",)] * 4
    expected = load_file(floats / WEIGHTS)["model.layers.1.mlp.down_proj.weight"]
    found = weights.down.unpack(1)[: expected.shape[0], : expected.shape[1]]
    assert (found - expected).abs().max() < 1e-3 * expected.abs().max()


@needs_kernels
def test_numbers_of_a_half_stay_numbers_in_modules_of_transformers(tmp_path: Path) -> None:
    published, _ = publish("gemma3", FORMATS["awq"], tmp_path, "vision_tower")
    layers = packed_layers(SteppedEngine(published))
    assert len(layers) == 4 * 7
    assert {layer.format for layer in layers.values()} == {"int4_parts"}


@pytest.mark.parametrize("place", ["whole", "thinker", "text"])
def test_what_a_speaking_model_says_of_quantization_counts_wherever_it_stands(
    place: str, tmp_path: Path
) -> None:
    published, floats = publish("qwen2_5_omni_thinker", FORMATS["awq"], tmp_path, "visual")
    for folder in (published, floats):
        file = folder / "config.json"
        thinker = json.loads(file.read_text())
        said = thinker.pop("quantization_config", None)
        config = {"model_type": "qwen2_5_omni", "thinker_config": thinker}
        places = {"whole": config, "thinker": thinker, "text": thinker["text_config"]}
        if said is not None:
            places[place]["quantization_config"] = said
        file.write_text(json.dumps(config))
        change(folder, add_thinker)
    checkpoint = check_folder(published)
    assert checkpoint.quantization is not None and checkpoint.quantization.method == "awq"
    whole, text = read_configs(checkpoint)
    assert whole is thinking_config(whole)
    for part in (whole, text):
        assert not hasattr(part, "quantization_config")
    assert "quantization_config" not in json.dumps(dict(checkpoint.config))
    engine = SteppedEngine(published)
    assert engine.runner.loaded.is_half


def add_thinker(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[f"thinker.{name}"] = tensors.pop(name)
