"""Penalties: which tokens are seen and how often, and that a row is changed as vLLM changes it."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.core.ops import library as ops
from engine.core.sampling.penalties import Penalties, SeenTokens
from engine.core.scheduling.sequence import Sequence
from engine.sampling_params import SamplingParams

IMPLEMENTATIONS = ["torch", "cpu"] if ops.load_library() else ["torch"]
PARAMS: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.25,
    "presence_penalty": 0.125,
}


def make_sequence(prompt: list[int], answer: list[int], **params: Any) -> Sequence:
    return Sequence("c", "r", prompt, SamplingParams(**params), resume_token_ids=answer)


def counts_of(seen: SeenTokens, sequence: Sequence) -> dict[int, float]:
    ids, counts = seen.of(sequence)
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def expected_counts(sequence: Sequence) -> dict[int, float]:
    prompt = dict.fromkeys(sequence.token_ids[: sequence.num_prompt_tokens], 0)
    return {**prompt, **Counter(sequence.token_ids[sequence.num_prompt_tokens :])}


def penalize(implementation: str, logits: Tensor, *rows: tuple[int, Sequence]) -> Tensor:
    """A copy of the logits, with the penalties of some rows."""
    penalties, changed = Penalties(), logits.clone()
    for row, sequence in rows:
        penalties.add(row, sequence.params, *SeenTokens().of(sequence))
    ops.choose(implementation).penalize(changed, *penalties.columns())
    return changed


def test_tokens_of_the_prompt_are_seen_and_those_of_the_answer_counted() -> None:
    sequence = make_sequence([7, 3, 7], [3, 9, 9])
    assert counts_of(SeenTokens(), sequence) == {7: 0, 3: 1, 9: 2}


@pytest.mark.parametrize("num_resumed", [0, 1, 500])
def test_counts_follow_an_answer_token_by_token(num_resumed: int) -> None:
    random = np.random.default_rng(num_resumed)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in random.integers(0, 1000, count)]

    sequence, seen = make_sequence(tokens(300), tokens(num_resumed)), SeenTokens()
    for _ in range(400):
        assert counts_of(seen, sequence) == expected_counts(sequence)
        sequence.token_ids += tokens(int(random.integers(0, 4)))


def test_a_preempted_sequence_counts_what_it_said_before() -> None:
    sequence, seen = make_sequence([1, 2], []), SeenTokens()
    seen.of(sequence)
    sequence.token_ids += [2, 5]
    sequence.num_computed_tokens = 0  # its blocks went; whether it was asked since does not matter
    sequence.token_ids.append(5)
    assert counts_of(seen, sequence) == counts_of(SeenTokens(), sequence) == {1: 0, 2: 1, 5: 2}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_penalties_are_vllms(implementation: str) -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5, 3.0]])
    params = PARAMS | {"repetition_penalty": 2.0}
    changed = penalize(implementation, logits, (0, make_sequence([0, 1], [2, 2, 4], **params)))
    expected = [2 / 2, -2 * 2, 1 / 2 - 0.5 - 0.125, 0.5, 3 / 2 - 0.25 - 0.125]
    assert torch.equal(changed, torch.tensor([expected]))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_each_row_has_its_own_penalties_and_others_stay(implementation: str) -> None:
    logits = torch.randn(5, 60, generator=torch.Generator().manual_seed(0))
    first = make_sequence([1, 2, 3], [3, 4], **PARAMS)
    second = make_sequence([50] * 9, [59], presence_penalty=-2.0)
    together = penalize(implementation, logits, (1, first), (4, second))
    assert torch.equal(together[1], penalize(implementation, logits, (1, first))[1])
    assert torch.equal(together[4:], penalize(implementation, logits[4:], (0, second)))
    assert torch.equal(together[[0, 2, 3]], logits[[0, 2, 3]])


def test_without_a_row_there_is_nothing_to_bring_over() -> None:
    assert Penalties().columns() == []
