"""How many prompt tokens a step may read."""

import pytest

from engine.core.scheduling.step_budget import (
    CHUNK_UNIT_TOKENS,
    FIRST_CHUNK_TOKENS,
    LONGEST_GAP,
    MIN_CHUNK_TOKENS,
    StepBudget,
)

FIXED, EACH = 0.004, 0.0001  # seconds of a step, and of each token in it


def test_without_a_limit_in_seconds_only_tokens_count() -> None:
    budget = StepBudget(512, 0.0)
    budget.observe(100, 60.0)
    assert budget.num_tokens(1, 1) == 512


def test_the_first_chunk_is_small_because_its_price_is_not_known() -> None:
    assert StepBudget(512, 0.03).num_tokens(1, 1) == FIRST_CHUNK_TOKENS
    assert StepBudget(64, 0.03).num_tokens(1, 1) == 64


def test_a_chunk_is_what_fits_into_the_seconds_in_whole_blocks() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 0.02)  # 0.2 ms a token: 150 of them in 30 ms
    assert budget.num_tokens(1, 1) == 144
    assert budget.num_tokens(10, 1) == 128  # ten are the answers' own


def test_a_fast_machine_reads_as_many_tokens_as_a_step_may_have() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 0.0)
    assert budget.num_tokens(1, 1) == 512


def test_a_slow_model_still_reads_a_few_tokens_at_a_time() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 10.0)
    assert budget.num_tokens(0, 1) == MIN_CHUNK_TOKENS == 32
    assert budget.num_tokens(1, 1) == CHUNK_UNIT_TOKENS == 16  # an answer waits for it
    assert StepBudget(8, 0.03).num_tokens(1, 1) == 8


def test_a_hiccup_is_forgotten() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(128, 1.0)
    for _ in range(20):
        budget.observe(32, 0.0064)
    assert budget.num_tokens(1, 1) == 144


def test_it_finds_the_chunk_of_a_step_with_a_fixed_cost() -> None:
    budget = StepBudget(512, 0.03)
    for _ in range(20):
        num_tokens = budget.num_tokens(1, 1)
        budget.observe(num_tokens, FIXED + EACH * num_tokens)
    assert 0.025 < FIXED + EACH * budget.num_tokens(1, 1) <= 0.03


def test_a_tiny_chunk_says_nothing_of_the_price() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(1, 1.0)
    assert budget.num_tokens(1, 1) == FIRST_CHUNK_TOKENS


def test_where_no_answer_runs_a_chunk_may_take_longer() -> None:
    budget = StepBudget(1024, 0.03)
    budget.observe(100, 0.02)
    assert budget.num_tokens(0, 1) == 592  # of 4 times 0.03 s


def test_where_a_token_takes_long_a_chunk_may_take_twice_as_long() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 0.1)
    budget.observe_decode(1, 0.08)
    assert budget.num_tokens(1, 1) == 144  # of 0.16 s
    for _ in range(20):
        budget.observe_decode(1, 0.001)
    assert budget.num_tokens(1, 1) == CHUNK_UNIT_TOKENS


def test_a_token_takes_as_long_as_among_so_many_answers() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 0.1)
    budget.observe_decode(1, 0.04)
    budget.observe_decode(8, 0.08)
    budget.observe_decode(64, 0.4)
    # As one alone until five, as eight until 32, because more were not seen.
    seen = [budget.num_tokens(count, 1) + count for count in (1, 2, 4, 5, 8, 9, 32)]
    assert [80 - 15 <= tokens <= 80 for tokens in seen] == [True] * 3 + [False] * 4
    assert all(160 - 15 <= tokens <= 160 for tokens in seen[3:])


@pytest.mark.parametrize(
    ("num_answers", "num_waiting", "times"),
    [(4, 1, 1), (1, 1, 1), (4, 2, 2), (4, 3, 3), (4, 4, 4), (4, 99, 4), (16, 4, 1), (16, 6, 1.5)],
)
def test_where_several_wait_a_chunk_takes_longer_the_more_the_fewer_are_answered(
    num_answers: int, num_waiting: int, times: float
) -> None:
    budget = StepBudget(4096, 0.03)
    budget.observe(1000, 1.0)
    budget.observe_decode(num_answers, 0.08)
    affordable = LONGEST_GAP * 80 * times - num_answers
    assert affordable - 16 < budget.num_tokens(num_answers, num_waiting) <= affordable
