"""`Batch`: the tensors of one step, made from the sequences that the scheduler chose.

All tokens of all sequences lie one after another in one row; `cu_seqlens_q` says where each
sequence starts. Where a token's keys and values go, and which blocks a sequence reads, are plain
indices into the KV cache, so that attention needs to know neither sequences nor the scheduler.

Rows of padding may follow the tokens, so that matrix products see numbers of rows that give the
same bits (engine/core/runner/invariance.py). They write no keys and values, attend to nothing, and
what the output layer says of them is thrown away.

A token may still be unknown here, while the step before chooses it: then the batch says in which of
that step's sampled rows it will be.
"""

import dataclasses
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.core.scheduling.sequence import ScheduledSequence


@dataclass(slots=True)
class AdapterRows:
    """The tokens of a step that have the same adapter."""

    adapter: Any  # as the model computes it
    places: Tensor  # [n] int64, ascending: which rows these are

    def on(self, device: torch.device) -> Tensor:
        """`places` on a device, where they stay."""
        if self.places.device != device:
            self.places = self.places.to(device)
        return self.places


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass; on the host as they are built, or on the model's device.

    `num_rows` is `num_tokens` and padding, and `num_logits` is `num_wanted` and padding.
    """

    num_tokens: int
    num_sampled: int
    num_single: int  # of the first sequences, which have one token each in this step
    max_query_len: int  # tokens of a sequence in this step, at most
    max_seq_len: int  # tokens of a sequence after it, at most
    lens: Collection[tuple[int, int]]  # of each sequence both, here on the host
    input_ids: Tensor  # [num_rows] int64
    positions: Tensor  # [num_rows] int64
    slot_mapping: Tensor  # [num_rows] int64: block * block_size + offset, -1 is padding
    block_tables: Tensor  # [num_seqs, max_blocks] int32, rows end in zeros
    cu_seqlens_q: Tensor  # [num_seqs + 1] int32: sequence i has tokens cu[i] to cu[i + 1]
    seq_lens: Tensor  # [num_seqs] int32: tokens with keys and values after this step
    # [num_logits] int64: the tokens whose logits are wanted, the sampled ones first
    logits_rows: Tensor
    # [num_rows] int64: the sampled row of the step before that gives the token, -1 where it is
    # known; None if all are.
    unknown_rows: Tensor | None = None
    num_scored: int = 0  # of a prompt's other tokens, whose logits are wanted, too
    # [num_hidden] int64: the tokens whose last hidden states are wanted; None if there are none.
    hidden_rows: Tensor | None = None
    adapters: Collection[AdapterRows] = ()

    @property
    def num_wanted(self) -> int:
        return self.num_sampled + self.num_scored

    @classmethod
    def of_attention(
        cls, query_lens: list[int], seq_lens: list[int], block_tables: Tensor
    ) -> "Batch":
        """As far as attention looks at it, on the device of `block_tables`."""
        device, num_tokens = block_tables.device, sum(query_lens)
        nothing = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        bounds = torch.tensor([0, *query_lens]).cumsum(0)
        return cls(
            num_tokens=num_tokens,
            num_sampled=0,
            num_single=num_leading_ones(query_lens),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
            lens=list(zip(query_lens, seq_lens, strict=True)),
            input_ids=nothing,
            positions=nothing,
            slot_mapping=nothing,
            block_tables=block_tables,
            cu_seqlens_q=bounds.to(device, torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
            logits_rows=nothing[:0],
        )

    def without_single(self) -> "Batch":
        """The sequences after those with a single token, as far as attention looks at them."""
        first = self.num_single  # of the sequences, and of the tokens as well
        lens = list(self.lens)[first:]
        return dataclasses.replace(
            self,
            num_tokens=self.num_tokens - first,
            num_sampled=0,
            num_single=0,
            max_seq_len=max(length for _, length in lens),
            lens=lens,
            input_ids=self.input_ids[first:],
            positions=self.positions[first:],
            slot_mapping=self.slot_mapping[first:],
            block_tables=self.block_tables[first:],
            cu_seqlens_q=self.cu_seqlens_q[first:] - first,
            seq_lens=self.seq_lens[first:],
            logits_rows=self.logits_rows[:0],
            unknown_rows=None,
            hidden_rows=None,
        )


class KeptTensor:
    """Memory for one input of a step, on the CPU, which the next step writes over.

    A step makes a dozen small tensors, mostly as large as those of the step before. So their memory
    is kept, and grows to the largest seen.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self._memory = np.empty(0, dtype)
        self._array: npt.NDArray[Any] = self._memory
        self._tensor = torch.from_numpy(self._memory)

    def write(self, values: npt.ArrayLike, *shape: int) -> Tensor:
        """A tensor of these values, valid until the next call: copy it to keep it."""
        if shape != self._array.shape:
            self._reshape(shape)
        self._array[...] = values
        return self._tensor

    def _reshape(self, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape))
        if size > len(self._memory):
            self._memory = np.empty(size, self._memory.dtype)
        self._array = self._memory[:size].reshape(shape)
        self._tensor = torch.from_numpy(self._array)


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """Memory for the tensors of a batch, which last until the next one."""

    per_token: KeptTensor = field(default_factory=lambda: KeptTensor(np.int64))
    block_tables: KeptTensor = field(default_factory=lambda: KeptTensor(np.int32))
    cu_seqlens_q: KeptTensor = field(default_factory=lambda: KeptTensor(np.int32))
    seq_lens: KeptTensor = field(default_factory=lambda: KeptTensor(np.int32))
    logits_rows: KeptTensor = field(default_factory=lambda: KeptTensor(np.int64))
    unknown_rows: KeptTensor = field(default_factory=lambda: KeptTensor(np.int64))


