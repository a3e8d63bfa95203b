"""The sampler: what parameters do to logits; randomness depends on seed and place alone."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.core.ops.sampling_reference import choose_tokens_reference
from engine.core.sampling.logit_edits import LogitEdits
from engine.core.sampling.penalties import SeenTokens
from engine.core.sampling.sampler import Sampler, philox_4x32, uniforms
from engine.core.sampling.token_logprobs import LogprobsMode
from engine.core.scheduling.sequence import SampledToken, Sequence
from engine.core.structured.masks import Fences, StepMasks
from engine.grammar.thoughts import ThoughtMarks, ThoughtTokens
from engine.sampling_params import SamplingParams

VOCAB = 50
PLAIN = ThoughtTokens([ThoughtMarks([40], [41])])


def make_sequence(
    prompt: tuple[int, ...] = (1, 2), output: tuple[int, ...] = (), **params: Any
) -> Sequence:
    params = {"seed": 7} | params
    sequence = Sequence(
        "c", "r", list(prompt), SamplingParams(**params), resume_token_ids=list(output)
    )
    sequence.stop_ids = frozenset(params.get("stop_token_ids", ()))
    return sequence


def random_logits(num_rows: int = 1, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


class Form:
    """Stands for masks that rows need only if they choose something else than these tokens."""

    def __init__(self, allowed: list[int]) -> None:
        self._allowed = allowed
        self.num_refused = 0

    def wait(self) -> Fences:
        return self._fences([], has_open=True)

    def offer(self, tokens: list[int]) -> Fences:
        refused = [row for row, token in enumerate(tokens) if token not in self._allowed]
        self.num_refused = len(refused)
        return self._fences(refused)

    def _fences(self, rows: list[int], has_open: bool = False) -> Fences:
        word = sum(1 << token for token in self._allowed)
        masks = torch.tensor([[word, 0]] * len(rows), dtype=torch.int32).view(-1, 2)
        return Fences(rows, masks, frozenset(), frozenset(), {}, has_open)


def sample(
    logits: Tensor,
    sequences: list[Sequence],
    sampler: Sampler | None = None,
    form: Form | None = None,
) -> list[SampledToken]:
    """The tokens at once."""
    sampler = sampler or Sampler()
    tokens = torch.full((len(logits),), -2)
    choices = sampler.choices(sequences, logits.shape[1])
    masks: StepMasks = form  # type: ignore[assignment]  # all of it that a sampler uses
    return sampler.sample(logits, sequences, choices, tokens, lambda tokens: tokens.tolist, masks)()


def sample_one(logits: Tensor, sequence: Sequence) -> SampledToken:
    (token,) = sample(logits.clone(), [sequence])
    return token


def frequencies(logits: Tensor, num_samples: int = 1500, **params: Any) -> Tensor:
    """How often each token is chosen, over that many seeds. logits: [vocab]"""
    sequences = [make_sequence(seed=seed, **params) for seed in range(num_samples)]
    tokens = sample(logits.repeat(num_samples, 1), sequences)
    counts = torch.bincount(torch.tensor([t.token_id for t in tokens]), minlength=len(logits))
    return counts / num_samples


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the published known-answer vectors of Random123 for philox4x32-10
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    def words(text: str) -> Any:
        return np.array([[int(word, 16)] for word in text.split()], np.uint64)

    assert (philox_4x32(words(counter), words(key)) == words(expected)).all()


def test_uniform_numbers_depend_on_seed_and_position_alone() -> None:
    numbers = uniforms(123, 0, 100)
    assert (uniforms(123, 37, 5) == numbers[:, 37:42]).all()
    assert not (uniforms(124, 0, 100) == numbers).any()
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(np.unique(numbers)) == 200
    assert (uniforms(-1, 0, 1) == uniforms(2**64 - 1, 0, 1)).all()


def test_greedy_is_the_maximum() -> None:
    logits = random_logits(5)
    tokens = sample(logits, [make_sequence(temperature=0) for _ in range(5)])
    assert [token.token_id for token in tokens] == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = random_logits(vocab=8)[0]
    expected = (logits / temperature).softmax(-1)
    assert (frequencies(logits, temperature=temperature) - expected).abs().max() < 0.05


def _expected_support(logits: Tensor, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The tokens that may come, computed in the plainest way."""
    probabilities = logits.double().softmax(-1)
    kept = [i for i in range(len(logits)) if probabilities[i] >= min_p * probabilities.max()]
    kept.sort(key=lambda i: -float(probabilities[i]))
    kept = kept[: top_k or None]
    total, mass, nucleus = float(probabilities[kept].sum()), 0.0, []
    for token in kept:
        nucleus.append(token)
        mass += float(probabilities[token])
        if mass >= top_p * total:
            break
    return sorted(nucleus)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(3, 1, 0), (0, 0.6, 0), (0, 1, 0.2), (5, 0.7, 0), (6, 0.9, 0.1), (1, 1, 0), (0, 1e-9, 0)],
)
def test_only_tokens_of_the_nucleus_come_in_their_proportions(
    top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(vocab=12)[0]
    found = frequencies(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    support = _expected_support(logits, top_k, top_p, min_p)
    assert found.nonzero().squeeze(1).tolist() == support
    expected = logits[support].softmax(-1)
    assert (found[support] - expected).abs().max() < 0.05


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_where_a_form_refuses_a_choice_the_others_come_in_their_proportions(
    temperature: float,
) -> None:
    logits, allowed, num_rows = random_logits(vocab=40)[0], [1, 4, 5, 9, 20, 30], 1500
    sequences = [make_sequence(seed=seed, temperature=temperature) for seed in range(num_rows)]
    form = Form(allowed)
    tokens = [t.token_id for t in sample(logits.repeat(num_rows, 1), sequences, form=form)]
    assert form.num_refused == num_rows if temperature == 0 else 0 < form.num_refused < num_rows
    expected = torch.zeros(40)
    expected[allowed] = (logits[allowed] / max(temperature, 1e-6)).softmax(-1)
    found = torch.bincount(torch.tensor(tokens), minlength=40) / num_rows
    assert (found - expected).abs().max() < 0.05
    alone = [
        sample(logits[None].clone(), [sequence], form=Form(allowed))[0].token_id
        for sequence in sequences[:60]
    ]
    assert alone == tokens[:60]


@pytest.mark.parametrize(
    ("params", "may"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0, "repetition_penalty": 1.3, "logprobs": 2, "min_tokens": 3}, True),
        ({"temperature": 0, "thinking_token_budget": 4, "thought_tokens": PLAIN}, False),
        ({"temperature": 1}, True),
        ({"temperature": 1, "top_p": 0.9}, False),
        ({"temperature": 1, "top_k": 9}, False),
        ({"temperature": 1, "min_p": 0.1}, False),
    ],
)
def test_who_looks_at_a_form_before_it_chooses_offers_no_token(
    params: dict[str, Any], may: bool
) -> None:
    assert Sampler().may_offer(make_sequence(**params)) == may
    processed = Sampler(mode=LogprobsMode.of("processed_logprobs"))
    assert not processed.may_offer(make_sequence(**params))
    sequence = make_sequence(**params)
    sequence.logits_processors = [object()]
    assert not Sampler().may_offer(sequence)


