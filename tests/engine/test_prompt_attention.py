"""Chunks of prompts behind their contexts, by torch's attention, beside the reference."""

import dataclasses

import pytest
import torch
from torch import Tensor

from engine.batch import Batch
from engine.ops import paged_attention_reference
from engine.prompt_attention import LEAST_QUERIES, attend_prompts, can_attend
from engine.scores import Scores

HEAD_DIM = 32
SCALE = HEAD_DIM**-0.5


class Case:
    """Chunks, each the end of its sequence; slots that nobody uses hold NaN."""

    def __init__(self, lens: list[tuple[int, int]], page_size: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(page_size)
        num_blocks = [-(-length // page_size) for _, length in lens]
        order = torch.randperm(sum(num_blocks), generator=generator).int()
        tables = torch.zeros(len(lens), max(num_blocks), dtype=torch.int32)
        caches = [torch.full((len(order), page_size, 2, HEAD_DIM), torch.nan) for _ in "kv"]
        for row, blocks in enumerate(torch.split(order, num_blocks)):
            tables[row, : len(blocks)] = blocks
            for place in range(lens[row][1]):
                for cache in caches:
                    numbers = torch.randn(2, HEAD_DIM, generator=generator)
                    cache[blocks[place // page_size], place % page_size] = numbers
        self.keys, self.values = (cache.to(dtype) for cache in caches)
        self.batch = Batch.of_attention([one for one, _ in lens], [two for _, two in lens], tables)
        num_tokens = self.batch.num_tokens
        self.query = torch.randn(num_tokens, 6, HEAD_DIM, generator=generator).to(dtype)

    def expected(self) -> Tensor:
        batch, out = self.batch, torch.empty_like(self.query)
        indices = (batch.block_tables, batch.cu_seqlens_q, batch.seq_lens)
        tensors = (self.query, self.keys, self.values, *indices, out)
        paged_attention_reference(*tensors, SCALE, 0, 0.0, None)
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("page_size", [16, 256])
def test_chunks_are_attended_as_the_reference_does(page_size: int, dtype: torch.dtype) -> None:
    case = Case([(1, 40), (1, 3), (70, 70), (64, 200), (3, 5), (16, 16)], page_size, dtype)
    out = torch.full_like(case.query, torch.nan)
    attend_prompts(case.query, case.keys, case.values, case.batch, out, SCALE, first=2)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(out[2:], case.expected()[2:], rtol=0, atol=tolerance)
    assert out[:2].isnan().all()  # single queries are somebody else's


def test_what_it_cannot_compute_is_left_to_others() -> None:
    case = Case([(LEAST_QUERIES, 100)], 16, torch.bfloat16)
    query, keys, values, batch = case.query, case.keys, case.values, case.batch
    assert can_attend(query, keys, values, batch, Scores(SCALE))
    assert can_attend(query, keys, values, batch, Scores(SCALE, sliding_window=100))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, sliding_window=99))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, softcap=5.0))
    assert not can_attend(query, keys, values, batch, Scores(SCALE, sinks=torch.zeros(6)))
    assert not can_attend(query.float(), keys, values, batch, Scores(SCALE))
    assert not can_attend(query, keys, values[..., :16], batch, Scores(SCALE))
    short = dataclasses.replace(batch, max_query_len=LEAST_QUERIES - 1)
    assert not can_attend(query, keys, values, short, Scores(SCALE))
