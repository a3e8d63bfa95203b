"""Each `logprobs_mode`: beside transformers' warpers, and beside what the sampler does."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.core.sampling.sampler import Sampler
from engine.core.sampling.token_logprobs import LogprobsMode
from engine.core.scheduling.sequence import Sequence
from tests.engine.core.sampling.test_sampler import make_sequence, random_logits, sample

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
VOCAB = 300
PROMPT = (3, 7, 8, 250)


def reported(mode: str, logits: Tensor, **params: Any) -> tuple[int, dict[int, tuple[float, int]]]:
    """The chosen token, and of each token value and rank."""
    sequence = make_sequence(PROMPT, logprobs=-1, **params)
    sampler = Sampler(mode=LogprobsMode.of(mode))
    (token,) = sample(logits.clone(), [sequence], sampler)
    assert token.logprobs is not None and token.logprobs[0][0] == token.token_id
    return token.token_id, {token_id: (value, rank) for token_id, value, rank in token.logprobs}


def warped(logits: Tensor, params: dict[str, Any]) -> Tensor:
    """As transformers does it, in vLLM's order. logits: [1, vocab]"""
    ids: Any = torch.tensor([PROMPT])
    steps: list[Any] = []
    if "repetition_penalty" in params:
        steps.append(RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    if params.get("temperature", 1.0) > 0:
        steps.append(TemperatureLogitsWarper(float(params.get("temperature", 1.0))))
    if "min_p" in params:
        steps.append(MinPLogitsWarper(params["min_p"]))
    if "top_k" in params:
        steps.append(TopKLogitsWarper(params["top_k"]))
    if "top_p" in params:
        steps.append(TopPLogitsWarper(params["top_p"]))
    for step in steps:
        logits = step(ids, logits)
    return logits


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.7},
        {"temperature": 1.6, "top_k": 9},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3},
        {"top_k": 1},
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_values_are_those_of_transformers_warpers(mode: str, params: dict[str, Any]) -> None:
    for seed in range(5):
        logits = random_logits(1, VOCAB, seed)
        _, found = reported(mode, logits, seed=seed, **params)
        expected = warped(logits.clone(), params) if mode.startswith("processed") else logits
        if mode.endswith("logprobs"):
            expected = expected.log_softmax(-1)
        values = torch.tensor([found[token][0] for token in range(VOCAB)])
        assert torch.allclose(values, expected[0], atol=1e-5)
        ranks = {token: rank for token, (_, rank) in found.items()}
        best = int(expected.argmax())
        assert ranks[best] == 1


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_changes_no_token(mode: str) -> None:
    logits = random_logits(1, VOCAB, 3)
    for seed in range(40):
        params: dict[str, Any] = {
            "seed": seed,
            "top_p": 0.7,
            "temperature": 1.3,
            "frequency_penalty": 0.5,
        }
        (plain,) = sample(logits.clone(), [make_sequence(PROMPT, **params)])
        token, found = reported(mode, logits, **params)
        assert token == plain.token_id
        assert found[token][0] > -torch.inf


def test_what_is_forbidden_and_what_was_forced_may_have_no_weight() -> None:
    logits = random_logits(1, VOCAB, 4)
    best = int(logits.argmax())
    _, found = reported("processed_logprobs", logits, allowed_token_ids=[5, 6], temperature=0.5)
    assert {token for token, (value, _) in found.items() if value > -torch.inf} == {5, 6}
    token, found = reported("processed_logits", logits, trace_decode_token_ids=[9], top_k=1)
    assert token == 9 != best
    assert [each for each, (value, _) in found.items() if value > -torch.inf] == [best]


def test_rows_that_ask_for_none_are_not_copied_and_others_are_reported_beside_them() -> None:
    logits = random_logits(2, VOCAB, 5)
    sequences: list[Sequence] = [
        make_sequence(PROMPT, repetition_penalty=1.5),
        make_sequence(PROMPT, logprobs=0, repetition_penalty=1.5, temperature=0.0),
    ]
    edited = logits.clone()
    sampler = Sampler(mode=LogprobsMode.of("processed_logits"))
    plain, asked = sample(edited, sequences, sampler)
    assert plain.logprobs is None and asked.logprobs is not None
    expected = warped(logits[1:].clone(), {"temperature": 0.0, "repetition_penalty": 1.5})
    assert asked.logprobs == [(int(expected.argmax()), float(expected.max()), 1)]
    assert not torch.equal(edited, logits)  # written over: nobody needs them as they were
