"""Recorded decodes: sizes, inputs and padding; and that replays give what transformers gives.

What a CPU cannot record is played by a recorder that computes again whenever it is replayed.
"""

from array import array
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from engine.core.runner.decode_graphs import DecodeGraphs, DecodeInputs, Forward, sizes_up_to
from engine.core.sampling.sampler import Choices, Sampler
from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.core.tensors.batch import Batch, build_batch
from engine.sampling_params import SamplingParams

CPU = torch.device("cpu")


def decode(num_tokens: int, blocks: list[int]) -> ScheduledSequence:
    """The last token of a text."""
    sequence = Sequence("c", "r", list(range(100, 100 + num_tokens)), SamplingParams())
    sequence.block_table = array("i", blocks)
    sequence.num_computed_tokens = num_tokens - 1
    return ScheduledSequence(sequence, 1)


def choices_of(scheduled: list[ScheduledSequence]) -> Choices:
    return Sampler().choices([item.sequence for item in scheduled], 500)


def fill(inputs: DecodeInputs, scheduled: list[ScheduledSequence]) -> Choices:
    choices = choices_of(scheduled)
    inputs.fill(scheduled, choices)
    return choices


def record_again(forward: Forward, batch: Batch) -> tuple[Callable[[], None], Tensor]:
    """What is "replayed" is computed again, into the same memory."""
    logits = forward(batch).to(torch.float32, copy=True)

    def replay() -> None:
        logits.copy_(forward(batch))

    return replay, logits


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (4, [1, 2, 4]),
        (20, [1, 2, 4, 8, 16, 20]),
        (100, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100]),
    ],
)
def test_sizes_grow_with_the_batch(max_num_seqs: int, sizes: list[int]) -> None:
    assert sizes_up_to(max_num_seqs) == sizes


def test_many_sequences_have_few_sizes() -> None:
    sizes = sizes_up_to(1024)
    assert sizes == sorted(set(sizes)) and len(sizes) < 30
    assert all(later <= 2 * earlier for earlier, later in pairwise(sizes))


def test_inputs_are_those_of_a_batch_and_the_rest_is_padding() -> None:
    inputs = DecodeInputs(4, max_blocks=3, block_size=16, device=CPU)
    scheduled = [decode(20, [5, 2]), decode(1, [7])]
    for _ in range(2):  # into both memories
        fill(inputs, [decode(48, [9, 9, 9])] * 4)  # of which nothing may stay
    choices = fill(inputs, scheduled)
    batch, expected = inputs.batch, build_batch(scheduled, 16)
    for name in ("input_ids", "positions", "slot_mapping", "seq_lens", "logits_rows"):
        assert torch.equal(getattr(batch, name)[:2], getattr(expected, name)), name
    assert torch.equal(batch.block_tables[:2, :2], torch.tensor([[5, 2], [7, 9]]))
    assert torch.equal(inputs.choices.numbers[:, :2], choices.numbers)
    assert torch.equal(inputs.choices.top_k[:2], choices.top_k)
    assert batch.slot_mapping[2:].tolist() == [-1, -1]
    assert batch.unknown_rows is not None and batch.unknown_rows.tolist() == [-1] * 4
    assert batch.seq_lens[2:].tolist() == batch.input_ids[2:].tolist() == [0, 0]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 2, 3, 4]


def test_the_smallest_size_that_suffices_is_replayed() -> None:
    passes: list[int] = []

    def forward(batch: Batch) -> Tensor:
        passes.append(batch.num_tokens)
        return batch.input_ids[:, None].float()

    graphs = DecodeGraphs(
        forward, max_num_seqs=8, max_blocks=2, block_size=16, device=CPU, record=record_again
    )
    assert passes == [8, 4, 2, 1]  # all at once, the largest first
    scheduled = [decode(3, [0]), decode(9, [1]), decode(20, [2, 3])]
    replayed = graphs.run(scheduled, choices_of(scheduled))
    assert replayed is not None
    logits, choices = replayed
    assert logits.tolist() == [[102], [108], [119]]
    assert torch.equal(choices.numbers, choices_of(scheduled).numbers)
    assert passes[4:] == [4]


def test_steps_with_prompts_and_of_too_many_are_not_replayed() -> None:
    graphs = DecodeGraphs(
        lambda batch: batch.positions[:, None].float(),
        max_num_seqs=2,
        max_blocks=2,
        block_size=16,
        device=CPU,
        record=record_again,
    )
    text = decode(9, [0]).sequence
    text.num_computed_tokens = 5
    chunk, unfinished = ScheduledSequence(text, 4), ScheduledSequence(text, 1)
    for scheduled in ([decode(3, [1]), chunk], [unfinished], [decode(3, [1])] * 3):
        assert graphs.run(scheduled, choices_of(scheduled)) is None
