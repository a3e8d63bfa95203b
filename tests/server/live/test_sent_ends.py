"""`SentEnds`: of what one connection has stopped, or was sent the end, it gets no more text."""

from server.live.sent_ends import MAX_ENDS, MAX_GONE, SentEnds
from tests.server.helpers.entries import RESPONSE


def test_a_stop_silences_an_answer_and_its_last_end_keeps_it_silent() -> None:
    ends = SentEnds()
    stopped = ends.stop(RESPONSE)
    assert ends.is_silent(RESPONSE) and not ends.has_end(RESPONSE)
    ends.note_end(RESPONSE, is_final=False)
    assert stopped.ended.is_set() and ends.has_early_end(RESPONSE)
    assert ends.stopped(RESPONSE) is stopped  # another end must follow
    ends.note_end(RESPONSE, is_final=True)
    assert ends.stopped(RESPONSE) is None and ends.is_silent(RESPONSE)


def test_an_end_answers_what_was_asked_for_before_it_and_nothing_later() -> None:
    ends = SentEnds()
    before = ends.ask()
    ends.note_end(RESPONSE, is_final=False)
    assert not ends.has_answered(RESPONSE, before)
    ends.note_end(RESPONSE, is_final=True)
    assert ends.has_answered(RESPONSE, before) and ends.has_answered(RESPONSE)
    assert not ends.has_answered(RESPONSE, ends.ask())


def test_a_stop_without_an_end_leaves_it_to_who_asks_next() -> None:
    ends = SentEnds()
    asked = ends.ask()
    ends.stop(RESPONSE)
    ends.settle(RESPONSE)
    assert ends.is_silent(RESPONSE)
    assert not ends.has_answered(RESPONSE, asked) and not ends.has_answered(RESPONSE)


def test_an_end_that_was_sent_early_can_be_taken_back_and_one_that_counts_cannot() -> None:
    ends = SentEnds()
    ends.note_end(RESPONSE, is_final=False)
    ends.take_back(RESPONSE)
    assert not ends.has_early_end(RESPONSE)
    ends.note_end(RESPONSE, is_final=True)
    ends.take_back(RESPONSE)
    assert ends.has_end(RESPONSE)


def test_a_session_that_lost_its_past_may_go_on_with_answers_that_had_ended() -> None:
    ends = SentEnds()
    other = "resp_" + "B" * 33
    for response_id in (RESPONSE, other):
        ends.note_end(response_id, is_final=True)
    ends.forget("ses_" + RESPONSE[5:27])
    assert not ends.is_silent(RESPONSE) and ends.is_silent(other)


def test_what_is_remembered_is_bounded_and_an_end_that_another_one_follows_stays() -> None:
    ends = SentEnds()
    ends.note_end(RESPONSE, is_final=False)
    names = [f"resp_{number:033}" for number in range(MAX_ENDS + 5)]
    for name in names:
        ends.note_end(name, is_final=True)
    known = [name for name in names if ends.has_end(name)]
    assert known == names[-MAX_ENDS + 1 :] and ends.has_early_end(RESPONSE)
    sessions = [f"ses_{number}" for number in range(MAX_GONE + 5)]
    for name in sessions:
        ends.note_gone(name)
    assert [name for name in sessions if ends.is_gone(name)] == sessions[5:]
