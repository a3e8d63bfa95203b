"""Which weights transformers never sees, and that each of them has been put where it belongs."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from engine.core.models.checkpoint import check_folder
from engine.core.models.modules.kept_numbers import Kept, StandIn, attach_kept, find_kept
from engine.core.models.modules.weight_names import places_in
from engine.core.models.stored_weights import StoredNumbers, numbers_of
from engine.errors import UnsupportedModelError
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.published.formats import FORMATS, change, declare, write
from tests.helpers.tiny_model import build_tiny_model

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return write(build_tiny_model(tmp_path / "llama"), tmp_path, FORMATS["awq"])[0]


def model_of(folder: Path) -> nn.Module:
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model


def kept_of(model: nn.Module, folder: Path) -> dict[str, Kept]:
    """By their names in the model."""
    checkpoint = check_folder(folder)
    kept = find_kept(model, checkpoint, places_in(model, checkpoint.tensors))
    return {each.name: each for each in kept}


def test_stand_in_has_shape_and_type_and_no_memory() -> None:
    weight = StandIn((1 << 20, 1 << 20), torch.bfloat16)[...]
    assert (tuple(weight.shape), weight.dtype) == ((1 << 20, 1 << 20), torch.bfloat16)
    assert weight.untyped_storage().nbytes() == 2


def test_linear_layers_are_told_where_their_weights_lie(published: Path) -> None:
    model = model_of(published)
    kept = kept_of(model, published)
    assert len(kept) == 3 * 7 and UP in kept
    for name in kept:
        owner = model.get_submodule(name.rpartition(".")[0])
        shape = tuple(owner.get_parameter("weight").shape)
        weight = StandIn(shape, torch.float32)[...]
        owner.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
    attach_kept(model, kept.values())
    stored = numbers_of(model.get_submodule(UP.removesuffix(".weight")))
    assert isinstance(stored, StoredNumbers) and stored == kept[UP].stored


def test_tensors_of_each_expert_become_one_parameter_that_is_not_there(tmp_path: Path) -> None:
    original = build_family(tmp_path / "original", "qwen3_moe")
    folder = write(original, tmp_path, FORMATS["compressed, 4 bits"])[0]
    kept = kept_of(model_of(folder), folder)
    stem = "model.layers.1.mlp.experts"
    both, down = kept[f"{stem}.gate_up_proj"], kept[f"{stem}.down_proj"]
    num_experts = len(down.tensors)
    assert down.tensors == tuple(f"{stem}.{e}.down_proj.weight" for e in range(num_experts))
    assert both.tensors == tuple(
        f"{stem}.{e}.{name}_proj.weight" for name in ("gate", "up") for e in range(num_experts)
    )
    assert isinstance(both.stored, list) and isinstance(down.stored, list)
    assert {weight.shape for weight in both.stored} == {both.shape[1:]}
    assert len(both.stored) == len(down.stored) == both.shape[0] == num_experts


@pytest.mark.parametrize("left", ["gate", "down"])
def test_experts_of_which_one_has_floats_are_all_floats(tmp_path: Path, left: str) -> None:
    original = build_family(tmp_path / "original", "qwen3_moe")
    folder = write(original, tmp_path, FORMATS["compressed, 4 bits"])[0]
    stem = f"model.layers.1.mlp.experts.2.{left}_proj"

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        shape = tensors.pop(f"{stem}.weight_shape").tolist()
        for part in ("packed", "scale"):
            del tensors[f"{stem}.weight_{part}"]
        tensors[f"{stem}.weight"] = torch.zeros(shape, dtype=torch.bfloat16)

    change(folder, widen)
    kept = kept_of(model_of(folder), folder)
    names = {name for name in kept if name.startswith("model.layers.1.mlp.experts")}
    other = {"gate": "down_proj", "down": "gate_up_proj"}[left]
    assert names == {f"model.layers.1.mlp.experts.{other}"}


def test_stand_in_that_is_not_where_it_belongs_is_refused(published: Path) -> None:
    model = model_of(published).to_empty(device="cpu")
    kept = kept_of(model_of(published), published)
    with pytest.raises(UnsupportedModelError, match="is not where the model has it"):
        attach_kept(model, kept.values())


def test_output_layer_that_is_tied_to_the_embeddings_is_not_kept(published: Path) -> None:
    def quantize_head(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.qweight"] = torch.zeros((64, 48), dtype=torch.int32)
        tensors["lm_head.qzeros"] = torch.zeros((2, 48), dtype=torch.int32)
        tensors["lm_head.scales"] = torch.ones((2, 384), dtype=torch.float16)
        del tensors["lm_head.weight"]

    change(published, quantize_head)
    assert "lm_head.weight" in kept_of(model_of(published), published)
    declare(published, FORMATS["awq"].config, tie_word_embeddings=True)
    assert "lm_head.weight" not in kept_of(model_of(published), published)
