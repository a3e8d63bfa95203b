"""The trial of a loaded model: it is refused only if nothing it says is a number."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core.models.checkpoint import Checkpoint
from engine.core.runner.answer_trial import TRIAL_TOKENS, check_answers, trial_parts
from engine.errors import UnsupportedModelError

NAN, INFINITY = float("nan"), float("inf")


def config(**sizes: int) -> EngineConfig:
    given = {"num_blocks": 8, "max_model_len": 64, **sizes}
    return EngineConfig(model="", address="", served_model_name="", **given)  # type: ignore[arg-type]


def check(folder: Path, *rows: list[float]) -> None:
    of_text = SimpleNamespace(rms_norm_eps=1e-5)
    loaded: Any = SimpleNamespace(
        model=SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: of_text)),
        checkpoint=Checkpoint(folder, config={}, tensors={}),
    )
    check_answers(loaded, lambda: torch.tensor(rows))


def test_two_texts_of_different_tokens_are_tried() -> None:
    first, second = trial_parts(384, config())
    assert len(first.sequence.token_ids) == TRIAL_TOKENS
    assert set(first.sequence.token_ids).isdisjoint(second.sequence.token_ids)
    assert first.sequence.block_table[0] != second.sequence.block_table[0]


@pytest.mark.parametrize("sizes", [{"num_blocks": 1}, {"max_num_seqs": 1}, {"max_model_len": 1}])
def test_the_texts_fit_into_small_sizes(sizes: dict[str, int]) -> None:
    parts = trial_parts(384, config(**sizes))
    assert len(parts) <= min(sizes.get("num_blocks", 2), sizes.get("max_num_seqs", 2))
    assert all(
        len(part.sequence.token_ids) <= sizes.get("max_model_len", TRIAL_TOKENS) for part in parts
    )


@pytest.mark.parametrize("other", [[NAN, 1.0], [-INFINITY, -INFINITY], [NAN, NAN]])
def test_one_text_with_an_answer_is_enough(other: list[float], tmp_path: Path) -> None:
    check(tmp_path, [0.5, -INFINITY], other)  # masked tokens are no fault
    with pytest.raises(UnsupportedModelError, match=r"config\.json: .* rms_norm_eps 1e-05"):
        check(tmp_path, other, other)
