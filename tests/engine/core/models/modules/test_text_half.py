"""The text half of models that also take pictures or sounds: all of it, and nothing besides.

`test_families.py` compares every family with transformers' whole model.
"""

import json
import logging
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

from engine.config import EngineConfig
from engine.core.models.checkpoint import check_folder
from engine.core.models.fused.support import FAMILIES, WHOLES
from engine.core.models.loader import LoadedModel, load_model
from engine.core.models.modules.general import read_configs
from engine.core.ops import library as ops
from engine.errors import UnsupportedModelError
from engine.folder.caches.families import RUNNING
from engine.folder.weight_headers import WEIGHTS
from tests.engine.helpers.family_models import build_family, family_config
from tests.engine.helpers.greedy_oracle import Reference, make_prompts
from tests.engine.helpers.lora.adapters import build_adapter, merged_model
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.root import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")

MAX_DIFFERENCE = 5e-5
HUGE = 1 << 30  # bytes, which take no room in their file
PAGES_AT_ONCE = 16  # that Linux maps where one of a file is touched
LANGUAGE = "language_model.model."  # what hub repositories call the text of a llava


def load(folder: Path, **settings: Any) -> LoadedModel:
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    return load_model(config, ops.choose("auto"))


def check_answers(folder: Path, reference: Path, **settings: Any) -> SteppedEngine:
    engine = SteppedEngine(folder, keeps_logits=True, max_num_batched_tokens=5, **settings)
    prompts = make_prompts()[:3]
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt)
    engine.run()
    theirs = Reference(reference)
    for number, prompt in enumerate(prompts):
        name = str(number)
        assert theirs.check(prompt, engine.tokens[name], engine.logits[name]) <= MAX_DIFFERENCE
    return engine


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the weights of a folder."""
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})


def rewrite_config(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_family(tmp_path_factory.mktemp("whole") / "llava", "llava")


@pytest.fixture
def copy(llava: Path, tmp_path: Path) -> Path:
    """Of it, to be changed."""
    folder = tmp_path / "changed"
    folder.mkdir()
    for file in llava.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_line_says_what_is_not_loaded(llava: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        loaded = load(llava)
    assert loaded.is_half
    assert caplog.messages.count("text only: the vision tower is not loaded") == 1


@pytest.mark.parametrize(
    ("model_type", "line"),
    [
        ("qwen2_audio", "text only: the audio tower is not loaded"),
        ("phi4_multimodal", "text only: the vision and audio towers are not loaded"),
        ("chameleon", "text only: not loaded are vqmodel"),
    ],
)
def test_the_line_names_the_kind_of_tower(
    model_type: str, line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load(build_family(tmp_path / model_type, model_type))
    assert line in caplog.messages


def test_a_model_of_text_alone_is_no_half(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not load(build_family(tmp_path / "gemma", "gemma")).is_half
    assert not [line for line in caplog.messages if "text only" in line]


def num_faults(folder: Path) -> int:
    """How often a page was new to this process while it loaded a model."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    load(folder)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_a_tower_holds_is_not_read(copy: Path, llava: Path) -> None:
    load(llava)  # whatever a first load needs
    content = (copy / WEIGHTS).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    end = len(content) - 8 - length
    header["vision_tower.huge.weight"] = {
        "dtype": "F32",
        "shape": [HUGE // 4],
        "data_offsets": [end, end + HUGE],
    }
    encoded = json.dumps(header).encode()
    with (copy / WEIGHTS).open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded + content[8 + length :])
    os.truncate(copy / WEIGHTS, (copy / WEIGHTS).stat().st_size + HUGE)
    num_pages = HUGE // resource.getpagesize()
    assert num_faults(copy) - num_faults(llava) < num_pages / PAGES_AT_ONCE / 2


def test_the_modules_of_a_half_hold_its_text_alone(tmp_path: Path) -> None:
    loaded = load(build_family(tmp_path / "glm4v", "glm4v"))
    names = [name for name, _ in loaded.model.named_parameters()]
    assert names and not [name for name in names if "visual" in name]