def num_leading_ones(numbers: Collection[int]) -> int:
    """How many numbers there are before the first that is not 1."""
    return next((place for place, number in enumerate(numbers) if number != 1), len(numbers))


def round_up(number: int, multiple: int) -> int:
    """The first multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


def build_batch(
    scheduled: Collection[ScheduledSequence],
    block_size: int,
    row_multiple: int = 1,
    memory: BatchMemory | None = None,
) -> Batch:
    """Lay out the next tokens of each sequence on the host, in their order.

    Both numbers of rows are padded to a multiple of `row_multiple`. Without `memory`, the batch
    has its own.
    """
    memory = memory or BatchMemory()
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logits_rows: list[int] = []
    scored_rows: list[int] = []
    hidden_rows: list[int] = []
    unknown: list[tuple[int, int]] = []  # row, and its row in the step before
    adapted: dict[int, tuple[Any, list[int]]] = {}  # by the adapter's identity: its rows
    cu_seqlens = [0]
    seq_lens: list[int] = []
    max_blocks = max(len(item.sequence.block_table) for item in scheduled)
    block_tables = memory.block_tables.write(0, len(scheduled), max_blocks)
    tables = block_tables.numpy()  # the same memory

    for row, item in enumerate(scheduled):
        sequence = item.sequence
        table = sequence.block_table
        if item.scored:
            before = len(input_ids) - item.start
            scored_rows += range(item.scored.start + before, item.scored.stop + before)
        for place in range(item.start, item.end):  # mostly one
            input_ids.append(sequence.token_ids[place])
            positions.append(place)
            slots.append(table[place // block_size] * block_size + place % block_size)
        tables[row, : len(table)] = table
        cu_seqlens.append(len(input_ids))
        seq_lens.append(item.end)
        if item.is_sampled:
            logits_rows.append(len(input_ids) - 1)
        elif sequence.pooling is not None:
            first = len(input_ids) - item.end  # row of the place 0, as it were
            hidden_rows += [first + place for place in item.pooled_places]
        if sequence.adapter is not None:
            places = adapted.setdefault(id(sequence.adapter), (sequence.adapter, []))[1]
            places += range(len(input_ids) - item.num_tokens, len(input_ids))
        if sequence.num_unknown:
            unknown.append((len(input_ids) - 1, sequence.unknown_row))

    num_tokens, num_sampled = len(input_ids), len(logits_rows)
    query_lens = [item.num_tokens for item in scheduled]
    num_padding = round_up(num_tokens, row_multiple) - num_tokens
    input_ids += [0] * num_padding
    positions += [0] * num_padding
    slots += [-1] * num_padding
    logits_rows += scored_rows
    num_wanted = len(logits_rows)
    logits_rows += [0] * (round_up(num_wanted, row_multiple) - num_wanted)
    tokens = (input_ids, positions, slots)  # one tensor: three cost thrice
    per_token = memory.per_token.write(tokens, 3, len(input_ids))
    unknown_rows = None
    if unknown:
        unknown_rows = memory.unknown_rows.write(-1, len(input_ids))
        for row, source in unknown:
            unknown_rows[row] = source
    return Batch(
        num_tokens=num_tokens,
        num_sampled=num_sampled,
        num_single=num_leading_ones(query_lens),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        lens=list(zip(query_lens, seq_lens, strict=True)),
        input_ids=per_token[0],
        positions=per_token[1],
        slot_mapping=per_token[2],
        block_tables=block_tables,
        cu_seqlens_q=memory.cu_seqlens_q.write(cu_seqlens, len(cu_seqlens)),
        seq_lens=memory.seq_lens.write(seq_lens, len(seq_lens)),
        logits_rows=memory.logits_rows.write(logits_rows, len(logits_rows)),
        unknown_rows=unknown_rows,
        num_scored=len(scored_rows),
        hidden_rows=torch.tensor(hidden_rows) if hidden_rows else None,
        adapters=[AdapterRows(adapter, torch.tensor(rows)) for adapter, rows in adapted.values()],
    )
