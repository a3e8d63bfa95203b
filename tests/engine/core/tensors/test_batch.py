"""`build_batch`: where the tokens of a step lie, by hand for a mixed batch."""

from array import array

import pytest
import torch
from torch import Tensor

from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.core.tensors.batch import Batch, BatchMemory, build_batch
from engine.sampling_params import SamplingParams


def make_sequence(
    tokens: list[int], num_computed: int, blocks: list[int], params: SamplingParams | None = None
) -> Sequence:
    sequence = Sequence("c", "r", tokens, params or SamplingParams())
    sequence.num_computed_tokens = num_computed
    sequence.block_table = array("i", blocks)
    return sequence


def test_a_decode_and_two_chunks_follow_one_another() -> None:
    decode = make_sequence([10, 11, 12, 13, 14], 4, [7, 3])
    last_chunk = make_sequence([20, 21, 22, 23, 24, 25], 3, [5, 1])
    first_chunk = make_sequence([30, 31, 32, 33, 34, 35, 36], 0, [0, 2])
    batch = build_batch(
        [
            ScheduledSequence(decode, 1),
            ScheduledSequence(last_chunk, 3),
            ScheduledSequence(first_chunk, 5),
        ],
        4,
    )
    assert batch.input_ids.tolist() == [14, 23, 24, 25, 30, 31, 32, 33, 34]
    assert batch.positions.tolist() == [4, 3, 4, 5, 0, 1, 2, 3, 4]
    assert batch.slot_mapping.tolist() == [12, 23, 4, 5, 0, 1, 2, 3, 8]
    assert batch.block_tables.tolist() == [[7, 3], [5, 1], [0, 2]]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 4, 9]
    assert batch.seq_lens.tolist() == [5, 6, 5]
    assert batch.logits_rows.tolist() == [0, 3]  # the first chunk does not reach its last token


def test_shorter_block_tables_end_in_zeros_and_dtypes_are_as_documented() -> None:
    batch = build_batch(
        [
            ScheduledSequence(make_sequence([1], 0, [9]), 1),
            ScheduledSequence(make_sequence([1] * 9, 8, [4, 5, 6]), 1),
        ],
        4,
    )
    assert batch.block_tables.tolist() == [[9, 0, 0], [4, 5, 6]]
    for tensor in (batch.block_tables, batch.cu_seqlens_q, batch.seq_lens):
        assert tensor.dtype == torch.int32
    for tensor in (batch.input_ids, batch.positions, batch.slot_mapping, batch.logits_rows):
        assert tensor.dtype == torch.int64


def test_a_block_table_may_grow_after_its_batch_was_built() -> None:
    sequence = make_sequence([1] * 4, 0, [0])
    batch = build_batch([ScheduledSequence(sequence, 4)], 4)
    sequence.block_table.append(1)  # an exported buffer would refuse
    assert batch.block_tables.tolist() == [[0]]


def test_rows_of_padding_write_nothing_and_belong_to_no_sequence() -> None:
    decode = make_sequence([10, 11, 12, 13, 14], 4, [7, 3])
    first_chunk = make_sequence([30, 31, 32, 33, 34, 35], 0, [0, 2])
    scheduled = [ScheduledSequence(decode, 1), ScheduledSequence(first_chunk, 5)]
    batch = build_batch(scheduled, 4, row_multiple=4)
    assert (batch.num_tokens, batch.num_sampled) == (6, 1)
    assert batch.input_ids.tolist() == [14, 30, 31, 32, 33, 34, 0, 0]
    assert batch.positions.tolist() == [4, 0, 1, 2, 3, 4, 0, 0]
    assert batch.slot_mapping.tolist() == [12, 0, 1, 2, 3, 8, -1, -1]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 6]
    assert batch.seq_lens.tolist() == [5, 5]
    assert batch.logits_rows.tolist() == [0, 0, 0, 0]  # the first is wanted


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(1, 16), (16, 16), (17, 32)])
def test_rows_are_padded_to_the_next_multiple(num_tokens: int, num_rows: int) -> None:
    sequence = make_sequence([1] * num_tokens, 0, list(range(5)))
    batch = build_batch([ScheduledSequence(sequence, num_tokens)], 4, row_multiple=16)
    assert len(batch.input_ids) == len(batch.slot_mapping) == num_rows
    assert len(batch.logits_rows) == 16


