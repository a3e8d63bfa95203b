"""The loader: every folder either gives a model whose attention is ours, or one clear line."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PretrainedConfig

from engine.config import EngineConfig
from engine.core.attention import paged as attention
from engine.core.models import loader
from engine.core.ops import library as ops
from engine.errors import UnsupportedModelError
from tests.helpers.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("llama"), "llama")


def load(folder: Path, **settings: Any) -> loader.LoadedModel:
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    return loader.load_model(config, ops.REFERENCE)


def edit_config(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_checkpoint_is_described(llama: Path) -> None:
    loaded = load(llama)
    assert (loaded.vocab_size, loaded.max_positions, loaded.eos_token_ids) == (384, 512, [0])
    assert loaded.dtype == torch.float32
    assert [layer.shapes[0].num_kv_heads for layer in loaded.layers] == [2, 2, 2]
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_dummy_weights_need_no_files(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    assert load(tmp_path, load_format="dummy").vocab_size == 384


def test_eos_ids_of_both_configs_are_joined(tmp_path: Path) -> None:
    build_tiny_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    edit_config(tmp_path, eos_token_id=1)
    assert load(tmp_path).eos_token_ids == [0, 1, 2]


@pytest.mark.parametrize("has_native", [True, False])
def test_auto_dtype_is_the_checkpoints_unless_the_cpu_would_emulate_it(
    has_native: bool, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    edit_config(tmp_path, dtype="bfloat16")
    monkeypatch.setattr(loader, "_has_native_bfloat16", lambda: has_native)
    expected = torch.bfloat16 if has_native else torch.float32
    assert load(tmp_path, load_format="dummy").dtype == expected
    assert load(tmp_path, load_format="dummy", dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["bloom", "falcon", "mpt", "gptj"])
def test_models_that_do_not_call_our_attention_are_refused(family: str, tmp_path: Path) -> None:
    build_tiny_model(tmp_path, family)
    with pytest.raises(UnsupportedModelError, match=family) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 384}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}


@pytest.mark.parametrize(
    ("class_name", "fields", "problem"),
    [
        ("MambaConfig", {"state_size": 8}, "without paged attention"),
        ("JambaConfig", _HEADS | {"num_experts": 2}, "without paged attention"),
        ("Qwen3NextConfig", _HEADS | {"num_experts": 2}, "without paged attention"),
        ("Llama4TextConfig", _HEADS, "without paged attention.*chunked"),
        ("FalconH1Config", _HEADS, "without paged attention.*hybrid"),
        ("RwkvConfig", {}, "0 of 2 layers call our attention"),
        ("CodeGenConfig", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}, "0 of 2"),
        ("GPTNeoConfig", {"attention_types": [[["global", "local"], 1]]}, "not take our attention"),
        ("DogeConfig", _HEADS, "a mask of its own"),
        ("BertConfig", _HEADS, "BertSelfAttention reads a text in both directions"),
        ("MptConfig", {"d_model": 64, "n_heads": 4}, "mpt needs a mask, a cache or an input"),
    ],
)
def test_architectures_we_cannot_page_are_refused_with_one_line(
    class_name: str, fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    config: PretrainedConfig = getattr(transformers, class_name)(**_SMALL, **fields)
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=problem) as error:
        load(tmp_path, load_format="dummy")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"auto_map": {"AutoModel": "a.B"}, "model_type": "evil"}, "'evil' needs code of its own"),
        ({"model_type": "nonsense"}, "config.json"),
        ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "linear"),
        ({"num_kv_shared_layers": 1}, "shares keys and values"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vocab_size": 400}, r"vocab_size is 400, but lm_head\.weight .* shape \[384, 64\]"),
        ({"num_hidden_layers": 4}, r"num_hidden_layers is 4, the weights hold 3"),
        ({"attention_bias": True}, r"lacks 12 weights of its shape, first model\.layers\.0"),
    ],
)
def test_configs_we_cannot_serve_are_refused(
    fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    build_tiny_model(tmp_path, "llama")
    edit_config(tmp_path, **fields)
    with pytest.raises(UnsupportedModelError, match=problem):
        load(tmp_path)


def test_pickled_missing_and_broken_weights_are_refused(tmp_path: Path) -> None:
    build_tiny_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UnsupportedModelError, match=str(tmp_path)):
        load(tmp_path)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="only pickled weights"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(UnsupportedModelError, match="no safetensors"):
        load(tmp_path)


def test_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="is not a folder"):
        load(tmp_path / "absent")
    with pytest.raises(UnsupportedModelError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModelError, match="not valid JSON"):
        load(tmp_path)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    ],
    ids=["dynamic", "longrope"],
)
def test_ropes_that_depend_on_the_longest_sequence_are_kept_to_their_first_part(
    rope: dict[str, Any], llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    rope |= {"rope_theta": 10_000.0, "original_max_position_embeddings": 128}
    edit_config(tmp_path, rope_parameters=rope)
    with caplog.at_level(logging.INFO, logger="engine.core.models.loader"):
        assert load(tmp_path, load_format="dummy").max_positions == 128
    assert "128 positions of 512" in caplog.text


def test_two_models_side_by_side_share_no_cache(llama: Path) -> None:
    first, second = load(llama), load(llama)
    first.layers[0].key_cache = torch.zeros(1)
    assert second.layers[0].key_cache is None
    assert first.context is not second.context
    model: Any = first.model
    assert model.config._attn_implementation == attention.NAME


@pytest.mark.parametrize(
    ("cuda", "reason"), [(None, "this torch was built without CUDA"), ("13.0", "no GPU is seen")]
)
def test_a_gpu_that_is_not_there_is_reported_in_one_line(
    cuda: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(UnsupportedModelError, match=f"'cuda' was asked for, but {reason}"):
        loader.choose_device("cuda")
    assert loader.choose_device("auto").type == loader.choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("settings", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}])
def test_what_only_a_cpu_can_do_is_refused_on_a_gpu(
    settings: dict[str, Any], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "choose_device", lambda name: torch.device("cuda"))
    with pytest.raises(UnsupportedModelError, match="not possible here: the model runs on a GPU"):
        load(llama, **settings)
