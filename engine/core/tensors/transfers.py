"""Copies between the processor's memory and a GPU's in each step, which nothing waits for.

A copy from memory that the system may move waits for all that was started before it, so what is
sent and what comes back lies in pinned memory. There are two of each, which take turns: while a
step runs, the next one is written into the other.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.core.tensors.batch import Batch

ALIGNMENT = 16  # bytes: vectors of this size are read at once

Layout = Sequence[tuple[torch.dtype, tuple[int, ...]]]
Read = Callable[[], list[int]]
Send = Callable[[Sequence[Tensor]], list[Tensor]]  # as `Upload`, or `list` where nothing moves


class Upload:
    """One copy for all tensors of a step, into memory that grows to the largest step.

    They last until the next step's are sent.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_pinned = device.type == "cuda"
        self._on_device = torch.empty(0, dtype=torch.uint8, device=device)
        nothing = torch.empty(0, dtype=torch.uint8)
        self._hosts = [nothing, nothing]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        layout = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
        num_bytes = packed_bytes(layout)
        if num_bytes > len(self._on_device):
            self._on_device = self._on_device.new_empty(2 * num_bytes)
        host = self._next_host(num_bytes)
        for view, tensor in zip(unpack(host, layout), tensors, strict=True):
            view.copy_(tensor)
        on_device = self._on_device[:num_bytes]
        on_device.copy_(host, non_blocking=True)
        return unpack(on_device, layout)

    def send_batch(self, batch: Batch, others: Sequence[Tensor]) -> tuple[Batch, list[Tensor]]:
        """A batch and other tensors of the same step."""
        fields = [field.name for field in dataclasses.fields(batch)]
        names = [name for name in fields if isinstance(getattr(batch, name), Tensor)]
        sent = self([*(getattr(batch, name) for name in names), *others])
        of_batch: dict[str, Any] = dict(zip(names, sent[: len(names)], strict=True))
        return dataclasses.replace(batch, **of_batch), sent[len(names) :]

    def _next_host(self, num_bytes: int) -> Tensor:
        host = self._hosts.pop(0)
        if num_bytes > len(host):
            host = torch.empty(2 * num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)
        self._hosts.append(host)
        return host[:num_bytes]


class Download:
    """Brings the tokens that a step chooses back; `start` copies them, what it returns waits."""

    def __init__(self, device: torch.device, max_num_tokens: int) -> None:
        self._is_cuda = device.type == "cuda"
        self._hosts: list[tuple[Tensor, Any]] = []
        if self._is_cuda:
            self._hosts = [_pinned_with_event(max_num_tokens) for _ in range(2)]

    def start(self, tokens: Tensor) -> Read:
        """tokens: [n] int64, which the next step may write over; n may be 0.

        To have read them is to know that the step has ended.
        """
        if not self._is_cuda:
            values: list[int] = tokens.tolist()
            return lambda: values
        host, event = self._hosts.pop(0)
        self._hosts.append((host, event))
        place = host[: len(tokens)]
        place.copy_(tokens, non_blocking=True)
        event.record()

        def read() -> list[int]:
            event.synchronize()
            return place.tolist()

        return read


def packed_bytes(layout: Layout) -> int:
    """Bytes that tensors take one after another."""
    return sum(_padded_bytes(dtype, shape) for dtype, shape in layout)


def unpack(memory: Tensor, layout: Layout) -> list[Tensor]:
    """Views of one memory [num_bytes] uint8 as the tensors that lie in it one after another."""
    views, start = [], 0
    for dtype, shape in layout:
        size = torch.Size(shape).numel() * dtype.itemsize
        views.append(memory[start : start + size].view(dtype).view(shape))
        start += _padded_bytes(dtype, shape)
    return views


def _padded_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _pinned_with_event(size: int) -> tuple[Tensor, Any]:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives it no types
    return torch.empty(size, dtype=torch.int64, pin_memory=True), event
