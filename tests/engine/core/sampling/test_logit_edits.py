"""What parameters change of the logits, and that it is brought to them in one copy."""

from collections.abc import Sequence as Collection
from typing import Any

import torch
from torch import Tensor

from engine.core.ops.reference import penalize_reference
from engine.core.sampling.logit_edits import LogitEdits
from engine.core.sampling.penalties import SeenTokens
from engine.core.scheduling.sequence import Sequence
from engine.sampling_params import SamplingParams

INF = torch.inf


def make_sequence(answer: list[int], **params: Any) -> Sequence:
    sequence = Sequence("c", "r", [0, 1], SamplingParams(**params), resume_token_ids=answer)
    sequence.stop_ids = frozenset(params.get("stop_token_ids", ()))
    return sequence


def edit(logits: Tensor, *sequences: Sequence) -> list[bool]:
    """In place; whether each is left with a token."""
    edits = LogitEdits(logits.shape[1])
    is_left = [edits.add(row, sequence, SeenTokens()) for row, sequence in enumerate(sequences)]
    edits.apply(logits, penalize_reference, list)
    return is_left


def test_penalties_come_after_all_other_changes() -> None:
    logits = torch.tensor([[2.0, 1.0, 4.0, 9.0]])
    sequence = make_sequence(
        [2],
        allowed_token_ids=[0, 2],
        logit_bias={0: -4.0, 2: 2.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
    )
    assert edit(logits, sequence) == [True]
    assert logits.tolist() == [[(2 - 4) * 2, -INF, (4 + 2) / 2 - 0.5, -INF]]


def test_each_row_has_its_own_changes_and_others_stay() -> None:
    rows: list[dict[str, Any]] = [
        {"allowed_token_ids": [3, 1, 3]},
        {},
        {"bad_words_token_ids": [[9, 2], [0]]},
        {"logit_bias": {1: 0.5, 3: -0.5}},
        {"stop_token_ids": [3], "min_tokens": 2},
        {"allowed_token_ids": [2], "bad_words_token_ids": [[2]]},
        {"presence_penalty": 1.0},
    ]
    logits = torch.arange(28.0).view(7, 4)
    expected = logits.clone()
    expected[0, [0, 2]] = -INF
    expected[2, [0, 2]] = -INF
    expected[3] += torch.tensor([0, 0.5, 0, -0.5])
    expected[4, 3] = -INF
    expected[5] = -INF
    is_left = edit(logits, *(make_sequence([9], **params) for params in rows[:6]))
    assert torch.equal(logits, expected)
    assert is_left == [True, True, True, True, True, False]
    edit(logits[6:], make_sequence([3], **rows[6]))
    assert logits[6].tolist() == [24, 25, 26, 27 - 1]


def test_everything_is_brought_over_at_once() -> None:
    calls = []

    def send(tensors: Collection[Tensor]) -> list[Tensor]:
        calls.append(len(tensors))
        return [tensor.clone() for tensor in tensors]

    edits, logits = LogitEdits(4), torch.zeros(2, 4)
    for row in range(2):
        sequence = make_sequence([1], logit_bias={1: 3.0}, presence_penalty=1.0)
        assert edits.add(row, sequence, SeenTokens())
    edits.apply(logits, penalize_reference, send)
    assert len(calls) == 1
    assert logits[:, 1].tolist() == [2, 2]
