"""One answer as the terminal follows it: the ordering rules of docs/protocol.md."""

from server.terminal.chat.state.run import Message, Outcome, Run
from tests.server.terminal.chat.state.frames import answer, created, delta, done, snapshot


def begun() -> Run:
    run = Run("resp_R", Message(answer()))
    assert run.receive(created()) is Outcome.TAKEN
    return run


def test_deltas_are_applied_in_order_and_old_ones_are_dropped() -> None:
    run = begun()
    assert run.receive(delta(2, 0, "One ")) is Outcome.TAKEN
    assert run.receive(delta(2, 0, "One ")) is Outcome.DROPPED
    assert run.receive(delta(5, 4, "two three", first=3)) is Outcome.TAKEN
    assert (run.message.text, run.last) == ("One two three", 5)


def test_a_gap_is_asked_for_once_and_what_comes_meanwhile_waits() -> None:
    run = begun()
    assert run.receive(delta(4, 9, "late")) is Outcome.RESUME
    assert run.receive(delta(5, 13, "later")) is Outcome.DROPPED
    assert run.position() == {"response_id": "resp_R", "fence": 1, "after_sequence_number": 1}
    assert run.receive(delta(5, 0, "All of it", first=2)) is Outcome.TAKEN
    assert run.message.text == "All of it"


def test_lengths_are_those_of_utf_16() -> None:
    run = begun()
    run.receive(delta(2, 0, "🙂🙂"))
    assert run.receive(delta(3, 4, " ok")) is Outcome.TAKEN
    run.receive(done(4, 5))
    assert run.message.text == "🙂🙂 "
    assert run.is_settled and run.message.status == "completed"


def test_a_text_that_is_not_the_server_s_is_sent_again_whole_but_not_for_ever() -> None:
    run = begun()
    assert run.receive(delta(2, 3, "wrong")) is Outcome.RESUME
    assert run.position()["after_sequence_number"] == 0
    run.receive(snapshot(7, "The text"))
    assert (run.message.text, run.last) == ("The text", 7)
    outcomes = []
    for _ in range(3):
        run.last = 8
        outcomes.append(run.receive(delta(9, 99, "wrong")))
    assert outcomes == [Outcome.RESUME, Outcome.RESUME, Outcome.DROPPED]


def test_a_snapshot_of_several_parts_replaces_the_text_when_it_is_whole() -> None:
    run = begun()
    run.receive(delta(2, 0, "Old"))
    run.receive(snapshot(9, "New ", part=1, parts=2))
    assert run.message.text == "Old"
    run.receive(snapshot(9, "text", part=2, parts=2, fence=2))
    assert (run.message.text, run.last, run.fence) == ("New text", 9, 2)


def test_a_part_that_is_missing_has_all_sent_again() -> None:
    run = begun()
    assert run.receive(snapshot(9, "text", part=2, parts=2)) is Outcome.RESUME


def test_the_end_counts_over_a_gap_and_its_text_replaces() -> None:
    run = begun()
    run.receive(delta(2, 0, "One"))
    assert run.receive(done(40, 9, text="One, two, three")) is Outcome.TAKEN
    assert run.message.text == "One, two,"


def test_an_end_without_text_that_is_missing_some_is_read_from_the_store() -> None:
    run = begun()
    run.receive(delta(2, 0, "One"))
    assert run.receive(done(40, 9)) is Outcome.REFETCH


def test_an_end_that_was_never_stored_is_taken_back_by_a_snapshot() -> None:
    run = begun()
    run.receive(delta(2, 0, "One"))
    run.receive(done(3, 3, durable=False))
    assert run.has_ended and not run.is_settled
    run.receive(snapshot(3, "One", fence=2))
    assert not run.has_ended and run.message.is_streaming
    run.receive(delta(4, 3, " two"))
    run.receive(done(5, 7))
    assert run.is_settled and run.message.text == "One two"


def test_after_a_stop_nothing_more_is_shown_until_the_end_says_how_much_there_is() -> None:
    run = begun()
    run.receive(delta(2, 0, "Seen"))
    run.freeze()
    run.receive(delta(3, 4, " unseen"))
    assert run.message.visible_text == "Seen"
    run.receive(done(4, 4, status="cancelled"))
    assert run.message.visible_text == run.message.text == "Seen"


def test_a_continued_answer_begins_after_what_the_message_has() -> None:
    run = Run("resp_R", Message(answer("Half of it and", "interrupted")))
    run.receive(created())
    assert run.receive(delta(2, 10, " the rest")) is Outcome.TAKEN
    assert run.message.text == "Half of it the rest"


def test_a_frame_of_a_kind_that_is_unknown_counts() -> None:
    run = begun()
    unknown = {"type": "response.new_thing", "sequence_number": 2, "fence": 1}
    assert run.receive(unknown) is Outcome.TAKEN
    assert run.receive(delta(3, 0, "Text")) is Outcome.TAKEN