MIXED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 5},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "output": (3, 3, 4)},
    {"top_p": 0.2, "logit_bias": {4: 3.0}, "min_tokens": 9, "stop_token_ids": [6]},
    {"bad_words_token_ids": [[3, 4], [5]], "output": (3,)},
]


def test_a_row_is_chosen_alike_alone_and_in_any_batch() -> None:
    logits = random_logits(len(MIXED))
    alone = [sample_one(logits[i : i + 1], make_sequence(**p)) for i, p in enumerate(MIXED)]
    together = sample(logits.clone(), [make_sequence(**params) for params in MIXED])
    assert together == alone
    backwards = sample(logits.flip(0), [make_sequence(**p) for p in reversed(MIXED)])
    assert backwards[::-1] == alone


def test_a_resumed_sequence_goes_on_with_the_same_choices() -> None:
    params: dict[str, Any] = {
        "temperature": 1.5,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.2,
    }
    whole = make_sequence(**params)
    logits = random_logits(40, seed=3)
    for step in range(40):
        whole.token_ids.append(sample_one(logits[step : step + 1], whole).token_id)
    resumed = make_sequence(output=tuple(whole.token_ids[2:27]), **params)
    for step in range(25, 40):
        resumed.token_ids.append(sample_one(logits[step : step + 1], resumed).token_id)
    assert resumed.token_ids == whole.token_ids


