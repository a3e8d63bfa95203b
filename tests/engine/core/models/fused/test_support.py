"""What the fused decoder computes, and what it leaves to transformers."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from engine.config import EngineConfig
from engine.core.models import loader
from engine.core.models.fused import support
from engine.core.models.fused.decoder import FusedDecoder, fuse
from engine.core.models.loader import LoadedModel, load_model
from engine.core.models.modules.linear import PackedLinear
from engine.core.ops import library as ops
from engine.core.runner.model_runner import ModelRunner
from engine.core.tensors.batch import Batch
from engine.errors import UnsupportedModelError
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.tiny_model import build_tiny_model

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Without a compiler every model is transformers': then there is no choice to test.
    needs_kernels,
]


def load(folder: Path, **settings: Any) -> LoadedModel:
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    return load_model(config, ops.choose("auto"))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_these_families_are_fused(family: str, tmp_path: Path) -> None:
    assert load(build_tiny_model(tmp_path, family)).fused is not None


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "qwen3_moe", "olmo2", "phi3"])
def test_others_are_transformers(family: str, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path, family)
    assert load(folder).fused is None
    with pytest.raises(UnsupportedModelError, match=f"'fused' is not possible here: {family}"):
        load(folder, model_impl="fused")
    with pytest.raises(UnsupportedModelError, match="kv_cache_dtype 'int8' is not possible here"):
        load(folder, kv_cache_dtype="int8")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "qwen3_moe", "olmo2", "phi3"])
def test_others_have_their_linear_layers_in_few_bits(
    family: str, bits: int, tmp_path: Path
) -> None:
    folder = build_tiny_model(tmp_path, family)
    loaded = load(folder, quantization=f"int{bits}")
    layers = [module for module in loaded.model.modules() if isinstance(module, PackedLinear)]
    assert loaded.fused is None and loaded.dtype == torch.float32
    stored = torch.uint8 if bits == 8 else torch.int32
    assert len(layers) > 4 and {layer.get_buffer("panels").dtype for layer in layers} == {stored}
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("hidden_size", "head_dim", "is_packed"), [(64, 16, True), (36, 16, False), (64, 6, False)]
)
def test_only_widths_that_are_multiples_of_8_are_fused_in_4_bits(
    hidden_size: int, head_dim: int, is_packed: bool, tmp_path: Path
) -> None:
    config = LlamaConfig(
        hidden_size=hidden_size,
        head_dim=head_dim,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=1,
        intermediate_size=40,
        vocab_size=50,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert load(tmp_path, quantization="int8").fused is not None
    assert (load(tmp_path, quantization="int4").fused is not None) is is_packed


def test_nothing_is_in_8_bits_without_kernels(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path, "gemma2")
    with pytest.raises(UnsupportedModelError, match="'int8' is not possible here: no C"):
        load_model(
            EngineConfig(model=str(folder), address="", served_model_name="", quantization="int8"),
            ops.REFERENCE,
        )


def test_who_asks_for_transformers_gets_it(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path, "llama")
    assert load(folder, model_impl="transformers").fused is None
    with pytest.raises(UnsupportedModelError, match="'int8' is not possible here: model_impl"):
        load(folder, model_impl="transformers", kv_cache_dtype="int8")


@pytest.mark.parametrize(
    ("setting", "obstacle"),
    [
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "of type dynamic"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "rotated in part",
        ),
        ({"attention_bias": True}, "biases"),
        ({"mlp_bias": True}, "biases"),
        ({"head_dim": 15}, "odd widths"),
        ({"num_key_value_heads": 3}, "do not divide"),
    ],
    ids=str,
)
def test_a_config_with_something_else_is_not_fused(
    setting: dict[str, Any], obstacle: str, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(build_tiny_model(tmp_path, "llama"))
    assert support.obstacle(config) is None
    config.update(setting)
    assert obstacle in str(support.obstacle(config))


@pytest.mark.parametrize(
    ("setting", "obstacle"),
    [
        ({"hidden_size": 68}, "multiples of 8"),
        ({"intermediate_size": 100}, "multiples of 8"),
        ({"hidden_size": 20_480}, "rows of more than 16384"),
        ({"head_dim": 514}, "heads of more than 512"),
    ],
    ids=str,
)
def test_what_the_kernels_of_gpus_do_not_take_is_transformers_there(
    setting: dict[str, Any], obstacle: str, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(build_tiny_model(tmp_path, "llama"))
    assert support.gpu_obstacle(config) is None
    config.update(setting)
    assert support.obstacle(config) is None
    assert obstacle in str(support.gpu_obstacle(config))
    settings = EngineConfig(model="m", address="a", served_model_name="m")
    built = dataclasses.replace(ops.REFERENCE, name="cuda")
    assert not loader._choose_fused(settings, config, torch.device("cuda"), built)


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cache_has_the_dtype_that_was_asked_for(
    dtype: str, quantization: str | None, tmp_path: Path
) -> None:
    folder = build_tiny_model(tmp_path, "llama")
    fused = load(folder, dtype=dtype, quantization=quantization).fused
    assert isinstance(fused, FusedDecoder)
    assert fused.cache_bytes_per_token == 2 * 3 * 2 * 16 * (4 if dtype == "float32" else 2)
    fused.allocate_cache(2, 32)
    assert fused.loaded is not None
    cache = fused.loaded.cache
    assert cache.keys.dtype == cache.values.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_of_bytes_has_a_scale_for_each_head_of_a_token(dtype: str, tmp_path: Path) -> None:
    fused = load(build_tiny_model(tmp_path, "llama"), dtype=dtype, kv_cache_dtype="int8").fused
    assert isinstance(fused, FusedDecoder)
    assert fused.cache_bytes_per_token == 2 * 3 * 2 * (16 + 4)
    fused.allocate_cache(2, 32)
    assert fused.loaded is not None
    cache = fused.loaded.cache
    assert cache.keys.dtype == torch.int8 and cache.scales is not None
    assert cache.scales.shape == (3, 2, 2, 2, 16)


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
def test_only_packed_weights_and_embeddings_that_are_not_tied_are_kept(
    is_tied: bool, quantization: str | None, tmp_path: Path
) -> None:
    folder = build_tiny_model(tmp_path, "llama")
    if is_tied:
        model = AutoModelForCausalLM.from_pretrained(folder, tie_word_embeddings=True)
        model.tie_weights()
        model.save_pretrained(folder)
    loaded = load(folder, quantization=quantization)
    assert isinstance(loaded.fused, FusedDecoder)
    assert (loaded.fused.weights.embeddings is None) is is_tied
    assert all(parameter.is_meta for parameter in loaded.model.parameters())
    maps = Path("/proc/self/maps").read_text()
    assert f"{folder}/model.safetensors\n" not in maps  # nor is the file that they came from


@pytest.mark.parametrize(
    ("settings", "num_positions"),
    [({"num_blocks": 4}, 64), ({"num_blocks": 400}, 6400), ({"max_model_len": 100}, 100)],
    ids=str,
)
def test_rotations_are_kept_for_as_many_positions_as_a_sequence_can_have(
    settings: dict[str, Any], num_positions: int, tmp_path: Path
) -> None:
    """The config speaks of a million, a table of which takes 64 MB even in this tiny model."""
    folder = build_tiny_model(tmp_path, "llama")
    hf_config = AutoConfig.from_pretrained(folder)
    hf_config.max_position_embeddings = 1_000_000
    hf_config.save_pretrained(folder)
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    runner = ModelRunner(load_model(config, ops.choose("auto")), config)
    assert runner.config.max_model_len == num_positions
    fused = runner.loaded.fused
    assert isinstance(fused, FusedDecoder) and fused.loaded is not None
    assert fused.loaded.rotary.shape == (num_positions, 2, 8)


@pytest.mark.parametrize("setting", ["attention_bias", "mlp_bias"])
def test_a_layer_with_a_parameter_too_many_is_seen(setting: str, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(build_tiny_model(tmp_path, "llama"), **{setting: True})
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"layer 0 has .*bias"):
        fuse(model, ops.REFERENCE.decoder_step, "float32", torch.float32)


def test_logits_of_every_step_lie_in_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SteppedEngine(build_tiny_model(tmp_path, "llama"))
    forward, places = engine.runner.forward, set()

    def noted(batch: Batch) -> torch.Tensor:
        logits = forward(batch)
        places.add(logits.data_ptr())
        return logits

    monkeypatch.setattr(engine.runner, "forward", noted)
    for name in ("one", "other"):
        engine.add(name, [5, 6, 7], max_tokens=5)
    engine.run()
    assert len(places) == 1


def test_windows_are_those_of_each_layer(tmp_path: Path) -> None:
    def windows(family: str, **settings: Any) -> tuple[int, ...]:
        config = AutoConfig.from_pretrained(build_tiny_model(tmp_path / family, family))
        config.update(settings)
        return support.windows(config)

    assert windows("llama", sliding_window=8) == (0, 0, 0)
    assert windows("mistral", sliding_window=8, layer_types=["full_attention"] * 3) == (8, 8, 8)
    types = ["full_attention", "sliding_attention", "full_attention"]
    assert windows("qwen3", sliding_window=8, layer_types=types) == (0, 8, 0)
