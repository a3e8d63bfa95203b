"""What a checkpoint holds and the model does not take is refused by name, unless it is harmless.

On both paths, from one file and from several, with and without `quantization`.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.core.models.checkpoint import check_folder
from engine.core.models.loader import LoadedModel, load_model
from engine.core.models.weight_files import check_dtypes, is_harmless
from engine.core.ops import library as ops
from engine.errors import UnsupportedModelError
from engine.folder.weight_headers import INDEX, WEIGHTS
from tests.engine.helpers.greedy_oracle import check_equals_transformers
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.tiny_model import build_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Tensors]
Rewrite = Callable[[Change], Path]
SHARD = "model-0000{}-of-00002.safetensors"
PATHS: dict[str, dict[str, Any]] = {
    "fused": {"model_impl": "fused"},
    "fused in 8 bits": {"model_impl": "fused", "quantization": "int8"},
    "modules": {"model_impl": "transformers"},
    "modules in 8 bits": {"model_impl": "transformers", "quantization": "int8"},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("llama"), "llama", initializer_range=0.15)


@pytest.fixture(params=[WEIGHTS, INDEX])
def rewrite(request: pytest.FixtureRequest, llama: Path, tmp_path: Path) -> Rewrite:
    """Changes the tensors of a copy of it, which then lie in one file or in two."""

    def write(change: Change) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(llama, folder)
        tensors = change(load_file(llama / WEIGHTS))
        if request.param == WEIGHTS:
            save_file(tensors, folder / WEIGHTS, {"format": "pt"})
            return folder
        (folder / WEIGHTS).unlink()
        places = {name: SHARD.format(1 + number % 2) for number, name in enumerate(tensors)}
        for shard in set(places.values()):
            part = {name: tensors[name] for name in tensors if places[name] == shard}
            save_file(part, folder / shard, {"format": "pt"})
        index = {"metadata": {}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index))
        return folder

    return write


def load(folder: Path, **settings: Any) -> LoadedModel:
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    return load_model(config, ops.choose("auto"))


def declare(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def quantized(dtype: torch.dtype) -> Change:
    """Projections in 8 bits, each with the scale that makes numbers of them again."""

    def change(tensors: Tensors) -> Tensors:
        changed = dict(tensors)
        largest = 448.0 if dtype.is_floating_point else 127.0
        for name, weight in tensors.items():
            if name.endswith("_proj.weight"):
                scale = weight.abs().max() / largest
                changed[name] = (weight / scale).to(dtype)
                changed[f"{name}_scale"] = scale[None]
        return changed

    return change


def with_scales(tensors: Tensors) -> Tensors:
    """Of weights that were said to be converted back, and were not."""
    changed = dict(tensors)
    for name in tensors:
        if name.endswith("down_proj.weight"):
            changed[name] = tensors[name] * 20
            changed[f"{name}_scale_inv"] = torch.tensor([0.05])
    return changed


def with_more(*names: str, number: float = 0.5) -> Change:
    return lambda tensors: tensors | {name: torch.full((4,), number) for name in names}


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_weights_in_8_bits_of_which_nobody_says_how_are_refused(
    dtype: torch.dtype, path: str, rewrite: Rewrite
) -> None:
    folder = rewrite(quantized(dtype))
    with pytest.raises(UnsupportedModelError) as error:
        load(folder, **PATHS[path])
    message = str(error.value)
    assert "\n" not in message
    assert re.search(r"model\.layers\.0\..*_proj\.weight is of type (F8_E4M3|I8),", message)
    assert ".safetensors" in message and "take the checkpoint in bfloat16 or float16" in message


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
def test_scales_that_nobody_applies_are_refused(path: str, rewrite: Rewrite) -> None:
    folder = rewrite(with_scales)
    with pytest.raises(UnsupportedModelError) as error:
        load(folder, **PATHS[path])
    message = str(error.value)
    assert "model.layers.0.mlp.down_proj.weight_scale_inv and 2 others" in message
    assert ".safetensors holds" in message and "scales that nobody applies" in message
    assert "\n" not in message


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.3.self_attn.q_proj.weight",  # a layer more than the config has
        "model.layers.0.self_attn.q_norm.weight",  # of another family
        "score.weight",
    ],
)
def test_what_the_model_has_no_place_for_is_refused_by_name(
    name: str, path: str, rewrite: Rewrite
) -> None:
    folder = rewrite(with_more(name))
    with pytest.raises(UnsupportedModelError, match=name) as error:
        load(folder, **PATHS[path])
    assert "is it of the type llama, of 3 layers?" in str(error.value)


@needs_kernels
@pytest.mark.parametrize("model_impl", ["fused", "transformers"])
def test_what_changes_no_text_is_let_go(model_impl: str, rewrite: Rewrite) -> None:
    mask = torch.ones(1, 1, 8, 8).tril().to(torch.uint8)
    folder = rewrite(
        lambda tensors: (
            with_more(
                "model.layers.0.self_attn.rotary_emb.inv_freq",
                "model.layers.3.self_attn.q_proj.weight",  # guesses ahead, as the config says
                "model.layers.3.eh_proj.weight",
                "model.mtp.layers.0.mlp.up_proj.weight",
                "mtp.norm.weight",
            )(tensors)
            | {"model.layers.1.attn.bias": mask, "model.position_ids": torch.arange(8)[None]}
        )
    )
    declare(folder, num_nextn_predict_layers=1)
    check_equals_transformers(folder, model_impl=model_impl)


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
def test_a_config_that_calls_a_layer_of_the_model_one_that_guesses_is_not_believed(
    path: str, rewrite: Rewrite
) -> None:
    folder = rewrite(with_more("model.layers.3.self_attn.q_proj.weight"))
    declare(folder, num_nextn_predict_layers=1)
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.3\.self_attn\.q_proj"):
        load(folder, **PATHS[path])


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"]
)
def test_what_the_model_needs_and_the_checkpoint_lacks_is_refused_by_name(
    name: str, path: str, rewrite: Rewrite
) -> None:
    folder = rewrite(lambda tensors: {key: value for key, value in tensors.items() if key != name})
    with pytest.raises(UnsupportedModelError, match=f"lacks 1 weights of its shape, first {name}"):
        load(folder, **PATHS[path])


@needs_kernels
@pytest.mark.parametrize("has_head", [False, True])
@pytest.mark.parametrize("model_impl", ["fused", "transformers"])
def test_an_output_layer_that_is_tied_may_lie_in_the_checkpoint_or_not(
    model_impl: str, has_head: bool, rewrite: Rewrite
) -> None:
    def tie(tensors: Tensors) -> Tensors:
        others = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
        head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        return others | head if has_head else others

    folder = rewrite(tie)
    declare(folder, tie_word_embeddings=True)
    check_equals_transformers(folder, model_impl=model_impl)


def test_headers_are_read_of_the_files_that_are_loaded_and_of_no_others(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path)
    save_file({"strange": torch.zeros(2, dtype=torch.int8)}, folder / "consolidated.safetensors")
    checkpoint = check_folder(folder)
    assert {tensor.file for tensor in checkpoint.tensors.values()} == {folder / WEIGHTS}
    assert checkpoint.tensors["lm_head.weight"].dtype == "F32"
    check_dtypes(checkpoint)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("transformer.h.0.attn.bias", True),
        ("h.11.attn.masked_bias", True),
        ("transformer.h.0.attn.c_attn.bias", False),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", True),
        ("gpt_neox.layers.0.attention.bias", True),
        ("model.layers.0.self_attn.o_proj.bias", False),
        ("model.decoder.version", True),
        ("mtp.layers.0.mlp.up_proj.weight", True),
        ("model.mtp_layers.0.mlp.up_proj.weight", True),
        ("model.layers.0.mlp.down_proj.weight_scale", False),
        ("model.layers.0.self_attn.k_scale", False),
    ],
)
def test_harmless_is_only_what_is_named_so(name: str, expected: bool) -> None:
    assert is_harmless(name) == expected
