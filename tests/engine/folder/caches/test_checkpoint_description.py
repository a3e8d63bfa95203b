"""What a checkpoint says that it is, and the reasons why one would be refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.folder.caches.checkpoint_description import describe_checkpoint
from engine.folder.caches.found import Found
from engine.folder.caches.local_model import LocalModel
from tests.engine.helpers.gguf.cache_folders import copied
from tests.engine.helpers.published.formats import FORMATS, declare, write
from tests.engine.helpers.published.formats import change as rewrite
from tests.engine.helpers.published.writers import Tensors


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return copied(tmp_path / "tiny", *tiny.iterdir())


def described(folder: Path) -> LocalModel:
    files = {file.name: file for file in folder.iterdir()}
    return describe_checkpoint(Found("org/tiny", folder, folder=files), 1)


def change(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    for name, value in changed.items():
        if value is None:
            config.pop(name, None)
        else:
            config[name] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({}, "safetensors float32"),
        ({"dtype": None, "torch_dtype": "bfloat16"}, "safetensors bfloat16"),
        ({"dtype": None, "torch_dtype": None}, "safetensors float32"),  # its weights say so
    ],
)
def test_the_format_is_that_of_config_or_weights(
    folder: Path, changed: dict[str, Any], shown: str
) -> None:
    change(folder, **changed)
    model = described(folder)
    assert (model.format, model.architecture, model.context_length) == (shown, "llama", 512)
    assert model.runs is True


def test_a_known_type_runs_even_if_its_folder_names_code(folder: Path) -> None:
    change(folder, auto_map={"AutoModelForCausalLM": "modeling.Llama"})
    assert described(folder).runs is True


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("awq", "awq"),
        ("gptq, desc_act", "gptq"),
        ("compressed, 8 bits", "compressed-tensors"),
        ("fp8, blocks", "fp8"),
        ("modelopt, a file of its own", "modelopt"),
        ("nf4, nested", "bitsandbytes"),
    ],
)
def test_a_published_checkpoint_that_is_read_runs(
    name: str, shown: str, tiny: Path, tmp_path: Path
) -> None:
    model = described(write(tiny, tmp_path, FORMATS[name])[0])
    assert (model.problem, model.runs, model.format) == (None, True, f"safetensors {shown}")


def _without_scales(tensors: Tensors) -> None:
    del tensors["model.layers.1.mlp.up_proj.scales"]


@pytest.mark.parametrize(
    ("fields", "edit", "says"),
    [
        ({"bits": 3}, None, "config.json: quantization_config.bits must be 4"),
        ({"quant_method": "quip"}, None, "config.json: quantization_config.quant_method must be"),
        ({"quant_method": None}, None, "config.json: quantization_config.quant_method must be"),
        ({}, _without_scales, "model.safetensors: model.layers.1.mlp.up_proj.qweight is there"),
    ],
)
def test_a_published_checkpoint_that_is_refused_says_why(
    fields: dict[str, Any],
    edit: Callable[[Tensors], None] | None,
    says: str,
    tiny: Path,
    tmp_path: Path,
) -> None:
    folder = write(tiny, tmp_path, FORMATS["awq"])[0]
    declare(folder, {**FORMATS["awq"].config, **fields})
    if edit is not None:
        rewrite(folder, edit)
    model = described(folder)
    assert model.runs is False
    assert str(model.problem).startswith(says)
    assert str(tmp_path) not in str(model.problem)


def test_a_declaration_without_codes_is_refused(folder: Path) -> None:
    change(folder, quantization_config={"quant_method": "fp8"})
    assert "none of them is" in str(described(folder).problem)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text"}},
        {"model_type": "kimi_k25", "auto_map": {}, "text_config": {"model_type": "kimi_k2"}},
        {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {}}},
    ],
)
def test_a_model_that_also_takes_pictures_runs(config: dict[str, Any], folder: Path) -> None:
    text = config.get("thinker_config", config)["text_config"]
    text["max_position_embeddings"] = 77
    (folder / "config.json").write_text(json.dumps(config))
    model = described(folder)
    assert (model.problem, model.architecture) == (None, config["model_type"])
    assert model.context_length == 77
    text["layer_types"] = ["linear_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "has layers without paged attention" in str(described(folder).problem)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model_type": "bert"}, "bert is no family of language models that is known to run"),
        ({"model_type": None}, "its config.json names no model_type"),
        ({"auto_map": {"AutoModel": "a.B"}, "model_type": "evil"}, "'evil' needs code of its own"),
        ({"num_hidden_layers": -1}, "config.json: num_hidden_layers must be from 1 to"),
        ({"is_causal": False}, "llama reads a text in both directions"),
        ({"is_encoder_decoder": True}, "llama is an encoder-decoder"),
        ({"layer_types": ["mamba"]}, "llama has layers without paged attention"),
        ({"num_kv_shared_layers": 2}, "llama shares keys and values"),
        ({"alibi": True}, "llama uses alibi"),
    ],
)
def test_a_config_of_another_model_has_its_reason(
    folder: Path, changed: dict[str, Any], says: str
) -> None:
    change(folder, **changed)
    model = described(folder)
    assert model.runs is False
    assert str(model.problem).startswith(says)


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _with_index(content: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return write


_SHARDS = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (_remove("config.json"), "it has no config.json"),
        (_remove("tokenizer.json"), "tokenizer.json is missing"),
        (_remove("model.safetensors"), "model.safetensors is missing"),
        (_with_index({"weight_map": _SHARDS}), "1 files of its weights are missing, first model-0"),
        (_with_index({}), "model.safetensors.index.json: weight_map must be"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: is not valid"),
        (lambda folder: (folder / "config.json").write_text(""), "config.json: is empty"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    folder: Path, breaks: Callable[[Path], None], says: str
) -> None:
    breaks(folder)
    model = described(folder)
    assert model.runs is False
    assert str(model.problem).startswith(says)
    assert str(folder) not in str(model.problem)


def test_all_shards_of_an_index_are_a_model(folder: Path) -> None:
    _with_index({"weight_map": {"a": _SHARDS["a"]}})(folder)
    assert described(folder).runs is True
