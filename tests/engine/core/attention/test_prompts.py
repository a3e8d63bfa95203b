"""Chunks of prompts after their contexts, by torch's attention, beside the reference."""

import dataclasses

import pytest
import torch

from engine.core.attention.backends import OpsAttention
from engine.core.attention.prompts import LEAST_QUERIES, attend_prompts, can_attend
from engine.core.attention.scores import Scores
from engine.core.ops import library as ops
from tests.engine.helpers.attention_cases import SCALE, Case


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("page_size", [16, 256])
def test_chunks_are_attended_as_the_reference_does(page_size: int, dtype: torch.dtype) -> None:
    case = Case(page_size, dtype, ((70, 70), (64, 200), (1, 40), (3, 5), (16, 16)))
    out = torch.full_like(case.query, torch.nan)
    attend_prompts(case.query, *case.caches, case.batch, out, SCALE)
    expected = case.attend(OpsAttention(ops.REFERENCE))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


def test_what_it_cannot_compute_is_left_to_others() -> None:
    case = Case(16, torch.bfloat16, ((LEAST_QUERIES, 100),))
    query, (keys, values), batch = case.query, case.caches, case.batch
    assert can_attend(query, keys, values, batch, Scores(SCALE))
    assert can_attend(query, keys, values, batch, Scores(SCALE, sliding_window=100))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, sliding_window=99))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, softcap=5.0))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, sinks=torch.zeros(6)))
    assert not can_attend(query.float(), keys, values, batch, Scores(SCALE))
    assert not can_attend(query, keys, values[..., :16], batch, Scores(SCALE))
    short = dataclasses.replace(batch, max_query_len=LEAST_QUERIES - 1)
    assert not can_attend(query, keys, values, short, Scores(SCALE))
