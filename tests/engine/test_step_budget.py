"""How many prompt tokens a step may read."""

from engine.step_budget import ALONE, FIRST_CHUNK_TOKENS, MIN_CHUNK_TOKENS, StepBudget


def test_without_a_limit_in_seconds_only_tokens_count() -> None:
    budget = StepBudget(512, 0.0)
    budget.observe(100, 60.0)
    assert budget.num_tokens(True) == 512


def test_the_first_chunk_is_small_because_its_price_is_not_known() -> None:
    assert StepBudget(512, 0.03).num_tokens(True) == FIRST_CHUNK_TOKENS
    assert StepBudget(64, 0.03).num_tokens(True) == 64


def test_a_chunk_is_what_fits_into_the_seconds_in_whole_blocks() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 0.02)  # 0.2 ms a token: 150 of them in 30 ms
    assert budget.num_tokens(True) == 144


def test_a_fast_machine_reads_as_many_tokens_as_a_step_may_have() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 0.0)
    assert budget.num_tokens(True) == 512


def test_a_slow_model_still_reads_a_few_tokens_at_a_time() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 10.0)
    assert budget.num_tokens(True) == MIN_CHUNK_TOKENS
    assert StepBudget(8, 0.03).num_tokens(True) == 8


def test_a_hiccup_is_forgotten() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(128, 1.0)
    for _ in range(20):
        budget.observe(32, 0.0064)
    assert budget.num_tokens(True) == 144


def test_it_finds_the_chunk_of_a_step_with_a_fixed_cost() -> None:
    budget = StepBudget(512, 0.03)
    for _ in range(20):
        num_tokens = budget.num_tokens(True)
        budget.observe(num_tokens, 0.004 + 0.0001 * num_tokens)
    assert 0.025 < 0.004 + 0.0001 * budget.num_tokens(True) <= 0.03


def test_a_tiny_chunk_says_nothing_of_the_price() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(1, 1.0)
    assert budget.num_tokens(True) == FIRST_CHUNK_TOKENS


def test_where_no_answer_runs_a_chunk_may_take_longer() -> None:
    budget = StepBudget(1024, 0.03)
    budget.observe(100, 0.02)
    assert budget.num_tokens(False) == int(ALONE * 0.03 / 0.0002) // 16 * 16 == 592


def test_where_a_token_takes_long_a_chunk_may_take_two_and_a_half_times_as_long() -> None:
    budget = StepBudget(512, 0.03)
    budget.observe(100, 0.1)
    budget.observe_decode(0.08)
    assert budget.num_tokens(True) == 192  # of 0.2 s
    for _ in range(20):
        budget.observe_decode(0.001)
    assert budget.num_tokens(True) == MIN_CHUNK_TOKENS
