"""`TokenBucket`, `Places` and `ConnectionCounter`, by a clock that the test moves."""

import pytest
from structlog.testing import capture_logs

from server.access import rates as limits
from server.access.rates import ConnectionCounter, Places, TokenBucket, limit_headers
from server.config.limits import Limits
from server.protocol.errors import ApiError
from server.protocol.objects import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits, "time", clock)
    return clock


def taken(bucket: TokenBucket, tries: int) -> int:
    return sum(bucket.take() for _ in range(tries))


def test_a_bucket_begins_with_two_seconds_of_tokens() -> None:
    bucket = TokenBucket(20)
    assert bucket.burst == 40
    assert taken(bucket, 100) == 40


def test_a_bucket_gains_its_rate_and_never_more_than_its_burst(clock: Clock) -> None:
    bucket = TokenBucket(20)
    taken(bucket, 40)
    clock.now += 0.5
    assert taken(bucket, 100) == 10
    clock.now += 3600
    assert taken(bucket, 100) == 40


def test_waiting_as_long_as_the_refusal_says_is_enough(clock: Clock) -> None:
    bucket = TokenBucket(3)
    taken(bucket, 6)
    assert not bucket.take()
    clock.now += bucket.retry_after_ms / 1000
    assert bucket.take()


def test_refusals_cost_nothing(clock: Clock) -> None:
    bucket = TokenBucket(10)
    taken(bucket, 1000)
    clock.now += 0.1
    assert taken(bucket, 5) == 1


def test_rate_zero_never_refuses() -> None:
    bucket = TokenBucket(0)
    assert taken(bucket, 10_000) == 10_000
    assert bucket.retry_after_ms == 0


def test_connections_are_counted_by_user_and_by_address() -> None:
    counter = ConnectionCounter(Limits(max_connections_per_user=2, max_connections_per_address=3))
    assert counter.enter("alice", "1.1.1.1")
    assert counter.enter("alice", "2.2.2.2")
    assert not counter.enter("alice", "3.3.3.3")
    assert counter.enter("bob", "1.1.1.1")
    assert counter.enter("carol", "1.1.1.1")
    assert not counter.enter("dave", "1.1.1.1")
    counter.leave("alice", "1.1.1.1")
    assert counter.enter("dave", "1.1.1.1")


@pytest.mark.row("P15")
def test_a_worker_refuses_connections_beyond_its_limit() -> None:
    counter = ConnectionCounter(Limits(max_connections=2))
    assert counter.enter("alice", "1.1.1.1")
    assert counter.enter("bob", "2.2.2.2")
    assert not counter.enter("carol", "3.3.3.3")
    counter.leave("alice", "1.1.1.1")
    assert counter.enter("carol", "3.3.3.3")


def test_a_refused_connection_is_not_counted() -> None:
    counter = ConnectionCounter(Limits(max_connections_per_user=5, max_connections_per_address=1))
    assert counter.enter("alice", "1.1.1.1")
    for _ in range(10):
        assert not counter.enter("alice", "1.1.1.1")
    assert counter.users["alice"] == 1


def test_nothing_is_kept_of_those_who_left() -> None:
    counter = ConnectionCounter(Limits())
    for number in range(100):
        assert counter.enter(f"user{number}", "1.1.1.1")
    for number in range(100):
        counter.leave(f"user{number}", "1.1.1.1")
    assert not counter.users
    assert not counter.addresses


def test_handshakes_are_limited_by_address(clock: Clock) -> None:
    counter = ConnectionCounter(Limits(max_handshakes_per_s=5))
    assert sum(counter.allow_handshake("1.1.1.1") for _ in range(50)) == 10
    assert counter.allow_handshake("2.2.2.2")
    clock.now += 1
    assert sum(counter.allow_handshake("1.1.1.1") for _ in range(50)) == 5


def test_many_addresses_do_not_grow_the_table_for_ever() -> None:
    counter = ConnectionCounter(Limits(max_handshakes_per_s=5))
    for number in range(25_000):
        counter.allow_handshake(str(number))
    assert len(counter.handshakes) <= 10_001


def test_zero_is_unlimited() -> None:
    counter = ConnectionCounter(Limits())
    assert all(counter.allow_handshake("1.1.1.1") for _ in range(1000))
    assert all(counter.enter("alice", "1.1.1.1") for _ in range(1000))


def refusal(places: Places, owner: str) -> str | None:
    """The code for one more who comes and goes; None if there is a place."""
    try:
        with places.one(owner):
            return None
    except ApiError as error:
        assert error.retry_after_ms
        return error.code


def test_one_owner_has_so_many_places_and_all_together_have_so_many() -> None:
    places = Places("imports", per_owner=2, in_all=3)
    with places.one("ada"), places.one("ada"):
        assert refusal(places, "ada") == "rate_limited"
        with places.one("bob"):
            assert refusal(places, "bob") == refusal(places, "eve") == "queue_full"
            assert refusal(places, "ada") == "rate_limited"  # theirs to mend comes first
        assert refusal(places, "eve") is None
    assert refusal(places, "ada") is None


def test_a_place_is_given_back_however_its_work_ends() -> None:
    places = Places("imports", per_owner=1, in_all=1)
    with pytest.raises(RuntimeError), places.one("ada"):
        raise RuntimeError
    assert refusal(places, "bob") is None


def test_each_owner_has_a_rate_of_its_own_and_hears_when_to_come_back() -> None:
    buckets = limits.TokenBuckets(1)
    buckets.check("alice")
    buckets.check("alice")
    with pytest.raises(ApiError) as raised:
        buckets.check("alice")
    assert raised.value.code == "rate_limited"
    assert raised.value.retry_after_ms is not None and raised.value.retry_after_ms > 0
    buckets.check("bob")


def test_more_owners_than_can_be_kept_are_forgotten() -> None:
    buckets = limits.TokenBuckets(1)
    for number in range(limits.MAX_OWNERS + 1):
        buckets.of(str(number))
    assert len(buckets) == 1


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0s"),
        (0.0004, "1ms"),
        (0.02, "20ms"),
        (1.5, "1.5s"),
        (60.0, "1m0s"),
        (59.9996, "1m0s"),
        (86_399.25, "23h59m59.25s"),
    ],
)
def test_limits_are_given_in_the_words_of_openai(seconds: float, said: str) -> None:
    entry = RateLimit(name="messages", limit=40, remaining=7, reset_seconds=seconds)
    assert limit_headers([entry]) == [
        (b"x-ratelimit-limit-requests", b"40"),
        (b"x-ratelimit-remaining-requests", b"7"),
        (b"x-ratelimit-reset-requests", said.encode()),
    ]


def test_refused_connections_are_counted_for_a_minute_and_logged_once(clock: Clock) -> None:
    limits = Limits(max_connections_per_user=1, max_handshakes_per_s=1)
    counter = ConnectionCounter(limits)
    assert counter.enter("alice", "1.1.1.1")
    with capture_logs() as logs:
        for _ in range(3):
            assert not counter.enter("alice", "2.2.2.2")
        while counter.allow_handshake("3.3.3.3"):
            pass
        assert counter.refused() == {"2.2.2.2": 3, "3.3.3.3": 1}
        clock.now += 60
        assert counter.refused() == {}
        assert not counter.enter("alice", "2.2.2.2")
    assert [(line["event"], line["limit"]) for line in logs] == [
        ("connections are refused", "PARLEY_MAX_CONNECTIONS_PER_USER")
    ] * 2
    assert (logs[0]["user"], logs[0]["address"]) == ("alice", "2.2.2.2")
