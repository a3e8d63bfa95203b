"""What config.json says that a file leaves out, and what is refused of each architecture."""

from array import array
from pathlib import Path
from typing import Any

import pytest
from gguf import ExpertGatingFuncType, GGUFWriter

from engine.errors import UnsupportedModelError
from engine.folder.gguf.config import make_config, make_generation_config
from engine.folder.gguf.head import Value
from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.parts import read_parts
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.gguf.gguf_files import Edit, write_gguf


def made(folder: Path, family: str, edit: Edit | None = None, **fields: Any) -> dict[str, Any]:
    original = build_family(folder / "original", family, **fields)
    model = read_parts((write_gguf(original, folder / "tiny.gguf", edit=edit),))
    return make_config(model, Metadata(model.file, model.metadata))


@pytest.mark.parametrize(
    ("family", "num_layers", "scale"),
    [("gemma2", 4, 32), ("gemma2", 46, 16), ("gemma3_text", 4, 32), ("gemma3_text", 62, 16)],
)
def test_largest_gemmas_divide_scores_by_the_share_of_a_head(
    tmp_path: Path, family: str, num_layers: int, scale: int
) -> None:
    config = made(tmp_path, family, num_hidden_layers=num_layers, head_dim=32)
    assert config["query_pre_attn_scalar"] == scale


@pytest.mark.parametrize(
    ("said", "windows"),
    [(None, "wwwwwf"), (3, "wwfwwf"), ([True, False, True, True, False, False], "wfwwff")],
)
def test_a_file_may_say_which_layers_see_a_window(tmp_path: Path, said: Any, windows: str) -> None:
    def edit(writer: GGUFWriter) -> None:
        if said is not None:
            writer.add_sliding_window_pattern(said)

    config = made(tmp_path, "gemma3_text", edit, num_hidden_layers=6)
    kinds = {"w": "sliding_attention", "f": "full_attention"}
    assert config["layer_types"] == [kinds[each] for each in windows]


def test_gemma_3_without_a_window_sees_all(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        del writer.kv_data[0]["gemma3.attention.sliding_window"]

    assert set(made(tmp_path, "gemma3_text", edit)["layer_types"]) == {"full_attention"}


FAULTS: dict[str, tuple[str, Edit, str]] = {
    "a key that nobody knows": (
        "gemma3_text",
        lambda writer: writer.add_float32("gemma3.rope.global.freq_base", 1e6),
        "gemma3.rope.global.freq_base is set, which is not computed",
    ),
    "windows of fewer layers": (
        "gemma3_text",
        lambda writer: writer.add_sliding_window_pattern([True, False]),
        "gemma3.attention.sliding_window_pattern must be of 4 layers",
    ),
    "more experts than there are": (
        "mixtral",
        lambda writer: replace(writer, "llama.expert_used_count", 5),
        "sends each token through 5 of 4 experts",
    ),
    "another choice of experts": (
        "qwen3_moe",
        lambda writer: writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID),
        "qwen3moe.expert_gating_func is 1 in these models",
    ),
    "weights of experts that are not normed": (
        "qwen3_moe",
        lambda writer: writer.add_expert_weights_norm(False),
        "qwen3moe.expert_weights_norm is True in these models",
    ),
    "layers that guess": (
        "glm4",
        lambda writer: writer.add_nextn_predict_layers(1),
        "glm4.nextn_predict_layers is set, which is not computed",
    ),
    "a part of a head that is none": (
        "stablelm",
        lambda writer: replace(writer, "stablelm.rope.dimension_count", 18),
        "rotates 18 of the 16 numbers of a head",
    ),
    "no rotary positions": (
        "granite",
        lambda writer: writer.add_rope_scaling_finetuned(False),
        "has no rotary positions",
    ),
    "a window of OLMo 3": (
        "olmo2",
        lambda writer: writer.add_sliding_window(8),
        "olmo2.attention.sliding_window is set",
    ),
    "no factor of YaRN": (
        "ministral3",
        lambda writer: replace(writer, "mistral3.rope.scaling.factor", 0.0),
        "mistral3.rope.scaling.factor must be 1 or more",
    ),
}


def replace(writer: GGUFWriter, key: str, value: object) -> None:
    writer.kv_data[0][key].value = value


@pytest.mark.parametrize("name", FAULTS)
def test_what_would_be_another_model_is_refused(tmp_path: Path, name: str) -> None:
    family, edit, says = FAULTS[name]
    with pytest.raises(UnsupportedModelError) as refused:
        made(tmp_path, family, edit)
    assert str(refused.value).startswith(f"{tmp_path / 'tiny.gguf'}: {says}")


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["<|end|>", "<|call|>", "<|return|>", "<|end|>x"], [1, 2]),  # gpt-oss
        (["<|end|>", "<|assistant|>", "<|endoftext|>", "a"], [0, 2]),  # Phi 3
    ],
)
def test_a_message_of_several_does_not_end_the_answer(
    tmp_path: Path, tokens: list[str], ends: list[int]
) -> None:
    values: dict[str, Value] = {
        "general.architecture": "phi3",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": array("i", [3, 3, 3, 1]),
    }
    config = {"bos_token_id": None, "vocab_size": 4}
    made = make_generation_config(Metadata(tmp_path, values), config)
    assert made["eos_token_id"] == ends
