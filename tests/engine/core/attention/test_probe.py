"""A way to compute attention is tried before a model relies on it."""

from typing import Any

import torch
from torch import Tensor

from engine.core.attention.backends import FlashAttention4, VarlenAttention
from engine.core.attention.probe import find_page_size, is_right
from tests.engine.helpers.attention_cases import HEAD_DIM, flash_4, varlen

CPU = torch.device("cpu")


def page_of(function: Any) -> int | None:
    def make(page_size: int) -> VarlenAttention:
        return VarlenAttention(function, page_size)

    return find_page_size(make, torch.bfloat16, CPU, HEAD_DIM)


def test_the_smallest_page_is_taken_that_gives_the_right_result() -> None:
    def refusing(out: Tensor, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> None:
        if key.shape[1] < 64:
            raise RuntimeError("page size must be a multiple of 64")
        if key.shape[1] == 64:  # is not looked at
            out.zero_()
            return
        varlen(out, query, key, *args, **kwargs)

    assert page_of(varlen) == 16
    assert page_of(refusing) == 128
    assert page_of(lambda out, *args, **kwargs: out.zero_()) is None


def test_single_queries_alone_are_tried_too() -> None:
    def without_single(out: Tensor, *args: Any, **kwargs: Any) -> None:
        if args[5] == 1:  # queries of a sequence, at most: `out` stays what it was
            return
        varlen(out, *args, **kwargs)

    assert page_of(without_single) is None


def test_a_library_that_cannot_be_called_is_not_right() -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise KeyError("sm_90")

    played = FlashAttention4(flash_4)
    assert is_right(played, torch.bfloat16, CPU, HEAD_DIM)
    assert not is_right(FlashAttention4(fail), torch.bfloat16, CPU, HEAD_DIM)
