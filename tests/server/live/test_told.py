"""`Told`: what one connection has stopped and was told to have ended, it gets no more text of."""

from server.live.told import MAX_ENDS, MAX_GONE, Told
from tests.server.helpers.entries import RESPONSE


def test_a_stop_silences_an_answer_and_its_last_end_keeps_it_silent() -> None:
    told = Told()
    stopped = told.stop(RESPONSE)
    assert told.is_silent(RESPONSE) and not told.has_end(RESPONSE)
    told.note_end(RESPONSE, is_final=False)
    assert stopped.ended.is_set() and told.has_early_end(RESPONSE)
    assert told.stopped(RESPONSE) is stopped  # another end must follow
    told.note_end(RESPONSE, is_final=True)
    assert told.stopped(RESPONSE) is None and told.is_silent(RESPONSE)


def test_an_end_answers_what_was_asked_for_before_it_and_nothing_later() -> None:
    told = Told()
    before = told.ask()
    told.note_end(RESPONSE, is_final=False)
    assert not told.has_answered(RESPONSE, before)
    told.note_end(RESPONSE, is_final=True)
    assert told.has_answered(RESPONSE, before) and told.has_answered(RESPONSE)
    assert not told.has_answered(RESPONSE, told.ask())


def test_a_stop_without_an_end_leaves_it_to_who_asks_next() -> None:
    told = Told()
    asked = told.ask()
    told.stop(RESPONSE)
    told.settle(RESPONSE)
    assert told.is_silent(RESPONSE)
    assert not told.has_answered(RESPONSE, asked) and not told.has_answered(RESPONSE)


def test_an_end_that_was_told_early_can_be_taken_back_and_one_that_counts_cannot() -> None:
    told = Told()
    told.note_end(RESPONSE, is_final=False)
    told.take_back(RESPONSE)
    assert not told.has_early_end(RESPONSE)
    told.note_end(RESPONSE, is_final=True)
    told.take_back(RESPONSE)
    assert told.has_end(RESPONSE)


def test_a_session_that_lost_its_past_may_go_on_with_answers_that_had_ended() -> None:
    told = Told()
    other = "resp_" + "B" * 33
    for response_id in (RESPONSE, other):
        told.note_end(response_id, is_final=True)
    told.forget("ses_" + RESPONSE[5:27])
    assert not told.is_silent(RESPONSE) and told.is_silent(other)


def test_what_is_remembered_is_bounded_and_an_end_that_another_one_follows_stays() -> None:
    told = Told()
    told.note_end(RESPONSE, is_final=False)
    names = [f"resp_{number:033}" for number in range(MAX_ENDS + 5)]
    for name in names:
        told.note_end(name, is_final=True)
    known = [name for name in names if told.has_end(name)]
    assert known == names[-MAX_ENDS + 1 :] and told.has_early_end(RESPONSE)
    sessions = [f"ses_{number}" for number in range(MAX_GONE + 5)]
    for name in sessions:
        told.note_gone(name)
    assert [name for name in sessions if told.is_gone(name)] == sessions[5:]
