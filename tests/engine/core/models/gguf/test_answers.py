"""A GGUF file answers as transformers does with the weights that the file stands for."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from engine.client.text.tokenizer_folder import read_folder
from engine.core.models.checkpoint import check_folder, check_unchanged, file_stamps
from engine.core.models.fused.plain_config import read_plain_config
from engine.core.models.gguf.headers import GgufTensor
from engine.errors import UnsupportedModelError
from engine.folder.gguf.derived import derive_folder
from tests.engine.helpers import greedy_oracle
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.gguf.gguf_files import rounded_checkpoint, write_gguf
from tests.engine.helpers.greedy_oracle import Folders, Reference, check_equals_transformers
from tests.engine.helpers.small_tokenizers import build_mistral
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

FAMILIES = ("llama", "qwen2", "qwen3")
MAX_LOGIT_DIFFERENCE = 3e-5  # weights of few bits are a little larger, and so are the logits
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def with_fields(folder: Path, to: Path, **fields: Any) -> Path:
    """The same checkpoint with other fields in its config.json."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | fields))
    return to


def check_equal(file: Path, original: Path, **settings: Any) -> SteppedEngine:
    """In float32, with transformers' answers of another folder as the oracle."""
    with (
        patch.object(greedy_oracle, "Reference", lambda _: Reference(original)),
        patch.object(greedy_oracle, "MAX_LOGIT_DIFFERENCE", MAX_LOGIT_DIFFERENCE),
    ):
        return check_equals_transformers(derive_folder(file), dtype="float32", **settings)


@needs_kernels
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_greedy_answers_equal_transformers(
    checkpoint: Folders, tmp_path: Path, family: str, kind: str
) -> None:
    original = checkpoint(family)
    file = write_gguf(original, tmp_path / "tiny.gguf", kind)
    if kind != "F32":
        original = rounded_checkpoint(original, tmp_path / "rounded", kind)
    assert check_equal(file, original).runner.loaded.fused is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_modules_of_transformers_take_the_weights_too(
    checkpoint: Folders, tmp_path: Path, family: str
) -> None:
    file = write_gguf(checkpoint(family), tmp_path / "tiny.gguf")
    engine = check_equal(file, checkpoint(family), model_impl="transformers")
    assert engine.runner.loaded.fused is None
    assert engine.runner.loaded.eos_token_ids == [0, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": LLAMA3},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 12_345.0}},
        {"rms_norm_eps": 1e-3},
        {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_fields_of_the_file_count(
    checkpoint: Folders, tmp_path: Path, fields: dict[str, Any]
) -> None:
    original = with_fields(checkpoint("llama"), tmp_path / "changed", **fields)
    file = write_gguf(original, tmp_path / "tiny.gguf")
    check_equal(file, original)


def test_embeddings_are_the_output_layer_if_there_is_none(
    checkpoint: Folders, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    original = with_fields(checkpoint("qwen3"), tmp_path / "tied", tie_word_embeddings=True)
    weights = load_file(original / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, original / "model.safetensors", metadata={"format": "pt"})
    file = write_gguf(original, tmp_path / "tiny.gguf")
    check_equal(file, original)


def test_vocabulary_of_sentencepiece_is_served(tmp_path: Path) -> None:
    original = build_family(tmp_path / "pieces", "llama", vocab_size=512)
    build_mistral(original)
    file = write_gguf(original, tmp_path / "tiny.gguf")
    check_equal(file, original)
    found = read_folder(derive_folder(file))
    assert found.special_tokens["unk_token"] == "<unk>"
    assert found.chat_template == read_folder(original).chat_template


def test_parts_are_one_model(checkpoint: Folders, tmp_path: Path) -> None:
    first = write_gguf(checkpoint("qwen2"), tmp_path / "tiny.gguf", split=10)
    assert first.name == "tiny-00001-of-00004.gguf"
    check_equal(first, checkpoint("qwen2"))
    loaded = check_folder(derive_folder(first))
    assert len({tensor.file for tensor in loaded.tensors.values()}) == 4
    assert loaded.weights_file == first


def test_factors_that_are_not_those_of_llama_3_are_refused(
    checkpoint: Folders, tmp_path: Path
) -> None:
    import numpy as np

    factors = np.array([1, 2, 3, 4, 5, 6, 7, 8], dtype=np.float32)
    file = write_gguf(
        checkpoint("llama"),
        tmp_path / "tiny.gguf",
        edit=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    with pytest.raises(UnsupportedModelError, match="factors that are not those of Llama 3"):
        derive_folder(file)


@needs_kernels
def test_int8_takes_the_weights_of_a_file(checkpoint: Folders, tmp_path: Path) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", "Q8_0")
    engine = SteppedEngine(derive_folder(file), quantization="int8")
    engine.add("0", [5, 6, 7], max_tokens=4)
    engine.run()
    assert len(engine.tokens["0"]) == 4


def test_core_reads_the_file_without_transformers(checkpoint: Folders, tmp_path: Path) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", "Q4_0")
    found = check_folder(derive_folder(file))
    assert found.is_gguf
    assert read_plain_config(found) is not None


def test_file_that_changes_after_the_core_has_started_is_noticed(
    checkpoint: Folders, tmp_path: Path
) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf")
    found = check_folder(derive_folder(file))
    stamps = file_stamps(found)
    check_unchanged(found, stamps)
    os.utime(file, ns=(1, 1))
    with pytest.raises(UnsupportedModelError, match=r"tiny\.gguf: has changed since the engine"):
        check_unchanged(found, stamps)


def test_weight_that_is_no_number_is_named(checkpoint: Folders, tmp_path: Path) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", "F16")
    tensor = check_folder(derive_folder(file)).tensors["model.layers.1.mlp.up_proj.weight"]
    content = bytearray(file.read_bytes())
    assert isinstance(tensor, GgufTensor)
    start = tensor.start
    content[start : start + 2 * 64 * 96] = b"\xff\x7f" * (64 * 96)
    file.write_bytes(content)
    with pytest.raises(UnsupportedModelError) as refused:
        SteppedEngine(derive_folder(file))
    problem = "model.layers.1.mlp.up_proj.weight is not finite"
    assert str(refused.value).startswith(f"{file}: {problem}")
