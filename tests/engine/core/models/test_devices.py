"""On every device that is there, steps that are started ahead give what transformers gives."""

from typing import Any

import pytest
import torch

from tests.engine.core.runner.test_memory import TAGS, Sleeper, answers
from tests.engine.helpers.greedy_oracle import (
    Folders,
    check_equals_transformers,
    families_in,
    make_prompts,
)
from tests.engine.helpers.stepped_engine import SteppedEngine

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, {"num_blocks": 7}, {"enforce_eager": True}], ids=str)
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_tokens_and_logits_are_those_of_transformers(
    family: str, settings: dict[str, Any], device: str, folders: Folders
) -> None:
    settings = {"dtype": "float32", "max_num_batched_tokens": 5, **settings}
    check_equals_transformers(folders(family), device=device, runs_ahead=True, **settings)


@pytest.mark.parametrize("device", DEVICES)
def test_answers_of_all_kinds_do_not_depend_on_when_a_step_begins(
    device: str, folders: Folders
) -> None:
    """On a GPU also: what is sent for a step is not written over while the one before reads it."""
    rows: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 1},
        {"temperature": 0.8, "top_p": 0.9, "logit_bias": {7: 2.0}, "seed": 2},
        {"temperature": 0, "min_tokens": 9, "stop_token_ids": [9]},
        {"temperature": 1.0, "top_k": 20, "repetition_penalty": 1.2, "seed": 3},
        {"temperature": 0, "allowed_token_ids": list(range(5, 60))},
        {"temperature": 1.0, "bad_words_token_ids": [[9], [7, 8]], "seed": 4},
    ]
    answers = []
    for runs_ahead in (False, True):
        engine = SteppedEngine(
            folders("qwen3"), device=device, dtype="float32", runs_ahead=runs_ahead
        )
        for number, (prompt, params) in enumerate(zip(make_prompts(), rows, strict=True)):
            engine.add(str(number), prompt, **params)
        engine.run()
        answers.append(engine.tokens)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_fails_while_the_next_step_has_begun_ends_alone(
    device: str, folders: Folders
) -> None:
    """What that step reads in the place of its token is thrown away."""
    engine = SteppedEngine(
        folders("llama"),
        device=device,
        dtype="float32",
        model_impl="transformers",
        runs_ahead=True,
    )
    alone = SteppedEngine(
        folders("llama"), device=device, dtype="float32", model_impl="transformers"
    )
    model: Any = engine.runner.loaded.model
    with torch.inference_mode():
        model.get_input_embeddings().weight[383] = torch.nan
    engine.add("bad", [383] * 5)
    for each in (engine, alone):
        each.add("good", [7, 8, 9], max_tokens=6)
        each.run()
    problem = ("engine_error", "the model gave no finite logits")
    assert engine.ends["bad"].error == problem
    assert engine.tokens["good"] == alone.tokens["good"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", [1, 2])
def test_answers_are_the_same_after_a_sleep(level: int, device: str, folders: Folders) -> None:
    """On a GPU decodes were recorded over memory that was given back meanwhile."""
    sleeper = Sleeper(folders("qwen3"), device=device, dtype="float32")
    expected, _, _ = answers(sleeper, [])
    tokens, _, _ = answers(sleeper, [(level, TAGS)])
    assert tokens == expected
    sleeper.close()
