"""What is not known in every detail is refused in one line: else the answers are gibberish."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core.models.checkpoint import Checkpoint, check_folder
from engine.core.models.loader import load_model
from engine.core.ops import library as ops
from engine.errors import UnsupportedModelError
from tests.engine.helpers.greedy_oracle import Folders, families_in
from tests.engine.helpers.published.formats import (
    FORMATS,
    WEIGHTS,
    change,
    compressed,
    declare,
    write,
)
from tests.engine.helpers.published.writers import Tensors
from tests.engine.helpers.stepped_engine import SteppedEngine

UP = "model.layers.1.mlp.up_proj"
EXPERTS = "model.layers.1.mlp.experts.down_proj"
STATE = f"{UP}.weight.quant_state.bitsandbytes__nf4"
Edit = Callable[[Tensors], object]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("checkpoints"))


def published(name: str, checkpoint: Folders, to: Path) -> Path:
    family = "gpt_oss" if name == "mxfp4" else "llama"
    return write(checkpoint(family), to, FORMATS[name])[0]


def refused(folder: Path, match: str, **settings: Any) -> None:
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    with pytest.raises(UnsupportedModelError, match=match) as error:
        load_model(config, ops.choose("auto"))
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("awq", {"quant_method": "exl3"}, "quant_method must be one of awq, gptq"),
        ("awq", {"quant_method": None}, "quant_method must be one of"),
        ("awq", {"quant_method": ["awq"]}, "quant_method must be one of"),
        ("awq", {"bits": 3}, "bits must be 4"),
        ("awq", {"bits": 4.0}, "bits must be 4"),
        ("awq", {"version": "gemv"}, "version must be 'gemm'"),
        ("awq", {"zero_point": False}, "zero_point must be True"),
        ("awq", {"group_size": 0}, "group_size must be a whole number"),
        ("awq", {"group_size": "32"}, "group_size must be a whole number"),
        ("awq", {"group_size": 64}, r"scales has the shape \[3, 64\], and must have \[2, 64\]"),
        ("gptq", {"bits": 3}, "bits must be 4 or 8"),
        ("gptq", {"bits": 8}, "has the shape"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format must be 'gptq'"),
        ("gptq", {"dynamic": {"-:.*": {}}}, "dynamic must be"),
        ("gptq", {"pack_dtype": "int16"}, "pack_dtype must be"),
        ("fp8, blocks", {"fmt": "e5m2"}, "fmt must be 'e4m3'"),
        ("fp8, blocks", {"weight_block_size": [128]}, "weight_block_size must be two"),
        ("fp8, blocks", {"weight_block_size": [32, 32]}, "weight_scale_inv has the shape"),
        ("fp8, blocks", {"weight_block_size": None}, "weight_scale_inv has the shape"),
        ("modelopt", {"quant_algo": "NVFP4"}, "quant_algo must be 'FP8'"),
        ("nf4", {"bnb_4bit_quant_storage": "bfloat16"}, "quant_storage must be 'uint8'"),
        ("compressed, fp8", {"format": "nvfp4-pack-quantized"}, "format must be 'pack-quantized'"),
        ("compressed, fp8", {"quantization_status": "frozen"}, "must be 'compressed'"),
        ("compressed, fp8", {"transform_config": {"a": 1}}, "transform_config must be"),
        ("compressed, fp8", {"sparsity_config": {"format": "24"}}, "format must be 'dense'"),
        ("compressed, fp8", {"sparsity_config": 1}, "sparsity_config must be an object"),
        ("compressed, fp8", {"config_groups": {}}, "config_groups must be groups of layers"),
        ("compressed, fp8", {"config_groups": {"a": {}}}, "weights must be an object"),
        ("compressed, fp8", {"config_groups": {"a": None}}, "weights must be an object"),
    ],
)
def test_a_declaration_that_is_not_known_is_refused_by_its_field(
    name: str, fields: dict[str, Any], match: str, checkpoint: Folders, tmp_path: Path
) -> None:
    folder = published(name, checkpoint, tmp_path)
    declare(folder, {**FORMATS[name].config, **fields})
    refused(folder, match)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ({"num_bits": 2}, "num_bits must be 4 or 8"),
        ({"type": "nf"}, "type must be 'int' or 'float'"),
        ({"type": "float"}, "num_bits must be 8"),
        ({"strategy": "token"}, "strategy must be 'tensor'"),
        ({"group_size": None}, "group_size must be a whole number"),
        ({"group_size": 64}, "weight_scale has the shape"),
        ({"num_bits": 8}, "weight_packed has the shape"),
        ({"symmetric": False}, f"{UP}.weight_packed is there without {UP}.weight_zero_point"),
        ({"actorder": "group"}, f"without {UP}.weight_g_idx"),
        ({"dynamic": True}, "dynamic must be False"),
    ],
)
def test_a_scheme_that_is_not_known_or_does_not_fit_is_refused(
    weights: dict[str, Any], match: str, checkpoint: Folders, tmp_path: Path
) -> None:
    folder = published("compressed, 4 bits", checkpoint, tmp_path)
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    declare(folder, compressed("pack-quantized", **scheme | weights))
    refused(folder, match.replace("layers.1", r"layers\.\d").replace("up_proj", r"\w+"))


def without(name: str) -> Edit:
    return lambda tensors: tensors.pop(name)


def with_tensor(name: str, tensor: torch.Tensor) -> Edit:
    return lambda tensors: tensors.update({name: tensor})


def cut(name: str) -> Edit:
    return lambda tensors: tensors.update({name: tensors[name][:-1].clone()})


def as_type(name: str, dtype: torch.dtype) -> Edit:
    return lambda tensors: tensors.update({name: tensors[name].to(dtype)})


def with_state(content: bytes) -> Edit:
    return with_tensor(STATE, torch.frombuffer(bytearray(content), dtype=torch.uint8))


def state(**fields: Any) -> Edit:
    known = {"quant_type": "nf4", "blocksize": 64, "shape": [96, 64]}
    return with_state(json.dumps(known | fields).encode())


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("name", "edit", "match"),
    [
        ("awq", without(f"{UP}.scales"), rf"{UP}\.qweight is there without {UP}\.scales"),
        ("awq", without(f"{UP}.qzeros"), rf"{UP}\.qweight is there without {UP}\.qzeros"),
        ("awq", without(f"{UP}.qweight"), r"up_proj.*(is of type I32|lacks)"),
        ("awq", cut(f"{UP}.qzeros"), "qzeros has the shape"),
        ("awq", cut(f"{UP}.qweight"), "has the shape"),
        ("awq", as_type(f"{UP}.qweight", torch.int64), "qweight is of type I64"),
        ("awq", as_type(f"{UP}.scales", torch.int16), "scales is of type I16"),
        ("awq", with_tensor(f"{UP}.weight", torch.ones(96, 64)), "as floats and as codes"),
        ("awq", with_tensor(f"{UP}.qweight", ONE.int()), "qweight has the shape .* 2 sizes"),
        ("awq", with_tensor("a.qweight_scale", ONE), "scales that nobody applies"),
        ("awq", with_tensor("a.weight", ONE.to(torch.int8)), "no part of a weight of 'awq'"),
        ("gptq, desc_act", without(f"{UP}.g_idx"), rf"{UP}\.qweight is there without .*g_idx"),
        ("gptq, biases of zeros", with_tensor(f"{UP}.bias", torch.ones(96)), f"take, {UP}.bias"),
        ("gptq, biases of zeros", cut(f"{UP}.bias"), f"take, {UP}.bias"),
        ("gptq, desc_act", cut(f"{UP}.g_idx"), "g_idx has the shape"),
        ("gptq", with_tensor(f"{UP}.g_idx", torch.full((64,), 9).int()), "a group beyond its 1"),
        ("gptq", with_tensor(f"{UP}.g_idx", torch.full((64,), -1).int()), "a group beyond its 1"),
        ("fp8, blocks", without(f"{UP}.weight_scale_inv"), f"{UP}.weight needs"),
        ("fp8, blocks", with_tensor(f"{UP}.weight_scale", ONE), "needs .*: 2 of them are there"),
        ("fp8, blocks", cut(f"{UP}.weight_scale_inv"), "weight_scale_inv has the shape"),
        ("fp8, one scale", with_tensor(f"{UP}.weight_scale", torch.ones(5)), "has the shape"),
        ("fp8, one scale", with_tensor(f"{UP}.pre_quant_scale", ONE), "that nobody applies"),
        ("modelopt", with_tensor(f"{UP}.weight_scale_2", ONE), "that nobody applies"),
        ("compressed, 8 bits", without(f"{UP}.weight_scale"), "is there without"),
        ("compressed, 8 bits", cut(f"{UP}.weight"), "weight_scale has the shape"),
        ("compressed, 4 bits", without(f"{UP}.weight_shape"), "is there without"),
        (
            "compressed, 4 bits",
            with_tensor(f"{UP}.weight_shape", torch.tensor([96, -64])),
            "which no scheme gives",
        ),
        ("compressed, 4 bits", with_tensor(f"{UP}.weight_global_scale", ONE), "nobody applies"),
        ("mxfp4", without(f"{EXPERTS}_scales"), "is there without"),
        ("mxfp4", cut(f"{EXPERTS}_scales"), "down_proj_scales has the shape"),
        ("mxfp4", without(f"{EXPERTS}_blocks"), "is of type U8"),
        ("nf4", without(f"{UP}.weight.absmax"), "is there without"),
        ("nf4", cut(f"{UP}.weight.absmax"), "absmax has the shape"),
        ("nf4", cut(f"{UP}.weight"), "weight has the shape"),
        ("nf4", without(STATE), "is of type U8"),
        ("nf4", with_state(b"{"), "must hold an object of JSON"),
        ("nf4", with_state(b"[" * 5000), "must hold an object of JSON"),
        ("nf4", with_state(b"\xff"), "must hold an object of JSON"),
        ("nf4", state(shape=[1 << 40, 64]), "has the shape"),
        ("nf4", state(shape="96"), "has the shape"),
        ("nf4", state(blocksize=0), "has blocksize 0"),
        ("nf4", state(blocksize=63), "has blocksize 63"),
        ("nf4, nested", state(nested_blocksize=256), "has nested_offset None"),
        ("bitsandbytes, 8 bits", cut(f"{UP}.SCB"), "SCB has the shape"),
        (
            "bitsandbytes, 8 bits",
            with_tensor(f"{UP}.weight_format", torch.tensor(1, dtype=torch.uint8)),
            "another order",
        ),
    ],
)
def test_tensors_that_are_missing_too_many_or_of_another_form_are_refused_by_name(
    name: str, edit: Edit, match: str, checkpoint: Folders, tmp_path: Path
) -> None:
    folder = published(name, checkpoint, tmp_path)
    change(folder, edit)
    refused(folder, match)


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("name", ["awq", "fp8, blocks", "nf4"])
def test_numbers_that_are_none_are_named(
    name: str, model_impl: str, checkpoint: Folders, tmp_path: Path
) -> None:
    folder = published(name, checkpoint, tmp_path)
    scales = {"awq": ".scales", "fp8, blocks": ".weight_scale_inv", "nf4": ".weight.absmax"}
    change(folder, lambda tensors: tensors[UP + scales[name]].fill_(torch.nan))
    with pytest.raises(UnsupportedModelError, match=rf"{UP}\.weight is not finite"):
        SteppedEngine(folder, model_impl=model_impl)


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("name", ["awq", "fp8, blocks", "nf4, nested", "bitsandbytes, 8 bits"])
def test_a_file_that_becomes_shorter_while_it_is_read_is_named(
    name: str,
    model_impl: str,
    checkpoint: Folders,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = published(name, checkpoint, tmp_path)
    whole = check_folder(folder)

    def cut_and_return(*args: Any, **settings: Any) -> Checkpoint:
        size = (folder / WEIGHTS).stat().st_size
        with (folder / WEIGHTS).open("r+b") as file:
            file.truncate(size - 40_000)
        return whole

    monkeypatch.setattr("engine.core.models.loader.check_folder", cut_and_return)
    refused(folder, "shorter|truncated|large|lacks|Error", model_impl=model_impl)


def test_weights_that_are_said_to_be_quantized_and_are_not_are_refused(
    checkpoint: Folders, tmp_path: Path
) -> None:
    _, floats = write(checkpoint("llama"), tmp_path, FORMATS["awq"])
    declare(floats, FORMATS["awq"].config)
    refused(floats, "says that its weights are quantized by 'awq', but none of them is")


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_that_no_longer_says_so_is_refused(
    name: str, checkpoint: Folders, tmp_path: Path
) -> None:
    folder = published(name, checkpoint, tmp_path)
    declare(folder, None)
    (folder / "hf_quant_config.json").unlink(missing_ok=True)
    refused(folder, r"is of type \w+, and config.json does not say")


def test_random_weights_need_no_known_quantization(checkpoint: Folders, tmp_path: Path) -> None:
    folder = published("awq", checkpoint, tmp_path)
    declare(folder, {"quant_method": "exl3"})
    assert check_folder(folder, needs_weights=False).quantization is None
