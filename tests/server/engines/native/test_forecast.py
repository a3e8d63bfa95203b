"""What a model needs, foreseen by the headers of its files, beside what a core then takes."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from engine import CoreProcess, PrivateDirectory, demo_model
from engine.core.models.checkpoint import check_folder
from engine.errors import UnsupportedModelError
from engine.folder.gguf.derived import derive_folder
from engine.folder.quantized.layouts import QuantizedTensor
from server.config.models import ModelSource
from server.config.settings import Settings, load_settings
from server.engines.native.forecast import (
    CONVERSATION_TOKENS,
    PROCESS_BYTES,
    _float_bytes,
    cache_bytes,
    free_bytes,
    needed_bytes,
    own_bytes,
    read_facts,
)
from server.engines.native.preparation import core_config
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.engine.helpers.published.formats import FORMATS, write
from tests.helpers.tiny_model import build_tiny_model

MIB = 1 << 20


def settings_of(**given: Any) -> Settings:
    return load_settings(given, {})


def test_facts_are_what_the_files_say() -> None:
    facts = read_facts(settings_of(), demo_model())
    assert facts.format.startswith("safetensors") and facts.context_length == 8192
    assert facts.size_bytes == sum(f.stat().st_size for f in demo_model().glob("*.safetensors"))
    assert list(facts.smaller) == ["--quantize int8", "--quantize int4"]


def test_files_that_cannot_be_loaded_are_refused_as_by_loading_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModelError, match="is not valid JSON"):
        read_facts(settings_of(), tmp_path)


@pytest.mark.parametrize("way", ["plain", "int8", "int4", "float32"])
def test_weights_count_in_the_numbers_that_are_asked_for(way: str, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "m")
    checkpoint = check_folder(folder)
    given: dict[str, Any] = {
        "plain": {},
        "int8": {"quantize": "int8"},
        "int4": {"quantize": "int4"},
        "float32": {"dtype": "float32"},
    }[way]
    settings = settings_of(**given)
    weights = (
        needed_bytes(settings, checkpoint)
        - PROCESS_BYTES
        - cache_bytes(settings, checkpoint.config)
    )
    stored = sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
    share = weights / stored  # which is float32
    bounds = {
        "plain": (0.99, 1.01),
        "int8": (0.2, 0.6),
        "int4": (0.1, 0.5),
        "float32": (0.99, 1.01),
    }
    low, high = bounds[way]
    assert low < share < high


@pytest.mark.parametrize(("name", "bits"), [("awq", 5), ("gptq, 8 bits", 9), ("fp8, blocks", 32)])
def test_quantized_weights_count_as_what_becomes_of_them(
    name: str, bits: int, tmp_path: Path
) -> None:
    """Whole numbers stay such, with a share of scales; what has no packed form becomes floats."""
    own, floats = write(build_family(tmp_path / "whole", "llama"), tmp_path, FORMATS[name], None)
    settings = settings_of(dtype="auto")
    found, before = (needed_bytes(settings, check_folder(folder)) for folder in (own, floats))
    layers = [t for t in check_folder(own).tensors.values() if isinstance(t, QuantizedTensor)]
    numbers = sum(math.prod(tensor.shape) for tensor in layers)
    assert before - found == pytest.approx(numbers * (4 - bits / 8), abs=4)


def test_blocks_of_a_gguf_file_count_as_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a family of transformers' modules, too, whose linear layers and experts keep them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    original = build_family(tmp_path / "whole", "qwen3_moe")
    found = []
    for kind in ("Q8_0", "F32"):
        file = write_gguf(original, tmp_path / f"{kind}.gguf", kind)
        settings = settings_of(dtype="auto")
        found.append(needed_bytes(settings, check_folder(derive_folder(file))))
    tensors = check_folder(derive_folder(tmp_path / "Q8_0.gguf")).tensors
    layers = [t for name, t in tensors.items() if len(t.shape) > 1 and "embed" not in name]
    width = _float_bytes(settings_of(dtype="auto"), "F32", is_fused=False)
    numbers = sum(math.prod(tensor.shape) for tensor in layers)
    assert found[1] - found[0] == numbers * width - sum(tensor.num_bytes for tensor in layers)


def test_towers_of_a_text_half_do_not_count(tmp_path: Path) -> None:
    checkpoint = check_folder(build_family(tmp_path / "whole", "qwen2_5_vl"))
    assert any("visual" in name for name in checkpoint.tensors)
    text = {n: tensor for n, tensor in checkpoint.tensors.items() if "visual" not in n}
    alone = dataclasses.replace(checkpoint, tensors=text)
    assert needed_bytes(settings_of(), checkpoint) == needed_bytes(settings_of(), alone)


def test_a_cache_that_is_asked_for_counts_and_a_graphics_card_is_not_foreseen() -> None:
    config = check_folder(demo_model()).config
    assert cache_bytes(settings_of(kv_cache_memory_bytes=7), config) == 7
    on_gpu = settings_of(device="cuda")
    assert free_bytes(on_gpu) is None and read_facts(on_gpu, demo_model()).needs_bytes is None


def test_a_core_takes_what_was_foreseen() -> None:
    """The demo model's, with as much cache as the forecast counts."""
    settings = settings_of(kv_cache_memory_bytes=16 * MIB)
    directory = PrivateDirectory()
    model = ModelSource("demo")
    core = CoreProcess(core_config(settings, model, demo_model(), directory.address))
    try:
        core.wait_ready()
        taken, foreseen = own_bytes(core.pid), read_facts(settings, demo_model()).needs_bytes
        assert foreseen is not None
        assert 0.5 * foreseen < taken < 1.25 * foreseen
        assert own_bytes(core.pid) <= core.report["standby_bytes"] * 1.1
    finally:
        core.terminate()
        directory.remove()
    assert own_bytes(core.pid) == 0


@pytest.mark.parametrize("given", [None, [4096], "4096", {}])
def test_a_context_that_is_no_number_counts_as_one_conversation(given: Any) -> None:
    config = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}
    config |= {"max_position_embeddings": given}
    assert cache_bytes(settings_of(), config) == 2 * 1 * 2 * 4 * 2 * CONVERSATION_TOKENS
