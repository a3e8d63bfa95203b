"""What a GPU allows, by hand."""

from pathlib import Path

import pytest
import torch

from bench.gpu.device import Device
from bench.peers.models import Checkpoint

ON = Device(torch.device("cpu"), bandwidth=1e12, flops=1e14)
MODEL = Checkpoint("m", Path(), 1_000_000_000, 1000, 128, 2_000_000_000, 100)


def test_a_small_batch_is_bound_by_the_memory_and_a_large_one_by_multiplying() -> None:
    assert ON.decode_seconds(MODEL, 1, 0) == pytest.approx(2e-3)
    assert ON.decode_seconds(MODEL, 1, 1_000_000) == pytest.approx(4e-3)
    assert ON.decode_seconds(MODEL, 1000, 0) == pytest.approx(2e-2)


def test_a_prompt_multiplies_each_token_with_the_weights_and_with_those_before_it() -> None:
    assert ON.prefill_seconds(MODEL, 1000) == pytest.approx((2e12 + 5e7) / 1e14)
