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


def test_a_known_type_runs_whatever_code_its_folder_names(folder: Path) -> None:
    change(folder, auto_map={"AutoModelForCausalLM": "modeling.Llama"})
    assert described(folder).runs is True


def test_what_only_loading_tells_is_said_to_be_in_doubt(folder: Path) -> None:
    change(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    model = described(folder)
    assert (model.runs, model.format) == (None, "safetensors gptq")
    assert "quantized by 'gptq'" in str(model.problem)
    change(folder, quantization_config={"bits": 4})
    assert described(folder).runs is False


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
