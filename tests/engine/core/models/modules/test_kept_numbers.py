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
    checkpoint = check_folder(folder)
    return find_kept(model, checkpoint, places_in(model, checkpoint.tensors))


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
