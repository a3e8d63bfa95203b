"""Checkpoints for sequence classification, against transformers' own class for them.

Prompts are read in chunks of five tokens, beside each other and beside embeddings.
"""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from engine.core.models.fused.decoder import FusedDecoder
from engine.errors import UnsupportedModelError
from engine.ipc import AddRequest
from engine.pooling import PoolingParams
from engine.sampling_params import SamplingParams
from tests.engine.helpers.greedy_oracle import make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.tiny_model import build_tiny_classifier, build_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

FUSED = ["llama", "qwen2", "qwen3", "mistral"]
UNFUSED = [
    *("gpt2", "gemma2", "gemma3", "phi3", "opt", "gpt_neox", "gpt_bigcode", "stablelm"),
    *("starcoder2", "olmo2", "smollm3", "qwen3_moe", "gpt_oss", "deepseek_v3"),
]


def ask(engine: SteppedEngine, request_id: str, prompt: list[int], **pooling: Any) -> None:
    params = SamplingParams(max_tokens=1)
    request = AddRequest(request_id, prompt, params, 0.0, pooling=PoolingParams(**pooling))
    assert engine.scheduler.add("me", request, 0.0) is not None


def numbers(engine: SteppedEngine, request_id: str) -> Tensor:
    end = engine.ends[request_id]
    assert (end.finish_reason, end.error) == ("stop", None)
    assert end.embedding is not None
    return torch.tensor(array("f", end.embedding))


def logits(folder: Path, prompt: list[int]) -> Tensor:
    """Of transformers: [num_labels]."""
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return found


def rewrite_config(folder: Path, **fields: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


@pytest.mark.parametrize("family", FUSED + UNFUSED)
def test_classes_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path, family)
    engine = SteppedEngine(folder, max_num_batched_tokens=5)
    assert engine.runner.loaded.tasks == ("embed", "classify")
    for number, prompt in enumerate(make_prompts()):
        ask(engine, f"raw {number}", prompt, task="classify", use_activation=False)
        ask(engine, f"embedding {number}", prompt)
        ask(engine, f"{number}", prompt, task="classify")
        engine.step()
    engine.run()
    for number, prompt in enumerate(make_prompts()):
        expected = logits(folder, prompt)
        assert (numbers(engine, f"raw {number}") - expected).abs().max() <= 1e-5
        assert (numbers(engine, f"{number}") - expected.softmax(0)).abs().max() <= 1e-5
        assert len(numbers(engine, f"embedding {number}")) == engine.runner.embedding_size


@needs_kernels
def test_families_are_fused_where_there_are_kernels(tmp_path: Path) -> None:
    for family in FUSED:
        engine = SteppedEngine(build_tiny_classifier(tmp_path / family, family))
        assert isinstance(engine.runner.loaded.fused, FusedDecoder)


def test_tied_embeddings_change_nothing(tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path, tie_word_embeddings=True)
    engine = SteppedEngine(folder)
    prompt = make_prompts()[0]
    ask(engine, "r", prompt, task="classify", use_activation=False)
    engine.run()
    assert (numbers(engine, "r") - logits(folder, prompt)).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_one_class_is_a_score(family: str, tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path, family, num_labels=1)
    engine = SteppedEngine(folder, max_num_batched_tokens=5)
    assert engine.runner.loaded.tasks == ("embed", "classify", "score")
    for number, prompt in enumerate(make_prompts()):
        for task in ("score", "classify"):
            ask(engine, f"{task} {number}", prompt, task=task)
        ask(engine, f"raw {number}", prompt, task="score", use_activation=False)
    engine.run()
    for number, prompt in enumerate(make_prompts()):
        expected = logits(folder, prompt)
        assert (numbers(engine, f"raw {number}") - expected).abs().max() <= 1e-5
        for task in ("score", "classify"):
            found = numbers(engine, f"{task} {number}")
            assert (found - torch.sigmoid(expected)).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("fields", "task", "activation"),
    [
        ({"problem_type": "multi_label_classification"}, "classify", torch.sigmoid),
        ({"problem_type": "single_label_classification"}, "classify", lambda x: x.softmax(0)),
        ({"problem_type": "regression"}, "classify", lambda x: x),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            "score",
            lambda x: x,
        ),
        (
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
            "score",
            torch.sigmoid,
        ),
    ],
)
def test_the_config_says_what_becomes_of_the_numbers(
    fields: dict[str, Any], task: str, activation: Any, tmp_path: Path
) -> None:
    folder = build_tiny_classifier(tmp_path, num_labels=1 if task == "score" else 4)
    rewrite_config(folder, **fields)
    engine = SteppedEngine(folder)
    prompt = make_prompts()[0]
    ask(engine, "r", prompt, task=task)
    engine.run()
    assert (numbers(engine, "r") - activation(logits(folder, prompt))).abs().max() <= 1e-5


