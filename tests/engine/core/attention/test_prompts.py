"""Chunks of prompts after their contexts, by torch's attention, beside the reference.

On a GPU, where there is one, torch has another kernel.
"""

import dataclasses

import pytest
import torch

from engine.core.attention.backends import OpsAttention
from engine.core.attention.prompts import LEAST_QUERIES, attend_prompts, can_attend, key_places
from engine.core.attention.scores import Scores
from engine.core.ops import library as ops
from tests.engine.helpers.attention_cases import SCALE, Case

KINDS = [("cpu", torch.float32), ("cpu", torch.bfloat16)]
if torch.cuda.is_available():
    KINDS += [("cuda", torch.bfloat16), ("cuda", torch.float16)]


@pytest.mark.parametrize(("device", "dtype"), KINDS, ids=str)
@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("window", [0, 1, 40])
def test_chunks_are_attended_as_the_reference_does(
    window: int, page_size: int, device: str, dtype: torch.dtype
) -> None:
    lens = ((70, 70), (64, 200), (1, 40), (3, 5), (16, 16))
    case, scores = Case(page_size, dtype, lens, device), Scores(SCALE, window)
    out, places = torch.full_like(case.query, torch.nan), key_places(case.batch, page_size)
    attend_prompts(case.query, *case.caches, case.batch, places, out, scores)
    expected = case.attend(OpsAttention(ops.REFERENCE), window)
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


def test_what_it_cannot_compute_is_left_to_others() -> None:
    case = Case(16, torch.bfloat16, ((LEAST_QUERIES, 100),))
    query, (keys, values), batch = case.query, case.caches, case.batch
    assert can_attend(query, keys, values, batch, Scores(SCALE))
    assert can_attend(query, keys, values, batch, Scores(SCALE, sliding_window=99))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, softcap=5.0))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, sinks=torch.zeros(6)))
    assert not can_attend(query.float(), keys, values, batch, Scores(SCALE))
    assert not can_attend(query, keys, values[..., :16], batch, Scores(SCALE))
    short = dataclasses.replace(batch, max_query_len=LEAST_QUERIES - 1)
    assert not can_attend(query, keys, values, short, Scores(SCALE))
