"""Who has many answers beside others gets their text in larger pieces."""

from contextlib import ExitStack

import pytest

from server.text_share import LARGEST_FACTOR, REMEMBERED_SECONDS, SMOOTH_ANSWERS, TextShare


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def share(clock: Clock) -> TextShare:
    return TextShare(clock)


def test_who_is_alone_gets_all_text_at_once_however_many_answers_they_have(
    share: TextShare,
) -> None:
    with ExitStack() as answers:
        for _ in range(100):
            answers.enter_context(share.writing("greedy"))
        assert share.factor("greedy") == 1.0


def test_beside_another_user_many_answers_have_the_events_of_a_few(share: TextShare) -> None:
    with ExitStack() as answers:
        answers.enter_context(share.writing("other"))
        for number in range(1, 3 * SMOOTH_ANSWERS + 1):
            answers.enter_context(share.writing("greedy"))
            assert number / share.factor("greedy") == min(number, SMOOTH_ANSWERS)
        assert share.factor("other") == 1.0


def test_no_text_is_gathered_for_longer_than_the_largest_factor_says(share: TextShare) -> None:
    with ExitStack() as answers:
        answers.enter_context(share.writing("other"))
        for _ in range(100 * SMOOTH_ANSWERS):
            answers.enter_context(share.writing("greedy"))
        assert share.factor("greedy") == LARGEST_FACTOR


def test_a_user_counts_for_a_while_after_their_last_answer(share: TextShare, clock: Clock) -> None:
    with ExitStack() as answers:
        for _ in range(2 * SMOOTH_ANSWERS):
            answers.enter_context(share.writing("greedy"))
        for uid in ("first", "second", "first"):
            with share.writing(uid):
                pass
            clock.now += REMEMBERED_SECONDS / 2
        assert share.factor("greedy") == 2.0
        clock.now += REMEMBERED_SECONDS / 2
        assert share.factor("greedy") == 2.0  # the first asked once more
        clock.now += 0.1
        assert share.factor("greedy") == 1.0
        assert not share._left


def test_a_users_own_answers_that_have_ended_are_nobody_elses(share: TextShare) -> None:
    with share.writing("greedy"):
        pass
    with ExitStack() as answers:
        for _ in range(2 * SMOOTH_ANSWERS):
            answers.enter_context(share.writing("greedy"))
        assert share.factor("greedy") == 1.0
