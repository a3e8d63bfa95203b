"""What is packed of a plain folder has the bits of what transformers would have given."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core.models import loader
from engine.core.models.checkpoint import check_folder
from engine.core.models.fused.decoder import FusedDecoder
from engine.core.models.fused.plain_config import CLASSES, EMBEDDINGS, HEAD
from engine.core.models.fused.plain_model import PlainModel
from engine.core.models.fused.shape import rotary_table
from engine.core.models.loader import LoadedModel
from engine.core.ops import library as ops
from engine.core.tensors.kv_cache import CPU
from engine.errors import UnsupportedModelError
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.tiny_model import build_tiny_model

pytestmark = needs_kernels

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 1_000_000, "factor": 3.0}


def load(folder: Path, **settings: Any) -> LoadedModel:
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    return loader.load_model(config, ops.choose("cpu"))


def load_both(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[LoadedModel, LoadedModel]:
    plain = load(folder, **settings)
    assert isinstance(plain.model, PlainModel)
    with monkeypatch.context() as patch:
        patch.setattr(loader, "_build_plain", lambda *_: None)
        general = load(folder, **settings)
    assert not isinstance(general.model, PlainModel)
    return plain, general


def assert_alike(plain: LoadedModel, general: LoadedModel) -> None:
    same = ("dtype", "num_parameters", "vocab_size", "max_positions", "eos_token_ids", "tasks")
    for name in same:
        assert getattr(plain, name) == getattr(general, name), name
    one, other = plain.fused, general.fused
    assert isinstance(one, FusedDecoder) and isinstance(other, FusedDecoder)
    assert one.shape == other.shape
    of_plain, of_general = (flat(decoder.weights) for decoder in (one, other))
    assert of_plain.keys() == of_general.keys()
    for name, tensor in of_plain.items():
        assert torch.equal(tensor, of_general[name]), name
    tables = [rotary_table(decoder.rotate, plain.max_positions, CPU) for decoder in (one, other)]
    assert torch.equal(*tables)


def flat(weights: Any) -> dict[str, torch.Tensor]:
    """All tensors of packed weights, by their names."""
    found: dict[str, torch.Tensor] = {}
    for field in dataclasses.fields(weights):
        value = getattr(weights, field.name)
        if isinstance(value, torch.Tensor):
            found[field.name] = value
        elif dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{name}": tensor for name, tensor in flat(value).items()}
    return found


def edit_config(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
@pytest.mark.parametrize("family", sorted(CLASSES))
def test_each_family_is_packed_alike(
    family: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_tiny_model(tmp_path, family)
    assert_alike(*load_both(folder, monkeypatch, **settings))


@pytest.mark.parametrize("rope", [LLAMA3, LINEAR], ids=["llama3", "linear"])
def test_rotations_have_the_same_bits(
    rope: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_tiny_model(tmp_path)
    edit_config(folder, rope_parameters=rope, max_position_embeddings=8192)
    assert_alike(*load_both(folder, monkeypatch))


@pytest.mark.parametrize("stored_head", [None, "equal", "another"])
def test_a_tied_output_layer_may_be_stored_or_not(
    stored_head: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_tiny_model(tmp_path)
    edit_config(folder, tie_word_embeddings=True)
    file = folder / "model.safetensors"
    weights = load_file(file)
    if stored_head is None:
        del weights[HEAD]
    elif stored_head == "equal":
        weights[HEAD] = weights[EMBEDDINGS].clone()
    save_file(weights, file, metadata={"format": "pt"})
    plain, general = load_both(folder, monkeypatch)
    assert_alike(plain, general)
    assert isinstance(plain.fused, FusedDecoder)
    assert (plain.fused.weights.embeddings is None) is (stored_head != "another")


def test_what_cannot_be_read_any_more_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_tiny_model(tmp_path)
    checkpoint = check_folder(folder)
    monkeypatch.setattr(loader, "check_folder", lambda *_, **__: checkpoint)
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(UnsupportedModelError) as caught:
        load(folder)
    assert str(folder) in str(caught.value) and str(caught.value).isprintable()
