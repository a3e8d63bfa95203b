"""`Batch`: the tensors of one step, made from the sequences that the scheduler chose.

All tokens of all sequences lie behind one another in one row; `cu_seqlens_q` says where each
sequence starts. Where a token's keys and values go, and which blocks a sequence reads, are plain
indices into the KV cache, so that attention needs to know neither sequences nor the scheduler.

Rows of padding may stand behind the tokens, so that matrix products see numbers of rows that give
the same bits (engine/invariance.py). They write no keys and values, attend to nothing, and what
the output layer says of them is thrown away.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.sequence import ScheduledSequence


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass. All are on the model's device.

    `num_rows` is `num_tokens` and padding, and `num_logits` is `num_sampled` and padding.
    """

    num_tokens: int
    num_sampled: int
    input_ids: Tensor  # [num_rows] int64
    positions: Tensor  # [num_rows] int64
    slot_mapping: Tensor  # [num_rows] int64: block * block_size + offset, -1 is padding
    block_tables: Tensor  # [num_seqs, max_blocks] int32, rows end in zeros
    cu_seqlens_q: Tensor  # [num_seqs + 1] int32: sequence i has tokens cu[i] to cu[i + 1]
    seq_lens: Tensor  # [num_seqs] int32: tokens with keys and values after this step
    logits_rows: Tensor  # [num_logits] int64: the tokens whose logits are wanted


def round_up(number: int, multiple: int) -> int:
    """The first multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


def build_batch(
    scheduled: Collection[ScheduledSequence],
    block_size: int,
    device: torch.device,
    row_multiple: int = 1,
) -> Batch:
    """Lay out the next tokens of each sequence; `logits_rows` keeps the order of sequences.

    Both numbers of rows are padded to a multiple of `row_multiple`.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logits_rows: list[int] = []
    cu_seqlens = [0]
    seq_lens: list[int] = []
    max_blocks = max(len(item.sequence.block_table) for item in scheduled)
    block_tables = np.zeros((len(scheduled), max_blocks), np.int32)

    for row, item in enumerate(scheduled):
        sequence = item.sequence
        table, start = sequence.block_table, sequence.num_computed_tokens
        end = start + item.num_tokens
        for place in range(start, end):  # mostly one
            input_ids.append(sequence.token_ids[place])
            positions.append(place)
            slots.append(table[place // block_size] * block_size + place % block_size)
        block_tables[row, : len(table)] = table
        cu_seqlens.append(len(input_ids))
        seq_lens.append(end)
        if end == len(sequence.token_ids):  # item.is_sampled, which a call for each would slow down
            logits_rows.append(len(input_ids) - 1)

    def tensor(values: Iterable[object], dtype: type[np.signedinteger]) -> Tensor:
        array = torch.from_numpy(np.array(values, dtype))
        return array if device.type == "cpu" else array.to(device, non_blocking=True)

    num_tokens, num_sampled = len(input_ids), len(logits_rows)
    num_padding = round_up(num_tokens, row_multiple) - num_tokens
    input_ids += [0] * num_padding
    positions += [0] * num_padding
    slots += [-1] * num_padding
    logits_rows += [0] * (round_up(num_sampled, row_multiple) - num_sampled)
    per_token = tensor((input_ids, positions, slots), np.int64)  # one tensor: three cost thrice
    return Batch(
        num_tokens=num_tokens,
        num_sampled=num_sampled,
        input_ids=per_token[0],
        positions=per_token[1],
        slot_mapping=per_token[2],
        block_tables=tensor(block_tables, np.int32),
        cu_seqlens_q=tensor(cu_seqlens, np.int32),
        seq_lens=tensor(seq_lens, np.int32),
        logits_rows=tensor(logits_rows, np.int64),
    )