def test_rows_of_scored_tokens_follow_those_that_are_sampled() -> None:
    scored = make_sequence([30, 31, 32, 33, 34, 35], 2, [0, 2], SamplingParams(prompt_logprobs=1))
    decode = make_sequence([10, 11, 12, 13, 14], 4, [7, 3])
    part = ScheduledSequence(scored, 4)
    assert part.scored == range(2, 5)  # after the last one comes the answer
    batch = build_batch([part, ScheduledSequence(decode, 1)], 4, row_multiple=4)
    assert (batch.num_sampled, batch.num_scored, batch.num_wanted) == (2, 3, 5)
    assert batch.logits_rows.tolist() == [3, 4, 0, 1, 2, 0, 0, 0]


def test_an_unknown_token_is_looked_for_in_the_rows_of_the_step_before() -> None:
    known, expecting = make_sequence([10, 11, 12], 2, [7]), make_sequence([20, 21], 2, [3])
    expecting.expect_token(row=4)
    chunk = make_sequence([30, 31, 32], 0, [0])
    scheduled = [ScheduledSequence(known, 1), ScheduledSequence(expecting, 1)]
    batch = build_batch([*scheduled, ScheduledSequence(chunk, 2)], 4, row_multiple=3)
    assert batch.unknown_rows is not None
    assert batch.unknown_rows.tolist() == [-1, 4, -1, -1, -1, -1]
    assert batch.positions.tolist()[:2] == [2, 2]
    assert build_batch(scheduled[:1], 4).unknown_rows is None


def test_what_follows_single_queries_is_a_batch_of_its_own() -> None:
    tables = torch.arange(8, dtype=torch.int32).view(4, 2)
    rest = Batch.of_attention([1, 1, 7, 2], [300, 5, 80, 2], tables).without_single()
    assert (rest.num_tokens, rest.num_single, rest.lens) == (9, 0, [(7, 80), (2, 2)])
    assert (rest.max_query_len, rest.max_seq_len) == (7, 80)
    assert rest.cu_seqlens_q.tolist() == [0, 7, 9]
    assert rest.seq_lens.tolist() == [80, 2]
    assert rest.block_tables.tolist() == [[4, 5], [6, 7]]


def test_a_step_that_samples_nothing_wants_no_logits() -> None:
    sequence = make_sequence([1] * 9, 0, [0, 1, 2])
    batch = build_batch([ScheduledSequence(sequence, 5)], 4, row_multiple=16)
    assert (batch.num_sampled, len(batch.logits_rows)) == (0, 0)


def tensors_of(batch: Batch) -> list[Tensor]:
    return [
        batch.input_ids,
        batch.positions,
        batch.slot_mapping,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.seq_lens,
        batch.logits_rows,
    ]


def test_the_next_batch_lies_in_the_same_memory_with_nothing_left_of_the_last() -> None:
    memory = BatchMemory()

    def build(lengths: list[int]) -> Batch:
        scheduled = []
        for length in lengths:
            sequence = make_sequence([*range(length)], length - 1, [*range(1, length // 4 + 2)])
            scheduled.append(ScheduledSequence(sequence, 1))
        alone = build_batch(scheduled, 4, row_multiple=4)
        batch = build_batch(scheduled, 4, row_multiple=4, memory=memory)
        pairs = zip(tensors_of(batch), tensors_of(alone), strict=True)
        assert all(torch.equal(*pair) and pair[0].is_contiguous() for pair in pairs)
        assert (batch.num_tokens, batch.num_sampled) == (alone.num_tokens, alone.num_sampled)
        return batch

    first = [tensor.data_ptr() for tensor in tensors_of(build([30, 9, 17, 2, 40]))]
    assert [tensor.data_ptr() for tensor in tensors_of(build([31, 10, 3, 3, 41]))] == first
    build([9, 2])
    assert [tensor.data_ptr() for tensor in tensors_of(build([8, 40, 1, 33, 7]))] == first


def test_without_memory_a_batch_keeps_its_tensors() -> None:
    sequence = make_sequence([5, 6], 1, [3])
    first = build_batch([ScheduledSequence(sequence, 1)], 4)
    sequence.num_computed_tokens = 0
    build_batch([ScheduledSequence(sequence, 1)], 4)
    assert (first.input_ids.tolist(), first.positions.tolist()) == ([6], [1])
