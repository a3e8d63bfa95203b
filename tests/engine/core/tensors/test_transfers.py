"""What a step sends to a GPU and reads back, on the CPU: one copy, and every tensor unchanged."""

from array import array

import pytest
import torch

from engine.core.scheduling.sequence import ScheduledSequence, Sequence
from engine.core.tensors.batch import build_batch
from engine.core.tensors.transfers import ALIGNMENT, Download, Upload, packed_bytes, unpack
from engine.sampling_params import SamplingParams

CPU = torch.device("cpu")


def test_tensors_arrive_as_they_were_sent() -> None:
    upload = Upload(CPU)
    for size in (3, 1, 200, 7):
        tensors = [
            torch.arange(size),
            torch.randn(4, size, dtype=torch.float64),
            torch.arange(2 * size, dtype=torch.int32).view(2, size),
            torch.empty(0, dtype=torch.int64),
        ]
        sent = upload(tensors)
        assert all(torch.equal(*pair) for pair in zip(sent, tensors, strict=True))
        assert all(tensor.dtype == other.dtype for tensor, other in zip(sent, tensors, strict=True))
        assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in sent)


def test_they_lie_in_one_memory_which_the_next_step_uses_again() -> None:
    upload = Upload(CPU)
    first, second = (upload([torch.arange(n), torch.arange(2 * n)]) for n in (40, 30))
    assert first[0].untyped_storage().data_ptr() == second[1].untyped_storage().data_ptr()


def test_a_step_is_written_beside_the_one_that_may_still_be_on_its_way() -> None:
    upload = Upload(CPU)
    hosts = []
    for _ in range(4):
        upload([torch.arange(9)])
        hosts.append(upload._hosts[-1].data_ptr())
    assert hosts[0] != hosts[1] and hosts[:2] == hosts[2:]


def test_a_batch_is_sent_whole_and_with_what_belongs_to_it() -> None:
    sequence = Sequence("c", "r", [5, 6, 7], SamplingParams())
    sequence.block_table = array("i", [2])
    batch = build_batch([ScheduledSequence(sequence, 3)], 16)
    sent, (other,) = Upload(CPU).send_batch(batch, [torch.tensor([0.5])])
    assert (sent.num_tokens, sent.unknown_rows, other.tolist()) == (3, None, [0.5])
    for name in ("input_ids", "positions", "slot_mapping", "block_tables", "seq_lens"):
        assert torch.equal(getattr(sent, name), getattr(batch, name))
        assert getattr(sent, name).data_ptr() != getattr(batch, name).data_ptr()


def test_what_was_read_back_stays_when_the_next_step_writes_over_it() -> None:
    tokens = torch.tensor([3, 1])
    read = Download(CPU, 4).start(tokens)
    tokens.zero_()
    assert read() == [3, 1]


@pytest.mark.parametrize("shape", [(1,), (3, 5), (0, 4)])
def test_views_of_one_memory_lie_beside_each_other(shape: tuple[int, ...]) -> None:
    layout = [(torch.int32, shape), (torch.float64, shape), (torch.int32, (2,))]
    memory = torch.zeros(packed_bytes(layout), dtype=torch.uint8)
    views = unpack(memory, layout)
    assert [(view.dtype, tuple(view.shape)) for view in views] == layout
    for number, view in enumerate(views):
        view.fill_(number)
    assert all((view == number).all() for number, view in enumerate(views))
