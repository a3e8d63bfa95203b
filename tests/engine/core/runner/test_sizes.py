"""How large the KV cache, sequences and steps are, where nobody says it."""

import dataclasses
from typing import Any

import msgspec
import pytest
import torch
from transformers import Gemma3Config, GPT2Config, PretrainedConfig

from engine.config import EngineConfig
from engine.core.models.loader import load_model
from engine.core.ops import library as ops
from engine.core.runner.sizes import cache_bytes_per_token, resolve_sizes, step_bytes
from engine.errors import ValidationError
from tests.engine.helpers.greedy_oracle import Folders, families_in

GIB = 1 << 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


def test_sizes_are_clamped_to_positions_and_cache(folders: Folders) -> None:
    def sizes(**settings: Any) -> tuple[int | None, int | None]:
        config = EngineConfig(
            model=str(folders("gpt2")), address="", served_model_name="", **settings
        )
        resolved = resolve_sizes(config, load_model(config, ops.REFERENCE))
        return resolved.num_blocks, resolved.max_model_len

    assert sizes(max_num_seqs=3) == (96, 512)
    assert sizes(max_num_seqs=9999) == (8192, 512)
    assert sizes(max_model_len=100, max_num_seqs=1) == (7, 100)
    assert sizes(max_model_len=64, num_blocks=4) == (4, 64)
    assert sizes(num_blocks=4) == (4, 64)
    bytes_per_block = 16 * 3 * 4 * (16 + 16) * 4  # tokens, layers, heads, widths, float32
    assert sizes(kv_cache_memory_bytes=bytes_per_block * 9 + 1) == (9, 144)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_model_len": 513}, "max_model_len must be at most 512, the model's context, got 513"),
        (
            {"max_model_len": 65, "num_blocks": 4},
            "at most 64, which is all that the KV cache holds",
        ),
        ({"max_model_len": 512, "kv_cache_memory_bytes": 1 << 19}, "at most 336, which is all"),
    ],
)
def test_a_context_that_model_or_cache_cannot_have_is_refused(
    folders: Folders, settings: dict[str, Any], problem: str
) -> None:
    config = EngineConfig(model=str(folders("gpt2")), address="", served_model_name="", **settings)
    with pytest.raises(ValidationError, match=problem) as caught:
        resolve_sizes(config, load_model(config, ops.REFERENCE))
    assert caught.value.parameter == "max_model_len"


def test_a_step_has_so_many_tokens_as_the_device_is_worth_or_as_are_asked_for(
    folders: Folders,
) -> None:
    config = EngineConfig(model=str(folders("gpt2")), address="", served_model_name="")
    loaded = load_model(config, ops.REFERENCE)
    assert resolve_sizes(config, loaded).max_num_batched_tokens == 512
    config = msgspec.structs.replace(config, max_num_batched_tokens=40)
    assert resolve_sizes(config, loaded).max_num_batched_tokens == 40


class Gpu:
    """A GPU of 24 GiB, in which torch keeps what loading has freed until it is told not to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.used, self.kept = 16 * GIB, 4 * GIB
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (self.free, 24 * GIB))
        patch.setattr(torch.cuda, "empty_cache", self._let_go)

    @property
    def free(self) -> int:
        return 24 * GIB - self.used - self.kept

    def _let_go(self) -> None:
        self.kept = 0


def test_on_a_gpu_the_cache_gets_what_weights_and_steps_leave(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    config = EngineConfig(
        model=str(folders("gpt2")),
        address="",
        served_model_name="",
        max_num_seqs=1 << 20,  # whose logits would be too much: of 384 tokens, 12 bytes each
        max_num_batched_tokens=40,
        gpu_memory_utilization=1.0,
    )
    loaded = load_model(config, ops.REFERENCE)
    loaded = dataclasses.replace(loaded, device=torch.device("cuda"))
    assert step_bytes(config, loaded) > 4 * GIB
    resolved = resolve_sizes(config, loaded)
    room = 24 * GIB - gpu.used - step_bytes(config, loaded)
    assert resolved.num_blocks == room // (16 * cache_bytes_per_token(loaded))
    few = msgspec.structs.replace(config, max_num_seqs=1 << 18)
    num_blocks = resolve_sizes(few, loaded).num_blocks
    assert num_blocks == (24 * GIB - gpu.used - int(1.2 * GIB)) // (
        16 * cache_bytes_per_token(loaded)
    )


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_step_takes_more_with_more_rows_and_more_sequences(family: str, folders: Folders) -> None:
    config = EngineConfig(model=str(folders(family)), address="", served_model_name="")
    loaded = load_model(config, ops.REFERENCE)
    smallest, longer, wider = (
        step_bytes(msgspec.structs.replace(config, **changes), loaded)
        for changes in (
            {"max_num_batched_tokens": 40, "max_num_seqs": 4},
            {"max_num_batched_tokens": 41, "max_num_seqs": 4},
            {"max_num_batched_tokens": 40, "max_num_seqs": 5},
        )
    )
    assert wider - smallest == loaded.vocab_size * 12
    assert longer > smallest


@pytest.mark.parametrize(
    "config",
    [
        Gemma3Config(text_config={"hidden_size": 64, "intermediate_size": 96}),
        GPT2Config(n_embd=64, intermediate_size=[32, 96]),
    ],
    ids=["of parts", "of layers"],
)
def test_a_config_of_parts_or_of_different_layers_is_read(
    config: PretrainedConfig, folders: Folders
) -> None:
    settings = EngineConfig(
        model=str(folders("gpt2")),
        address="",
        served_model_name="",
        max_num_batched_tokens=10,
        max_num_seqs=0,
    )
    loaded = load_model(settings, ops.REFERENCE)
    loaded.model.config = config
    assert step_bytes(settings, loaded) == 10 * (8 * 64 + 4 * 96) * 4
