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
        attempts.check("1.2.3.4", "wrong")
        attempts.count("1.2.3.4")
    return attempts


def test_after_ten_failures_an_address_waits_for_the_rest_of_its_minute(
    attempts: FailedAttempts, clock: Clock
) -> None:
    clock.now += 20
    with pytest.raises(ApiError) as raised:
        attempts.check("1.2.3.4", "right, for the first time")
    assert raised.value.code == "rate_limited"
    assert raised.value.retry_after_ms == (WINDOW_SECONDS - 20) * 1000


def test_when_the_minute_is_over_the_address_may_try_again(
    attempts: FailedAttempts, clock: Clock
) -> None:
    clock.now += WINDOW_SECONDS
    attempts.check("1.2.3.4", "wrong")


def test_another_address_does_not_wait(attempts: FailedAttempts) -> None:
    attempts.check("1.2.3.5", "wrong")


def test_a_token_that_was_right_before_does_not_wait(attempts: FailedAttempts) -> None:
    attempts.forgive("right")
    attempts.check("1.2.3.4", "right")
