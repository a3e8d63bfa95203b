"""Wrong credentials: ten in a minute, then that address waits; right ones are let in always."""

import asyncio
import contextlib

import pytest

from server.access.login_throttle import MAX_FAILURES, WINDOW_SECONDS, LoginThrottle
from server.config.limits import MIN_SECRET_CHARACTERS
from server.protocol.errors import ApiError
from sessions.model.errors import StoreUnavailable

LONG = "x" * MIN_SECRET_CHARACTERS  # as long as a secret of ours


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def try_wrong(attempts: LoginThrottle, address: str, secret: str = LONG) -> str:
    """The code that a wrong secret is refused with."""
    with pytest.raises(ApiError) as raised, attempts.attempt(address, secret):
        raise ApiError("token_invalid", "wrong")
    return raised.value.code


@pytest.fixture
def attempts(clock: Clock) -> LoginThrottle:
    attempts = LoginThrottle(clock)
    for _ in range(MAX_FAILURES):
        assert try_wrong(attempts, "1.2.3.4") == "token_invalid"
    return attempts


@pytest.mark.parametrize("secret", ["short", LONG])
def test_after_ten_failures_an_address_waits_for_the_rest_of_its_minute(
    attempts: LoginThrottle, clock: Clock, secret: str
) -> None:
    clock.now += 20
    with pytest.raises(ApiError) as raised:
        with attempts.attempt("1.2.3.4", secret):
            raise ApiError("token_invalid", "wrong")
    assert raised.value.code == "rate_limited"
    assert raised.value.retry_after_ms == (WINDOW_SECONDS - 20) * 1000


def test_a_right_secret_is_let_in_even_if_others_send_wrong_ones_from_its_address(
    attempts: LoginThrottle,
) -> None:
    for _ in range(3):
        with attempts.attempt("1.2.3.4", LONG):
            pass
        assert try_wrong(attempts, "1.2.3.4") == "rate_limited"


def test_what_is_too_short_to_be_a_secret_is_not_looked_up_any_more(
    attempts: LoginThrottle,
) -> None:
    with pytest.raises(ApiError, match="rate_limited"), attempts.attempt("1.2.3.4", LONG[1:]):
        raise AssertionError("it was looked up")


@pytest.mark.parametrize("code", ["token_expired", "forbidden"])
def test_a_secret_that_was_right_once_is_no_guess(attempts: LoginThrottle, code: str) -> None:
    for _ in range(2 * MAX_FAILURES):
        with pytest.raises(ApiError, match=code), attempts.attempt("1.2.3.5", LONG):
            raise ApiError(code, "the credential has expired")
    assert try_wrong(attempts, "1.2.3.5") == "token_invalid"


def test_when_the_minute_is_over_the_address_may_try_again(
    attempts: LoginThrottle, clock: Clock
) -> None:
    clock.now += WINDOW_SECONDS
    assert try_wrong(attempts, "1.2.3.4") == "token_invalid"


def test_another_address_does_not_wait(attempts: LoginThrottle) -> None:
    assert try_wrong(attempts, "1.2.3.5") == "token_invalid"


def test_right_secrets_use_nothing_up(attempts: LoginThrottle) -> None:
    for number in range(2 * MAX_FAILURES):
        with attempts.attempt("1.2.3.5", f"right {number}"):
            pass


@pytest.mark.parametrize("failure", [StoreUnavailable, asyncio.CancelledError])
def test_what_ends_without_an_answer_uses_nothing_up(
    attempts: LoginThrottle, failure: type[BaseException]
) -> None:
    for _ in range(2 * MAX_FAILURES):
        with pytest.raises(failure), attempts.attempt("1.2.3.5", "unknown"):
            raise failure
    for _ in range(MAX_FAILURES):
        assert try_wrong(attempts, "1.2.3.5") == "token_invalid"
    assert try_wrong(attempts, "1.2.3.5") == "rate_limited"


def test_attempts_at_the_same_time_count_before_they_have_failed(attempts: LoginThrottle) -> None:
    with contextlib.ExitStack() as trying:
        for number in range(MAX_FAILURES):
            trying.enter_context(attempts.attempt("1.2.3.5", f"unknown {number}"))
        assert try_wrong(attempts, "1.2.3.5") == "rate_limited"


def test_an_attempt_that_outlives_its_minute_leaves_the_next_one_as_it_is(
    attempts: LoginThrottle, clock: Clock
) -> None:
    with attempts.attempt("1.2.3.5", "right"):
        clock.now += WINDOW_SECONDS
    for _ in range(MAX_FAILURES):
        assert try_wrong(attempts, "1.2.3.5") == "token_invalid"
    assert try_wrong(attempts, "1.2.3.5") == "rate_limited"