def test_the_next_step_is_chosen_from_the_same_memory() -> None:
    calls: list[list[int]] = []

    def choose_tokens(logits: Tensor, *columns: Tensor) -> None:
        *numbers, _ = columns
        calls.append([column.data_ptr() for column in numbers])
        choose_tokens_reference(logits, *columns)

    logits = random_logits(3)
    rows = [make_sequence(top_k=3), make_sequence(temperature=0.5), make_sequence(temperature=0)]
    sampler = Sampler(choose_tokens)
    tokens = sample(logits, rows, sampler)
    sample(logits[:1], rows[1:2], sampler)
    assert sample(logits, rows, sampler) == tokens == sample(logits, rows)
    assert calls[0] == calls[2]


def test_without_a_seed_two_sequences_differ() -> None:
    logits = torch.zeros(1, 1000)
    tokens = {sample_one(logits, make_sequence(seed=None)).token_id for _ in range(20)}
    assert len(tokens) > 10


def test_penalties_follow_an_answer_token_by_token() -> None:
    random = np.random.default_rng(0)
    params: dict[str, Any] = {
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.25,
        "presence_penalty": 0.125,
    }
    prompt = tuple(random.integers(0, 1000, 300).tolist())
    sequence = make_sequence(prompt, **params)
    sampler = Sampler()
    for _ in range(400):
        sequence.token_ids += random.integers(0, 1000, random.integers(1, 4)).tolist()
        logits = random_logits(vocab=1000)[0]
        counts = torch.bincount(torch.tensor(sequence.token_ids[300:]), minlength=1000)
        is_seen = torch.zeros(1000, dtype=torch.bool)
        is_seen[sequence.token_ids] = True
        expected = torch.where(logits > 0, logits / 1.5, logits * 1.5).where(is_seen, logits)
        expected = expected - 0.25 * counts - 0.125 * (counts > 0)
        sample(logits[None], [sequence], sampler)  # writes over them
        torch.testing.assert_close(logits, expected)


def test_stop_ids_wait_for_min_tokens() -> None:
    logits = torch.tensor([[0.0, 1.0, 9.0]])
    params: dict[str, Any] = {"temperature": 0, "stop_token_ids": [2], "min_tokens": 1}
    assert sample_one(logits, make_sequence(**params)).token_id == 1
    assert sample_one(logits, make_sequence(output=(1,), **params)).token_id == 2


def test_bias_and_allowed_ids_change_the_choice() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert sample_one(logits, make_sequence(temperature=0, logit_bias={0: 5})).token_id == 0
    sequence = make_sequence(temperature=0, allowed_token_ids=[0, 2])
    assert sample_one(logits, sequence).token_id == 2


@pytest.mark.parametrize(
    ("words", "answer", "expected"),
    [
        ([[3]], (), 2),
        ([[9, 3]], (), 3),
        ([[9, 3]], (9,), 2),
        ([[9, 3]], (9, 9, 1), 3),
        ([[8, 9, 3], [2]], (8, 9), 1),
        ([[8, 9, 3]], (9,), 3),
        ([[1, 3]], (), 3),  # the prompt ends with 1, but words are those of the answer
    ],
)
def test_bad_word_is_not_completed(
    words: list[list[int]], answer: tuple[int, ...], expected: int
) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    sequence = make_sequence(prompt=(0, 1), output=answer, temperature=0, bad_words_token_ids=words)
    assert sample_one(logits, sequence).token_id == expected


