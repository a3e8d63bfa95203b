"""A batch after a context that nobody read, and a prompt, on the CPU."""

from pathlib import Path

import torch

from bench.gpu.cases import GPU_SHAPES, QUICK
from bench.gpu.device import Device
from bench.gpu.stepped import Engine
from bench.peers.models import make_without_weights


def test_a_batch_is_timed_after_a_context_that_nobody_read(tmp_path: Path) -> None:
    on = Device(torch.device("cpu"), bandwidth=1e12, flops=1e14)
    engine = Engine(make_without_weights(GPU_SHAPES["tiny"], tmp_path / "tiny"), QUICK, on)
    figure = engine.decode(4, 64)
    assert figure.value is not None and figure.value > 0 and figure.floor is not None
    assert engine.decode(4, 1 << 20).note == "does not fit"
    assert engine.prefill().value is not None
