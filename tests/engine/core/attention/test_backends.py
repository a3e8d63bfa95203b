"""Attention backends give what the reference gives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core.attention.backends import (
    AttentionBackend,
    FlashAttention2,
    FlashAttention4,
    OpsAttention,
    VarlenAttention,
)
from engine.core.ops import library as ops
from tests.engine.helpers.attention_cases import Case, flash_2, flash_4, varlen

REFERENCE = OpsAttention(ops.REFERENCE)
PLAYED: list[AttentionBackend] = [
    FlashAttention2(flash_2),
    FlashAttention4(flash_4),
    VarlenAttention(varlen, 64),
]


@pytest.mark.parametrize("backend", PLAYED, ids=lambda backend: backend.name)
@pytest.mark.parametrize("window", [0, 1, 40])
def test_a_library_is_asked_for_what_the_reference_computes(
    window: int, backend: AttentionBackend
) -> None:
    case = Case(backend.page_size)
    assert torch.equal(case.attend(backend, window), case.attend(REFERENCE, window))


@pytest.mark.parametrize("backend", PLAYED, ids=lambda backend: backend.name)
@pytest.mark.parametrize("window", [0, 40])
def test_single_queries_alone_see_all_that_was_before_them(
    window: int, backend: AttentionBackend
) -> None:
    case = Case(backend.page_size, lens=((1, 300), (1, 5)))
    assert torch.equal(case.attend(backend, window), case.attend(REFERENCE, window))


@pytest.mark.parametrize("backend", PLAYED[:2], ids=lambda backend: backend.name)
def test_flash_attention_caps_scores(backend: AttentionBackend) -> None:
    case = Case(backend.page_size)
    assert torch.equal(case.attend(backend, 0, 5.0), case.attend(REFERENCE, 0, 5.0))


def test_flash_attention_4_has_sinks() -> None:
    case = Case(128)
    numbers = (40, 0.0, case.sinks)
    backend = FlashAttention4(flash_4)
    assert torch.equal(case.attend(backend, *numbers), case.attend(REFERENCE, *numbers))


def test_what_all_layers_need_is_made_once_a_step() -> None:
    bounds = []

    def noting(*args: Any, **kwargs: Any) -> Tensor:
        bounds.append(kwargs["cu_seqlens_k"])
        return flash_2(*args, **kwargs)

    backend, case = FlashAttention2(noting), Case(256)
    for _ in range(2):
        case.attend(backend)
    Case(256).attend(backend)
    assert bounds[0] is bounds[1] and bounds[2] is not bounds[0]