def test_forced_tokens_come_with_their_own_logprobs() -> None:
    logits = random_logits()
    sequence = make_sequence(output=(9,), trace_decode_token_ids=[9, 11], logprobs=0)
    token = sample_one(logits, sequence)
    assert token.token_id == 11 and token.logprobs is not None
    assert token.logprobs[0][1] == pytest.approx(float(logits[0].log_softmax(-1)[11]))


def test_logprobs_are_the_models_own_with_ranks() -> None:
    logits = random_logits()
    expected = logits[0].log_softmax(-1)
    order = expected.argsort(descending=True).tolist()
    sequence = make_sequence(
        temperature=0.5, top_k=1, logprobs=3, logprob_token_ids=[order[9]], logit_bias={1: -9}
    )
    token = sample_one(logits, sequence)
    assert token.token_id == order[0] and token.logprobs is not None
    assert [(i, rank) for i, _, rank in token.logprobs] == [
        (order[0], 1),
        (order[1], 2),
        (order[2], 3),
        (order[9], 10),
    ]
    values = [value for _, value, _ in token.logprobs]
    assert values == pytest.approx([float(expected[order[i]]) for i in (0, 1, 2, 9)])
    everything = sample_one(logits, make_sequence(temperature=0, logprobs=-1)).logprobs
    assert everything is not None and [rank for _, _, rank in everything] == list(range(1, 51))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_without_finite_maximum_fails_alone(value: float) -> None:
    logits = random_logits(3)
    logits[1, 4] = value
    tokens = sample(logits, [make_sequence(temperature=t) for t in (0, 1, 1)])
    problem = ("engine_error", "the model gave no finite logits")
    assert [token.error for token in tokens] == [None, problem, None]


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [5], "bad_words_token_ids": [[5]]},
        {"allowed_token_ids": [5, 6], "bad_words_token_ids": [[3, 5], [6]], "output": (3,)},
        {"allowed_token_ids": [5], "min_tokens": 1, "stop_token_ids": [5]},
        {"bad_words_token_ids": [[token] for token in range(VOCAB)], "logit_bias": {1: 9.0}},
    ],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_parameters_that_leave_no_token_are_named_and_end_their_row_alone(
    params: dict[str, Any], temperature: int
) -> None:
    logits = random_logits(3)
    rows: list[dict[str, Any]] = [{}, params, {"allowed_token_ids": [5]}]
    tokens = sample(logits, [make_sequence(temperature=temperature, **p) for p in rows])
    problem = ("invalid_request", "the request's own parameters leave no token to choose")
    assert [token.error for token in tokens] == [None, problem, None]
    assert tokens[2].token_id == 5


def test_the_model_is_to_blame_where_parameters_left_a_token() -> None:
    logits = random_logits()
    logits[:, 5] = torch.nan
    sequence = make_sequence(allowed_token_ids=[5, 6], bad_words_token_ids=[[6]])
    assert sample_one(logits, sequence).error == ("engine_error", "the model gave no finite logits")


def test_a_row_whose_parameters_fail_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    add = LogitEdits.add

    def fail_for_one(
        edits: LogitEdits, row: int, sequence: Sequence, seen: SeenTokens, *more: Any
    ) -> bool:
        if sequence.params.logit_bias == {1: 1.0}:
            raise IndexError("of one row")
        return add(edits, row, sequence, seen, *more)

    monkeypatch.setattr(LogitEdits, "add", fail_for_one)
    logits = random_logits(3)
    rows = [make_sequence(temperature=0, logit_bias={token: 1.0}) for token in (0, 1, 2)]
    tokens = sample(logits, rows)
    problem = ("engine_error", "IndexError in the sampler")
    assert [token.error for token in tokens] == [None, problem, None]
    assert tokens[2] == sample(logits[2:], rows[2:])[0]
