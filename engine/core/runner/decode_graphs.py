"""`DecodeGraphs`: steps in which each sequence has one token, recorded once and then only replayed.

To start the hundreds of kernels of a step one by one may take the processor longer than the GPU
takes to run them. A CUDA graph is started as one. It reads and writes the memory that it was
recorded with, so there is one for each of some sizes of batch; what is left of a size is filled
with rows of padding, which write no keys and values and attend to nothing. All inputs of a step lie
in one memory, pinned on the host and once more on the device: one copy brings them over. On the
host there are two of it, because a step may be prepared while the last one still waits to begin.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.core.sampling.sampler import Choices
from engine.core.scheduling.sequence import ScheduledSequence
from engine.core.tensors.batch import Batch
from engine.core.tensors.transfers import Layout, packed_bytes, unpack

logger = logging.getLogger(__name__)

SMALL_SIZES = (1, 2, 4)
SIZE_STEP = 8  # up to LARGE; a quarter of the size from there on
LARGE = 64

Forward = Callable[[Batch], Tensor]
# Records a pass over a batch: what repeats it, and the float32 logits that it then writes. The
# largest batch comes first.
Record = Callable[[Forward, Batch], tuple[Callable[[], None], Tensor]]


def sizes_up_to(max_num_seqs: int) -> list[int]:
    """Numbers of sequences that are recorded; the last is the largest that is asked for."""
    sizes = [size for size in SMALL_SIZES if size < max_num_seqs]
    size = SIZE_STEP
    while size < max_num_seqs:
        sizes.append(size)
        size += max(SIZE_STEP, size // 4 // SIZE_STEP * SIZE_STEP) if size >= LARGE else SIZE_STEP
    return [*sizes, max_num_seqs]


class HostInputs:
    """Where the inputs of a step are written, [num_bytes] uint8 as the `layout` of the device's."""

    def __init__(self, layout: Layout, is_pinned: bool) -> None:
        self.memory = torch.zeros(packed_bytes(layout), dtype=torch.uint8, pin_memory=is_pinned)
        arrays: list[npt.NDArray[Any]] = [part.numpy() for part in unpack(self.memory, layout)]
        self.per_token, self.numbers, self.top_k, self.seq_lens, self.tables = arrays

    def pad(self, num_rows: int) -> None:
        """Fill the rows after the sequences: token 0, written nowhere, attending to nothing.

        How they choose does not matter: no token is chosen for them.
        """
        self.per_token[:2, num_rows:] = 0
        self.per_token[2:, num_rows:] = -1
        self.seq_lens[num_rows:] = 0


class DecodeInputs:
    """The inputs of a step of `size` sequences with one token each.

    `batch` and `choices` are on the device.
    """

    def __init__(self, size: int, max_blocks: int, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        layout = [
            (torch.int64, (4, size)),  # ids, positions, slots, unknown rows
            (torch.float64, (4, size)),
            (torch.int64, (size,)),
            (torch.int32, (size,)),
            (torch.int32, (size, max_blocks)),
        ]
        is_pinned = device.type == "cuda"
        self._hosts = [HostInputs(layout, is_pinned), HostInputs(layout, is_pinned)]
        self._on_device = torch.zeros(packed_bytes(layout), dtype=torch.uint8, device=device)
        per_token, numbers, top_k, seq_lens, tables = unpack(self._on_device, layout)
        self.choices = Choices(numbers, top_k)
        self.batch = Batch(
            num_tokens=size,
            num_sampled=size,
            num_single=size,
            max_query_len=1,
            max_seq_len=max_blocks * block_size,  # what is recorded must be right for any length
            lens=[(1, max_blocks * block_size)] * size,
            input_ids=per_token[0],
            positions=per_token[1],
            slot_mapping=per_token[2],
            block_tables=tables,
            cu_seqlens_q=torch.arange(size + 1, dtype=torch.int32, device=device),
            seq_lens=seq_lens,
            logits_rows=torch.arange(size, device=device),
            unknown_rows=per_token[3],
        )
        for host in self._hosts:
            host.pad(0)
        self._on_device.copy_(self._hosts[0].memory)

    def fill(self, scheduled: Sequence[ScheduledSequence], choices: Choices) -> None:
        """Bring the next token of each sequence to the device; the copy may not have ended yet."""
        host = self._hosts.pop(0)
        self._hosts.append(host)
        columns = []
        for row, item in enumerate(scheduled):
            sequence, place = item.sequence, item.start
            table, source = sequence.block_table, -1
            if sequence.num_unknown:
                source = sequence.unknown_row
            slot = table[place // self._block_size] * self._block_size + place % self._block_size
            columns.append((sequence.token_ids[place], place, slot, source))
            host.tables[row, : len(table)] = table
            host.seq_lens[row] = place + 1
        count = len(columns)
        host.per_token[:, :count] = np.array(columns, np.int64).T
        host.numbers[:, :count] = choices.numbers
        host.top_k[:count] = choices.top_k
        host.pad(count)
        self._on_device.copy_(host.memory, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Recording:
    """A pass over a batch of one size."""

    inputs: DecodeInputs
    replay: Callable[[], None]
    logits: Tensor  # [size, vocab], written by `replay`


class DecodeGraphs:
    """Recorded passes for up to `max_num_seqs` sequences, all made at once: the largest first."""

    def __init__(
        self,
        forward: Forward,
        *,
        max_num_seqs: int,
        max_blocks: int,
        block_size: int,
        device: torch.device,
        record: Record | None = None,
    ) -> None:
        started = time.monotonic()
        record = record or CudaRecorder()
        self._sizes = sizes_up_to(max_num_seqs)
        self._recordings: dict[int, Recording] = {}
        for size in reversed(self._sizes):
            inputs = DecodeInputs(size, max_blocks, block_size, device)
            self._recordings[size] = Recording(inputs, *record(forward, inputs.batch))
        seconds = time.monotonic() - started
        logger.info("recorded %d sizes of decodes in %.1f s", len(self._sizes), seconds)

    def run(
        self, scheduled: Sequence[ScheduledSequence], choices: Choices
    ) -> tuple[Tensor, Choices] | None:
        """The logits of a step, [num_seqs, vocab] float32, and its choices beside them.

        The next step writes over them. None if it has more than decodes.
        """
        count = len(scheduled)
        if count > self._sizes[-1] or not all(_is_decode(item) for item in scheduled):
            return None
        size = next(size for size in self._sizes if size >= count)
        recording = self._recordings[size]
        inputs = recording.inputs
        inputs.fill(scheduled, choices)
        recording.replay()
        numbers, top_k = inputs.choices
        return recording.logits[:count], Choices(numbers[:, :count], top_k[:count])


class CudaRecorder:
    """Records CUDA graphs, whose memory is shared: only one of them runs at a time.

    All of them write their logits into the memory of the largest, which is the first.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._logits: Tensor | None = None

    def __call__(self, forward: Forward, batch: Batch) -> tuple[Callable[[], None], Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # What is made once, such as a library's handles, is not recorded.
            shape = forward(batch).shape
        torch.cuda.current_stream().wait_stream(stream)
        if self._logits is None:
            device = batch.input_ids.device
            self._logits = torch.empty(shape, dtype=torch.float32, device=device)
        logits = self._logits[: shape[0]]
        graph = torch.cuda.CUDAGraph()
        again = dataclasses.replace(batch)  # another step: what is made for each is recorded, too
        with torch.cuda.graph(graph, pool=self._pool):
            logits.copy_(forward(again))
        return graph.replay, logits


def _is_decode(item: ScheduledSequence) -> bool:
    return item.num_tokens == 1 and item.is_sampled
