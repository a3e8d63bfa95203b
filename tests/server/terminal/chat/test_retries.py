"""When the terminal tries again: the reconnect rule of docs/protocol.md."""

import pytest

from server.terminal.chat.retries import QUICK_TRIES, Retries, close_policy


def test_a_lost_connection_is_tried_again_at_once() -> None:
    retries = Retries()
    retries.began(0.0)
    retries.opened(0.1)
    retries.closed(10.0)
    assert 0 <= retries.delay(10.0, True) <= 0.25


def test_quick_tries_begin_a_quarter_to_half_a_second_apart_and_then_they_grow() -> None:
    retries, now = Retries(), 0.0
    for _ in range(QUICK_TRIES):
        retries.began(now)
        retries.closed(now + 0.01)
        delay = retries.delay(now + 0.01, True)
        assert 0.24 <= delay + 0.01 <= 0.51
        now += 0.01 + delay
    bounds = [0.3 * 2**n for n in range(7)]
    for bound in [*bounds, 20.0, 20.0]:
        assert 0 <= retries.delay(now, True) <= bound


def test_half_a_minute_of_connection_begins_anew() -> None:
    retries = Retries()
    for _ in range(QUICK_TRIES + 3):
        retries.delay(0.0, True)
    assert retries.num_put_off == 3
    retries.began(1.0)
    retries.opened(1.0)
    retries.closed(32.0)
    assert retries.num_put_off == 0


def test_a_try_has_as_long_as_the_outage_lets_one_expect() -> None:
    retries = Retries()
    assert retries.began(0.0) == 10.0
    retries.opened(0.05)
    retries.closed(1.0)
    assert retries.began(1.0) == 0.5
    assert retries.began(9.0) == 2.0
    assert retries.began(500.0) == 10.0


@pytest.mark.parametrize("code", [1000, 1002, 1007, 1009, 4400, 4401, 4403, 4406, 4408])
def test_what_stays_closed(code: int) -> None:
    assert not close_policy(code, "").reconnects


@pytest.mark.parametrize(
    ("code", "reason", "after", "is_loss"),
    [
        (1006, "", 0.0, True),
        (1012, "", 0.0, True),
        (1013, "store_unavailable;retry_after_ms=1000", 1.0, False),
        (4008, "slow_consumer", 0.0, False),
        (4410, "", 0.0, False),
        (4429, "rate_limited;retry_after_ms=2500", 2.5, False),
        (4429, "", 5.0, False),
    ],
)
def test_what_reconnects_and_when(code: int, reason: str, after: float, is_loss: bool) -> None:
    policy = close_policy(code, reason)
    assert (policy.reconnects, policy.after_seconds, policy.is_loss) == (True, after, is_loss)


def test_a_server_that_keeps_failing_is_left_alone_after_five_tries() -> None:
    assert close_policy(4500, "").max_put_off == 5
