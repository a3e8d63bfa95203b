"""`Batch`: the tensors of one step, made from the sequences that the scheduler chose.

All tokens of all sequences lie behind one another in one row; `cu_seqlens_q` says where each
sequence starts. Where a token's keys and values go, and which blocks a sequence reads, are plain
indices into the KV cache, so that attention needs to know neither sequences nor the scheduler.
"""

from collections.abc import Sequence as Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.sequence import ScheduledSequence


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass. All are on the model's device."""

    input_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64: block * block_size + offset, -1 is padding
    block_tables: Tensor  # [num_seqs, max_blocks] int32, rows end in zeros
    cu_seqlens_q: Tensor  # [num_seqs + 1] int32: sequence i has tokens cu[i] to cu[i + 1]
    seq_lens: Tensor  # [num_seqs] int32: tokens with keys and values after this step
    logits_rows: Tensor  # [num_sampled] int64: the tokens whose logits are wanted


def build_batch(
    scheduled: Collection[ScheduledSequence], block_size: int, device: torch.device
) -> Batch:
    """Lay out the next tokens of each sequence; `logits_rows` keeps the order of sequences."""
    num_seqs = len(scheduled)
    cu_seqlens = np.zeros(num_seqs + 1, np.int32)
    np.cumsum([item.num_tokens for item in scheduled], out=cu_seqlens[1:])
    num_tokens = int(cu_seqlens[-1])
    max_blocks = max(len(item.sequence.block_table) for item in scheduled)
    input_ids: list[int] = []
    positions = np.empty(num_tokens, np.int64)
    slots = np.empty(num_tokens, np.int64)
    block_tables = np.zeros((num_seqs, max_blocks), np.int32)
    seq_lens = np.empty(num_seqs, np.int32)
    logits_rows: list[int] = []

    for row, item in enumerate(scheduled):
        sequence, begin = item.sequence, int(cu_seqlens[row])
        start = sequence.num_computed_tokens
        end = start + item.num_tokens
        input_ids += sequence.token_ids[start:end]
        table = np.frombuffer(sequence.block_table, np.int32)  # a view, gone after this round
        block_tables[row, : len(table)] = table
        seq_lens[row] = end
        if item.num_tokens == 1:  # a decode: scalars are cheaper than arrays
            positions[begin] = start
            slots[begin] = int(table[start // block_size]) * block_size + start % block_size
        else:
            places = np.arange(start, end)
            positions[begin : begin + len(places)] = places
            slots[begin : begin + len(places)] = (
                table[places // block_size].astype(np.int64) * block_size + places % block_size
            )
        if item.is_sampled:
            logits_rows.append(begin + item.num_tokens - 1)

    def tensor(values: np.ndarray | list[int]) -> Tensor:
        return torch.from_numpy(np.asarray(values)).to(device, non_blocking=True)

    return Batch(
        input_ids=tensor(np.array(input_ids, np.int64)),
        positions=tensor(positions),
        slot_mapping=tensor(slots),
        block_tables=tensor(block_tables),
        cu_seqlens_q=tensor(cu_seqlens),
        seq_lens=tensor(seq_lens),
        logits_rows=tensor(np.array(logits_rows, np.int64)),
    )
