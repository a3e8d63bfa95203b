"""Answers that may think so many tokens: in any batch, after preemptions, and where they go on."""

import random
from typing import Any

import pytest

from engine.core.sampling.thoughts import ThoughtCount
from engine.core.scheduling.sequence import Sequence
from engine.grammar.params import StructuredOutputsParams
from engine.grammar.thoughts import ThoughtMarks, ThoughtTokens
from engine.sampling_params import SamplingParams
from tests.engine.helpers.greedy_oracle import Folders, families_in, make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine

BEGIN, END, OTHER_END = 40, 41, 42
PLAIN = ThoughtTokens([ThoughtMarks([BEGIN], [END, OTHER_END])])
CHANNEL, ANALYSIS, MESSAGE = 50, 51, 52
CHANNELS = ThoughtTokens([ThoughtMarks([CHANNEL, ANALYSIS, MESSAGE], [END])])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("models"))


def begun(tokens: ThoughtTokens) -> ThoughtTokens:
    return ThoughtTokens(tokens.kinds, 0)


def limits(budget: int, tokens: ThoughtTokens, answer: list[int]) -> tuple[int | None, list[int]]:
    sequence = Sequence("me", "r", [1, 2], SamplingParams(), resume_token_ids=answer)
    return ThoughtCount(budget, tokens).limits(sequence)


@pytest.mark.parametrize(
    ("budget", "tokens", "answer", "expected"),
    [
        (2, PLAIN, [], (None, [])),
        (2, PLAIN, [BEGIN, 5], (None, [])),
        (2, PLAIN, [BEGIN, 5, 6], (END, [])),
        (2, PLAIN, [BEGIN, 5, 6, END], (None, [BEGIN])),
        (2, PLAIN, [BEGIN, 5, OTHER_END, 7, 8, 9], (None, [])),
        (2, PLAIN, [BEGIN, 5, OTHER_END, 7, BEGIN, 8], (END, [])),
        (2, PLAIN, [5, 6, 7], (None, [])),
        (0, PLAIN, [], (None, [])),
        (0, PLAIN, [BEGIN], (END, [])),
        (0, PLAIN, [BEGIN, END], (None, [BEGIN])),
        (0, begun(PLAIN), [], (END, [])),
        (1, begun(PLAIN), [BEGIN], (END, [])),  # in a thought it is none that begins
        (0, CHANNELS, [CHANNEL, ANALYSIS], (None, [])),
        (0, CHANNELS, [CHANNEL, ANALYSIS, MESSAGE], (END, [])),
        (0, CHANNELS, [CHANNEL, ANALYSIS, MESSAGE, END], (None, [])),
        (0, CHANNELS, [CHANNEL, ANALYSIS, MESSAGE, END, CHANNEL], (None, [ANALYSIS])),
    ],
)
def test_what_must_and_must_not_come_next(
    budget: int, tokens: ThoughtTokens, answer: list[int], expected: tuple[int | None, list[int]]
) -> None:
    assert limits(budget, tokens, answer) == expected


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_same_token_by_token_and_at_once(seed: int) -> None:
    rng = random.Random(seed)
    for tokens in (PLAIN, begun(PLAIN), CHANNELS):
        sequence = Sequence("me", "r", [1, CHANNEL], SamplingParams())
        count = ThoughtCount(rng.randrange(6), tokens)
        for _ in range(60):
            at_once = ThoughtCount(count._budget, tokens).limits(sequence)
            assert count.limits(sequence) == at_once
            sequence.token_ids.append(rng.choice((BEGIN, END, OTHER_END, CHANNEL, ANALYSIS, 52, 7)))


def longest_thoughts(answer: list[int], tokens: ThoughtTokens) -> int:
    """How many tokens an answer has thought, read anew."""
    num_thought, is_open = 0, tokens.begun is not None
    for token in answer:
        if is_open and token in (END, OTHER_END):
            is_open = False
        elif is_open:
            num_thought += 1
        else:
            is_open = token == BEGIN
    return num_thought


def ask(engine: SteppedEngine, cuts: dict[str, list[int]] | None = None) -> None:
    """Answers with budgets beside others without."""
    for number, prompt in enumerate(make_prompts()):
        name, tokens = f"{number}", begun(PLAIN) if number % 2 else PLAIN
        params: dict[str, Any] = {"temperature": 1.0, "seed": number, "logit_bias": {BEGIN: 6.0}}
        budget: dict[str, Any] = {"thinking_token_budget": number, "thought_tokens": tokens}
        resumed = (cuts or {}).get(name, [])
        engine.add(name, prompt, resume_token_ids=resumed, **params, **budget)
        engine.add(f"plain {name}", prompt, **params)
        engine.step()
    engine.run()


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("settings", [{}, {"num_blocks": 9}, {"max_num_batched_tokens": 5}])
def test_answers_think_no_more_and_go_on_however_they_are_computed(
    settings: dict[str, Any], runs_ahead: bool, folders: Folders
) -> None:
    calm = SteppedEngine(folders("llama"))
    ask(calm)
    disturbed = SteppedEngine(folders("llama"), runs_ahead=runs_ahead, **settings)
    rng = random.Random(1)
    cuts = {n: ids[: rng.randrange(len(ids))] for n, ids in calm.tokens.items()}
    ask(disturbed, cuts)
    num_forced = 0
    for number in range(len(make_prompts())):
        name, tokens = f"{number}", begun(PLAIN) if number % 2 else PLAIN
        answer = calm.tokens[name]
        assert cuts[name] + disturbed.tokens[name] == answer
        thought = longest_thoughts(answer, tokens)
        assert thought <= number and len(answer) == 24
        num_forced += thought == number and END in answer
        assert calm.tokens[f"plain {name}"] == disturbed.tokens[f"plain {name}"]
    assert num_forced > 2


def test_a_form_that_does_not_let_a_thought_end_counts_more(folders: Folders) -> None:
    engine = SteppedEngine(folders("llama"), ends_at_eos=True)
    form = StructuredOutputsParams(regex="[ab]{8}")
    more: dict[str, Any] = {"thinking_token_budget": 2, "thought_tokens": begun(PLAIN)}
    engine.add("r", [5, 6, 7], structured_outputs=form, temperature=1.0, seed=1, **more)
    engine.run()
    engine.close()
    assert engine.ends["r"].finish_reason == "stop"