def test_a_weight_that_is_of_neither_half_is_refused(copy: Path) -> None:
    extra = {f"{LANGUAGE}layers.0.self_attn.q_norm.weight": torch.ones(16)}
    rewrite(copy, lambda tensors: tensors | extra)
    with pytest.raises(UnsupportedModelError, match=r"holds what the model does not take.*q_norm"):
        load(copy)


def test_a_missing_weight_of_the_text_is_refused(copy: Path) -> None:
    name = f"{LANGUAGE}layers.1.mlp.up_proj.weight"
    rewrite(copy, lambda tensors: {key: tensors[key] for key in tensors if key != name})
    with pytest.raises(UnsupportedModelError, match=r"lacks 1 weights.*layers\.1\.mlp.up_proj"):
        load(copy)


def test_a_tower_need_not_be_there(copy: Path, llava: Path) -> None:
    rewrite(copy, lambda tensors: {key: tensors[key] for key in tensors if "vision" not in key})
    check_answers(copy, llava)


def test_weights_may_have_the_names_of_either_generation(copy: Path, llava: Path) -> None:
    old = load_file(llava / WEIGHTS)
    assert f"{LANGUAGE}norm.weight" in old and "language_model.lm_head.weight" in old

    def rename(name: str) -> str:
        if name.startswith(LANGUAGE):
            return f"model.language_model.{name.removeprefix(LANGUAGE)}"
        return name.replace("language_model.lm_head", "lm_head").replace("vision", "model.vision")

    rewrite(copy, lambda tensors: {rename(name): tensors[name] for name in tensors})
    check_answers(copy, llava)
    check_answers(llava, llava)


def test_the_fields_of_the_text_may_be_those_of_the_whole(tmp_path: Path) -> None:
    folder = build_family(tmp_path / "qwen2_vl", "qwen2_vl")

    def flatten(config: dict[str, Any]) -> dict[str, Any]:
        text = config.pop("text_config")
        rope = text.pop("rope_parameters")
        scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        flat: dict[str, Any] = text | config
        return flat | {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}

    rewrite_config(folder, flatten)
    check_answers(folder, folder)


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "qwen2_5_omni_thinker"])
def test_a_type_that_is_said_of_the_whole_is_that_of_its_text(
    model_type: str, tmp_path: Path
) -> None:
    folder = build_family(tmp_path / model_type, model_type)
    rewrite_config(folder, lambda config: config | {"dtype": "bfloat16"})
    text = json.loads((folder / "config.json").read_text())["text_config"]
    assert "dtype" not in text
    _, text_config = read_configs(check_folder(folder))
    assert text_config.dtype == torch.bfloat16


def test_a_half_of_sliding_windows_is_that_of_transformers(tmp_path: Path) -> None:
    text = family_config("qwen2_vl").get_text_config().to_dict()
    windows = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}
    text = {key: value for key, value in text.items() if key != "layer_types"} | windows
    folder = build_family(tmp_path / "qwen2_vl", "qwen2_vl", text_config=text)
    check_answers(folder, folder)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_tied_embeddings_are_the_output_layer(model_type: str, tmp_path: Path) -> None:
    text = family_config(model_type).get_text_config().to_dict() | {"tie_word_embeddings": True}
    fields: dict[str, Any] = {"text_config": text, "tie_word_embeddings": True}
    folder = build_family(tmp_path / model_type, model_type, **fields)
    check_answers(folder, folder)


