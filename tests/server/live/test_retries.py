"""`until_done`: an attempt is repeated while the store is away, and as long as it is wanted."""

import pytest

from server.live import retries
from server.live.retries import until_done
from sessions.model.errors import SessionNotFound, StoreUnavailable


class Attempts:
    """The store answers from attempt number `num_failures` + 1 on."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.count = 0

    async def __call__(self) -> int:
        self.count += 1
        if self.count <= self.num_failures:
            raise StoreUnavailable
        return self.count


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "STORE_RETRY_SECONDS", 0)


@pytest.mark.parametrize("num_failures", [0, 1, 5])
async def test_the_first_attempt_that_the_store_answers_counts(num_failures: int) -> None:
    attempts = Attempts(num_failures)
    assert await until_done(attempts) == num_failures + 1
    assert attempts.count == num_failures + 1


async def test_what_is_wanted_no_more_is_tried_no_more() -> None:
    attempts = Attempts(100)
    assert await until_done(attempts, lambda: attempts.count < 3) is None
    assert attempts.count == 3


async def test_any_other_refusal_is_the_caller_s() -> None:
    async def refused() -> None:
        raise SessionNotFound

    with pytest.raises(SessionNotFound):
        await until_done(refused)
