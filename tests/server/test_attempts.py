"""Wrong admin credentials: ten in a minute, then that address waits for the minute to end."""

import pytest

from server.attempts import MAX_FAILURES, WINDOW_SECONDS, FailedAttempts
from server.errors import ApiError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempts(clock: Clock) -> FailedAttempts:
    attempts = FailedAttempts(clock)
    for _ in range(MAX_FAILURES):
        attempts.begin("1.2.3.4", "wrong")
        attempts.failed("1.2.3.4")
    return attempts


def test_after_ten_failures_an_address_waits_for_the_rest_of_its_minute(
    attempts: FailedAttempts, clock: Clock
) -> None:
    clock.now += 20
    with pytest.raises(ApiError) as raised:
        attempts.begin("1.2.3.4", "right, for the first time")
    assert raised.value.code == "rate_limited"
    assert raised.value.retry_after_ms == (WINDOW_SECONDS - 20) * 1000


def test_when_the_minute_is_over_the_address_may_try_again(
    attempts: FailedAttempts, clock: Clock
) -> None:
    clock.now += WINDOW_SECONDS
    attempts.begin("1.2.3.4", "wrong")


def test_another_address_does_not_wait(attempts: FailedAttempts) -> None:
    attempts.begin("1.2.3.5", "wrong")


def test_a_token_that_was_right_before_does_not_wait(attempts: FailedAttempts) -> None:
    attempts.begin("1.2.3.5", "right")
    attempts.succeeded("1.2.3.5", "right")
    attempts.begin("1.2.3.4", "right")


def test_right_tokens_use_nothing_up(attempts: FailedAttempts) -> None:
    for number in range(2 * MAX_FAILURES):
        attempts.begin("1.2.3.5", f"right {number}")
        attempts.succeeded("1.2.3.5", f"right {number}")


def test_attempts_at_the_same_time_count_before_they_have_failed(attempts: FailedAttempts) -> None:
    for _ in range(MAX_FAILURES):
        attempts.begin("1.2.3.5", "wrong")
    with pytest.raises(ApiError):
        attempts.begin("1.2.3.5", "wrong")