def test_the_bits_are_the_same_alone_in_chunks_and_after_a_preemption(tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path)
    alone = SteppedEngine(folder)
    for number, prompt in enumerate(make_prompts()):
        ask(alone, str(number), prompt, task="classify", skip_reading_prefix_cache=True)
        alone.run()
    crowded = SteppedEngine(folder, max_num_batched_tokens=7)
    for number, prompt in enumerate(make_prompts()):
        ask(crowded, str(number), prompt, task="classify")
        crowded.step()
        crowded.scheduler.preempt_all()
    crowded.run()
    assert crowded.scheduler.totals.preemptions > 0
    for number in range(len(make_prompts())):
        assert numbers(alone, str(number)).equal(numbers(crowded, str(number)))


@pytest.mark.parametrize(
    ("build", "pooling"),
    [
        (build_tiny_model, PoolingParams(task="classify")),
        (build_tiny_model, PoolingParams(task="score")),
        (build_tiny_classifier, PoolingParams(task="score")),  # it has three classes
        (build_tiny_classifier, None),
    ],
)
def test_a_core_refuses_what_is_no_task_of_its_model(
    build: Any, pooling: PoolingParams | None, tmp_path: Path
) -> None:
    engine = SteppedEngine(build(tmp_path))
    request = AddRequest("r", [5, 6], SamplingParams(max_tokens=1), 0.0, pooling=pooling)
    engine.scheduler.add("me", request, 0.0)
    engine.step()
    end = engine.ends["r"]
    assert end.finish_reason == "error" and end.error is not None
    assert end.error[0] == "unsupported_parameter" and "has no task" in end.error[1]


def test_random_weights_classify(tmp_path: Path) -> None:
    engine = SteppedEngine(build_tiny_classifier(tmp_path), load_format="dummy")
    ask(engine, "r", [5, 6, 7], task="classify")
    engine.run()
    assert numbers(engine, "r").sum().item() == pytest.approx(1)


def test_a_pooling_runner_generates_nothing(tmp_path: Path) -> None:
    engine = SteppedEngine(build_tiny_model(tmp_path), runner="pooling")
    assert engine.runner.loaded.tasks == ("embed",)


# ---- folders that are refused


def test_a_generating_runner_refuses_a_model_that_classifies(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="generates no text"):
        SteppedEngine(build_tiny_classifier(tmp_path), runner="generate")


def test_a_head_of_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path)
    labels = {str(number): f"LABEL_{number}" for number in range(5)}
    rewrite_config(folder, id2label=labels)
    with pytest.raises(UnsupportedModelError, match=r"describes 5 classes .* shape \[3, 64\]"):
        SteppedEngine(folder)


def test_a_checkpoint_without_its_head_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=r"lacks score\.weight"):
        SteppedEngine(folder)


def test_a_score_of_an_unknown_activation_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path, num_labels=1)
    rewrite_config(folder, sentence_transformers={"activation_fn": "somewhere.Else"})
    with pytest.raises(UnsupportedModelError, match=r"somewhere\.Else.* is not known"):
        SteppedEngine(folder)
