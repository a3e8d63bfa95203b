"""`LLM` of a checkpoint that classifies, against transformers' own class; and the core killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from engine import (
    LLM,
    ClassificationRequestOutput,
    EngineDeadError,
    PoolingParams,
    SamplingParams,
    UnsupportedModelError,
    ValidationError,
)
from tests.helpers.tiny_model import build_tiny_classifier

pytestmark = pytest.mark.slow

TEXTS = ["The lighthouse keeper wrote a letter", "to the sea", "and the sea wrote back in foam."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    parent = tmp_path_factory.mktemp("classifiers")
    return {
        number: build_tiny_classifier(parent / f"{number}", "qwen3", number) for number in (1, 3)
    }


def start(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), num_gpu_blocks_override=300, threads=1, **options)


@pytest.fixture(scope="module")
def three(folders: dict[int, Path]) -> Iterator[LLM]:
    with start(folders[3], runner="pooling") as llm:
        yield llm


@pytest.fixture(scope="module")
def one(folders: dict[int, Path]) -> Iterator[LLM]:
    with start(folders[1]) as llm:
        yield llm


def expected(folder: Path, *texts: Any) -> list[Tensor]:
    """transformers' logits of each text, or pair of texts."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    found = []
    for text in texts:
        both = [text] if isinstance(text, str) else text
        ids = tokenizer(*both, return_tensors="pt").input_ids
        with torch.inference_mode():
            found.append(model(ids, use_cache=False).logits[0])
    return found


def test_probabilities_equal_those_of_transformers(three: LLM, folders: dict[int, Path]) -> None:
    outputs = three.classify(TEXTS)
    for output, logits in zip(outputs, expected(folders[3], *TEXTS), strict=True):
        assert isinstance(output, ClassificationRequestOutput) and output.outputs.num_classes == 3
        assert (torch.tensor(output.outputs.probs) - logits.softmax(0)).abs().max() <= 1e-5
    raw = three.classify(TEXTS[0], pooling_params=PoolingParams(use_activation=False))
    difference = torch.tensor(raw[0].outputs.probs) - expected(folders[3], TEXTS[0])[0]
    assert difference.abs().max() <= 1e-5


def test_pairs_are_scored_as_one_prompt(one: LLM, folders: dict[int, Path]) -> None:
    outputs = one.score(TEXTS[0], TEXTS[1:])
    wanted = expected(folders[1], *[(TEXTS[0], text) for text in TEXTS[1:]])
    for output, logits in zip(outputs, wanted, strict=True):
        assert output.outputs.score == pytest.approx(torch.sigmoid(logits).item(), abs=1e-5)


def test_the_engine_says_what_it_can_do(three: LLM, one: LLM) -> None:
    assert three.get_supported_tasks() == ("embed", "classify")
    assert one.get_supported_tasks() == ("embed", "classify", "score")
    assert one.collective_rpc("get_supported_tasks") == [["embed", "classify", "score"]]
    assert len(three.embed(TEXTS[0])[0].outputs.embedding) == 64


@pytest.mark.parametrize("level", [1, 2])
def test_the_classes_are_the_same_after_a_sleep(level: int, three: LLM) -> None:
    before = [output.outputs.probs for output in three.classify(TEXTS)]
    three.sleep(level=level)
    assert three.is_sleeping() is True
    three.wake_up()
    assert three.is_sleeping() is False
    assert [output.outputs.probs for output in three.classify(TEXTS)] == before


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda llm: llm.generate(TEXTS, SamplingParams(max_tokens=2)), "no task 'generate'"),
        (lambda llm: llm.score(TEXTS[0], TEXTS[1]), "no task 'score'"),
        (lambda llm: llm.encode(TEXTS, PoolingParams(task="score")), "no task 'score'"),
        (lambda llm: llm.classify(TEXTS, pooling_params=PoolingParams(task="embed")), "classify"),
    ],
)
def test_what_is_no_task_of_the_model_is_refused(call: Any, problem: str, three: LLM) -> None:
    with pytest.raises(ValidationError, match=problem):
        call(three)
    assert three.llm_engine.get_num_unfinished_requests() == 0


def test_a_program_that_wants_to_generate_is_refused_at_the_start(
    folders: dict[int, Path],
) -> None:
    with pytest.raises(UnsupportedModelError, match="generates no text"):
        start(folders[3], runner="generate")


def test_an_abort_in_the_queue_or_in_the_prompt_frees_its_blocks(three: LLM) -> None:
    engine = three.llm_engine
    for number in range(8):
        engine.add_request(f"r{number}", [5 + number] * 500, PoolingParams(task="classify"))
    engine.abort_request([f"r{number}" for number in range(7)])
    ended = []
    while engine.has_unfinished_requests():
        ended += [output.request_id for output in engine.step()]
    assert ended == ["r7"]
    metrics = three.get_metrics()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


def test_a_killed_core_raises(folders: dict[int, Path]) -> None:
    llm = start(folders[3])
    assert llm._engine._parts.core is not None
    doomed = llm._engine._parts.core.process

    class KillingBar:
        format_dict = {"elapsed": 0.0}  # noqa: RUF012  (tqdm's name, which nobody changes)

        def __init__(self, **options: Any) -> None:
            pass

        def update(self, number: int) -> None:
            doomed.kill()

        def close(self) -> None:
            pass

    with pytest.raises(EngineDeadError):
        for _ in range(1000):  # until one is under way when it dies
            llm.classify([[7] * 500] * 20, use_tqdm=KillingBar)
    llm.shutdown()
