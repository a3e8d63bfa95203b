"""What a device does at its best, and so the least that a step of a model can take on it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.peers.models import Checkpoint

VALUE_BYTES = 2  # of weights, keys and values: bfloat16


@dataclass(frozen=True, slots=True)
class Device:
    """What the device does at its best, measured here."""

    device: torch.device
    bandwidth: float  # bytes/s read and written by a copy
    flops: float  # of bfloat16 matrix products, 1/s

    @classmethod
    def measure(cls, name: str) -> "Device":
        device = torch.device(name)
        is_gpu = device.type == "cuda"
        source = torch.empty(1 << (31 if is_gpu else 26), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copying = time_of(lambda: target.copy_(source), device)
        width = 8192 if is_gpu else 512
        left, right = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
        out = torch.empty_like(left)
        multiplying = time_of(lambda: torch.mm(left, right, out=out), device)
        return cls(device, 2 * len(source) / copying, 2 * width**3 / multiplying)

    def decode_seconds(self, model: Checkpoint, batch: int, context: int) -> float:
        """The least that a step can take."""
        values = model.num_weights + batch * context * model.kv_values
        operations = 2 * model.num_weights * batch + batch * context * model.flops_per_key
        return max(VALUE_BYTES * values / self.bandwidth, operations / self.flops)

    def prefill_seconds(self, model: Checkpoint, num_tokens: int) -> float:
        pairs = num_tokens * num_tokens / 2
        operations = num_tokens * model.flops_per_token + pairs * model.flops_per_key
        return operations / self.flops

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def time_of(run: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """The median of some runs, in seconds."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    seconds = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