@pytest.mark.parametrize("model_type", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_what_thinks_of_a_model_that_speaks_answers_for_it(model_type: str, tmp_path: Path) -> None:
    thinker = build_family(tmp_path / "thinker", f"{model_type}_thinker")
    whole = build_family(tmp_path / "whole", f"{model_type}_thinker")
    rewrite_config(
        whole,
        lambda config: {
            "model_type": model_type,
            "thinker_config": config,
        },
    )
    speakers = ("talker.model", "token2wav.bigvgan", "code2wav.decoder")
    others = {f"{name}.weight": torch.ones(2) for name in speakers}
    rewrite(whole, lambda tensors: {f"thinker.{key}": tensors[key] for key in tensors} | others)
    check_answers(whole, thinker)


def test_the_table_in_the_docs_lists_every_half_that_runs_in_its_row() -> None:
    text = (ROOT / "docs" / "models.md").read_text().split("## Text halves")[1]
    fused, others = (line for line in text.splitlines() if line.startswith(("| in the", "| thr")))
    halves = RUNNING & {*MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    thinkers = {name for name in halves if name.endswith("_thinker")}
    assert set(re.findall(r"`(\w+)`", fused)) == WHOLES <= RUNNING
    assert set(re.findall(r"`(\w+)`", others)) == halves - WHOLES - thinkers


def test_the_families_in_the_docs_are_those_that_run() -> None:
    text = (ROOT / "docs" / "models.md").read_text().split("## Families")[1].split("\n## ")[0]
    fused, others = (line for line in text.splitlines() if line.startswith(("| fused", "| trans")))
    alone = RUNNING - {*MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    assert set(re.findall(r"`([\w-]+)`", fused)) == alone & FAMILIES
    assert set(re.findall(r"`([\w-]+)`", others)) == alone - FAMILIES


@needs_kernels
@pytest.mark.parametrize("model_type", ["llava", "mistral3", "qwen2_vl", "qwen3_vl"])
def test_a_half_that_is_a_fused_family_is_fused(model_type: str, tmp_path: Path) -> None:
    folder = build_family(tmp_path / model_type, model_type)
    assert load(folder).fused is not None
    assert load(folder, load_format="dummy").fused is not None
    assert load(folder, quantization="int8", kv_cache_dtype="int8").fused is not None


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(WHOLES))
def test_each_half_that_is_a_fused_family_is_fused(model_type: str, tmp_path: Path) -> None:
    assert load(build_family(tmp_path / model_type, model_type)).fused is not None


@needs_kernels
def test_both_ways_to_compute_a_half_are_that_of_transformers(llava: Path) -> None:
    for impl in ("fused", "transformers"):
        engine = check_answers(llava, llava, model_impl=impl)
        assert (engine.runner.loaded.fused is not None) is (impl == "fused")


@needs_kernels
def test_a_half_of_another_family_is_not_fused(tmp_path: Path) -> None:
    folder = build_family(tmp_path / "glm4v", "glm4v")
    with pytest.raises(UnsupportedModelError, match="'fused' is not possible here: glm4v_text is"):
        load(folder, model_impl="fused")
    text = family_config("llama").to_dict()
    folder = build_family(tmp_path / "aya", "aya_vision", text_config=text)
    with pytest.raises(UnsupportedModelError, match="aya_vision has other parts besides its text"):
        load(folder, model_impl="fused")


@needs_kernels
@pytest.mark.parametrize("impl", ["fused", "transformers"])
def test_an_adapter_of_the_whole_model_is_one_of_its_half(
    impl: str, llava: Path, tmp_path: Path
) -> None:
    targets = ("o_proj", "gate_proj", "down_proj")  # which the tower has none of
    folder = build_adapter(tmp_path / "adapter", llava, targets, size=0.15)
    engine = SteppedEngine(llava, keeps_logits=True, enable_lora=True, model_impl=impl)
    prompt = make_prompts()[0]
    engine.add("a", prompt, max_tokens=8, lora=engine.adapter(1, folder))
    engine.run()
    with torch.inference_mode():
        ids = torch.tensor([prompt + engine.tokens["a"][:-1]])
        expected = merged_model(llava, folder)(ids, use_cache=False).logits[0, len(prompt) - 1 :]
    assert engine.tokens["a"] == expected.argmax(-1).tolist()
    assert (torch.stack(engine.logits["a"]) - expected).abs().max() <= MAX_DIFFERENCE
