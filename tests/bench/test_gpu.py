"""What a GPU allows, by hand; and that shapes without weights are read as they are meant."""

from pathlib import Path

import pytest
import torch

from bench.gpu import GPU_SHAPES, QUICK, Device, Engine
from bench.peers.models import Checkpoint, make_without_weights

ON = Device(torch.device("cpu"), bandwidth=1e12, flops=1e14)
MODEL = Checkpoint("m", Path(), 1_000_000_000, 1000, 128, 2_000_000_000, 100)


def test_a_small_batch_is_bound_by_the_memory_and_a_large_one_by_multiplying() -> None:
    assert ON.decode_seconds(MODEL, 1, 0) == pytest.approx(2e-3)
    assert ON.decode_seconds(MODEL, 1, 1_000_000) == pytest.approx(4e-3)
    assert ON.decode_seconds(MODEL, 1000, 0) == pytest.approx(2e-2)


def test_a_prompt_multiplies_each_token_with_the_weights_and_with_those_before_it() -> None:
    assert ON.prefill_seconds(MODEL, 1000) == pytest.approx((2e12 + 5e7) / 1e14)


def test_the_shapes_are_those_of_the_models_they_stand_for(tmp_path: Path) -> None:
    model = make_without_weights(GPU_SHAPES["8B"], tmp_path / "8B")
    assert model.name == "8B" and 7.4e9 < model.num_weights < 7.7e9  # without its embeddings
    assert model.kv_values == 2 * 36 * 8 * 128


def test_a_batch_is_timed_behind_a_context_that_nobody_read(tmp_path: Path) -> None:
    engine = Engine(make_without_weights(GPU_SHAPES["tiny"], tmp_path / "tiny"), QUICK, ON)
    figure = engine.decode(4, 64)
    assert figure.value is not None and figure.value > 0 and figure.floor is not None
    assert engine.decode(4, 1 << 20).note == "does not fit"
    assert engine.prefill().value is not None
