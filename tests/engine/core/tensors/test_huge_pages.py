"""Memory that is taken when it is first used."""

import psutil
import pytest
import torch

from engine.core.tensors import huge_pages


def test_memory_begins_with_zeros_of_the_shape_and_dtype_asked_for() -> None:
    memory = huge_pages.zeros((3, 5, 7), torch.bfloat16)
    assert memory.shape == (3, 5, 7) and memory.dtype == torch.bfloat16
    assert not memory.any()
    memory[2, 4, 6] = 1  # it can be written to
    assert memory.sum() == 1


def test_memory_is_not_taken_before_it_is_used() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    memory = huge_pages.zeros((1 << 30,), torch.uint8)
    assert process.memory_info().rss - before < 1 << 28
    assert memory[-1] == 0


def test_more_than_the_system_has_is_refused() -> None:
    with pytest.raises(MemoryError):
        huge_pages.zeros((1 << 62,), torch.uint8)
