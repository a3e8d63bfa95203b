"""`Subscription`: one connection gets every event of a session once, and in order."""

import pytest

from server.live import subscription as module
from server.live.outbox import Outbox
from server.live.response_log import ResponseLog
from server.live.subscription import Subscription
from server.protocol.entries import published_event_frame
from server.protocol.server_frames import SessionDeleted
from sessions.model.events import Event, ObjectEvent, TextEvent
from tests.server.helpers.entries import (
    CREATED,
    DONE,
    LOG,
    RESPONSE,
    message_updated,
    session_deleted,
    texts,
)
from tests.server.helpers.watching import Viewer, kinds


async def test_events_that_were_sent_already_are_dropped() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:3])
    assert subscription.put_events(RESPONSE, 1, 2, LOG[1:3])
    frames = await viewer.sent()
    assert kinds(frames) == ["created", "delta"]
    assert (frames[1]["delta"], frames[1]["sequence_number"]) == ("one two ", 3)


async def test_events_after_a_gap_are_not_sent() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:1])
    assert not subscription.put_events(RESPONSE, 1, 3, LOG[2:])
    assert kinds(await viewer.sent()) == ["created"]
    assert subscription.put_events(RESPONSE, 1, 2, LOG[1:])
    assert kinds(await viewer.sent()) == ["delta"]


async def test_session_events_come_once_and_only_forwards() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    for offset in (3, 4, 5, 5, 6, 5):
        subscription.put_session_event(offset, {"type": "session.updated", "offset": offset})
    assert [frame["offset"] for frame in await viewer.sent()] == [5, 6]


async def test_session_events_wait_for_the_snapshot_and_those_in_it_are_dropped() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    for offset in (5, 6, 7):
        subscription.put_session_event(offset, {"type": "session.updated", "offset": offset})
    assert await viewer.sent() == []
    subscription.end_join(6)
    assert [frame["offset"] for frame in await viewer.sent()] == [7]


async def test_the_event_that_a_request_has_caused_answers_it() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    subscription.expect_reply(SessionDeleted, "e1")
    subscription.put_session_event(5, message_updated(5))
    subscription.put_session_event(6, session_deleted(6))
    message, deleted = await viewer.sent()
    assert "event_id" not in message and deleted["event_id"] == "e1"


async def test_what_a_later_version_has_stored_is_sent_on_in_its_place() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    later = {"type": "session.tagged", "tag": "x"}
    subscription.put_session_event(5, published_event_frame("ses", 5, later))
    assert await viewer.sent() == [{**later, "session_id": "ses", "offset": 5}]


async def test_a_resumed_answer_alone_brings_no_session_events() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses", only={RESPONSE})
    subscription.end_join(0)
    subscription.put_session_event(5, {"type": "session.updated"})
    assert await viewer.sent() == []
    assert subscription.wants(RESPONSE)
    assert not subscription.wants("resp_" + "B" * 33)


async def test_a_known_position_is_answered_with_what_comes_after_it() -> None:
    viewer = Viewer()
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(1, LOG), 2)
    (delta,) = await viewer.sent()
    assert (delta["first_sequence_number"], delta["sequence_number"]) == (3, 4)
    assert (delta["text_offset"], delta["delta"]) == (4, "two three ")


@pytest.mark.parametrize("position", [0, 5, 10**6])
async def test_any_other_position_is_answered_with_a_snapshot(position: int) -> None:
    viewer = Viewer()
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(2, LOG), position)
    (snapshot,) = await viewer.sent()
    assert snapshot["type"] == "response.output_text.snapshot"
    assert (snapshot["sequence_number"], snapshot["fence"]) == (4, 2)
    assert snapshot["text"] == "one two three "


async def test_a_long_replay_becomes_a_snapshot_in_parts() -> None:
    viewer = Viewer()
    long = [CREATED, *texts(*["x" * 40_000] * 4)]
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(1, long), 1)
    parts = await viewer.sent()
    assert [(part["part"], part["parts"]) for part in parts] == [(1, 2), (2, 2)]
    assert "".join(part["text"] for part in parts) == "x" * 160_000


def texts_with_logprobs(num_tokens: int) -> list[Event]:
    """The entries of an answer that gives five other tokens for each of its own."""
    top = [{"token": f"other {place}", "logprob": -1.5 * place} for place in range(5)]
    logprob = {"token": "token", "logprob": -0.5, "top": top}
    return [TextEvent(6 * place, "token ", logprobs=(logprob,)) for place in range(num_tokens)]


@pytest.mark.row("N4")
async def test_a_replay_with_logprobs_passes_however_long_it_is() -> None:
    """What this server sends at once says nothing about how fast it is read."""
    viewer, overflows = Viewer(), 0

    def overflow() -> None:
        nonlocal overflows
        overflows += 1

    viewer.outbox = Outbox(overflow)
    log = ResponseLog(1, [CREATED, *texts_with_logprobs(9_000), DONE])
    subscription = Subscription(viewer, "ses")
    subscription.put_log(RESPONSE, log, 1)
    *deltas, done = await viewer.sent()
    assert not overflows and kinds([done]) == ["done"]
    assert set(kinds(deltas)) == {"delta"} and len(deltas) > 20
    assert "".join(delta["delta"] for delta in deltas) == "token " * 9_000
    assert sum(len(delta["logprobs"]) for delta in deltas) == 9_000
    last = 1
    for delta in deltas:
        assert delta["first_sequence_number"] == last + 1
        last = delta["sequence_number"]
    assert last == 9_001


async def test_replays_that_nobody_reads_are_bounded_and_then_a_snapshot_does() -> None:
    viewer = Viewer()
    log = ResponseLog(1, [CREATED, *texts_with_logprobs(9_000)])
    subscription = Subscription(viewer, "ses")
    for _ in range(4):
        subscription.put_log(RESPONSE, log, 1)
    frames = kinds(await viewer.sent())
    assert frames.count("snapshot") == 1 and frames[-1] == "snapshot"


async def test_text_that_comes_while_a_replay_is_read_goes_after_it() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    entries = [CREATED, *texts_with_logprobs(1_000)]
    subscription.put_log(RESPONSE, ResponseLog(1, entries), 1)
    first = await viewer.next()
    subscription.put_events(RESPONSE, 1, 1_002, [TextEvent(6_000, "live")])
    frames = [first, *await viewer.sent()]
    assert "".join(frame["delta"] for frame in frames) == "token " * 1_000 + "live"


async def test_a_replay_is_taken_back_with_all_that_was_not_sent_of_it() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    entries = [CREATED, *texts_with_logprobs(1_000)]
    subscription.put_log(RESPONSE, ResponseLog(1, entries), 1)
    await viewer.next()
    subscription.doubt(RESPONSE)
    assert await viewer.sent() == []


async def test_of_an_answer_in_doubt_only_a_whole_log_is_sent() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    await viewer.sent()
    subscription.doubt(RESPONSE)
    assert subscription.put_events(RESPONSE, 2, 3, LOG[2:])
    assert subscription.put_events(RESPONSE, 2, 1, [])  # a log that is stored no more
    assert await viewer.sent() == [] and subscription.doubts(RESPONSE)
    subscription.catch_up(RESPONSE, ResponseLog(2, LOG))
    assert kinds(await viewer.sent()) == ["snapshot"] and not subscription.doubts(RESPONSE)


async def test_an_end_that_brings_its_text_ends_a_doubt() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG)
    await viewer.sent()
    subscription.doubt(RESPONSE)
    whole = ObjectEvent({**DONE.data, "text": "one "})
    assert subscription.put_events(RESPONSE, 2, 3, [whole])  # shorter than what was shown
    assert kinds(await viewer.sent()) == ["done"] and not subscription.doubts(RESPONSE)


async def test_an_ended_answer_is_a_snapshot_and_its_end() -> None:
    viewer = Viewer()
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(1, [*LOG, DONE]), 0)
    snapshot, done = await viewer.sent()
    assert (snapshot["sequence_number"], done["sequence_number"]) == (4, 5)
    assert done["type"] == "response.done"


async def test_a_stopped_answer_sends_nothing_and_says_when_its_end_has_come() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    stopped = viewer.sent_ends.stop(RESPONSE)
    subscription.put_events(RESPONSE, 1, 3, [*LOG[2:], DONE])
    assert stopped.ended.is_set()
    assert kinds(await viewer.sent()) == ["created", "delta"]
    subscription.put_end(RESPONSE, ResponseLog(1, [*LOG, DONE]))
    (done,) = await viewer.sent()
    assert kinds([done]) == ["done"] and done["text"] == "one two three "


async def test_a_stopped_answer_whose_text_is_known_ends_with_the_text_that_was_left_out() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    viewer.sent_ends.stop(RESPONSE, lambda: "all of it")
    subscription.put_log(RESPONSE, ResponseLog(1, LOG[:3]), 0)
    subscription.put_events(RESPONSE, 1, 4, [*LOG[3:], DONE])
    *_, done = await viewer.sent()
    assert kinds([done]) == ["done"] and done["text"] == "all of it"


@pytest.mark.row("C19")
@pytest.mark.parametrize("position", [0, 2, 5, 99])
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_after_its_end_an_answer_is_its_end_alone_to_anyone_who_asks_for_more(
    is_stopped: bool, position: int
) -> None:
    viewer = Viewer()
    log = ResponseLog(1, [*LOG, DONE])
    asked_before = viewer.sent_ends.ask()
    if is_stopped:
        viewer.sent_ends.stop(RESPONSE, lambda: "one two three ")
    Subscription(viewer, "ses").put_log(RESPONSE, log, 2)
    assert kinds(await viewer.sent())[-1] == "done"
    again = Subscription(viewer, "ses")  # as every `session.subscribe` makes one
    again.put_log(RESPONSE, log, position, asked_before)
    assert await viewer.sent() == []  # that request has been answered
    again.put_log(RESPONSE, log, position, viewer.sent_ends.ask())
    (done,) = await viewer.sent()
    assert kinds([done]) == ["done"] and done["text"] == "one two three "


async def test_the_log_read_before_an_end_brings_no_text_after_it() -> None:
    viewer = Viewer()
    asked = viewer.sent_ends.ask()
    viewer.sent_ends.note_end(RESPONSE, is_final=True)  # by the one that had stopped it
    joined = Subscription(viewer, "ses")
    joined.put_log(RESPONSE, ResponseLog(1, LOG), 2, asked)
    joined.put_events(RESPONSE, 1, 5, [DONE])
    assert await viewer.sent() == [] and joined.open == []


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_what_ends_a_message_waits_for_the_end_of_its_answer(is_stopped: bool) -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    if is_stopped:
        viewer.sent_ends.stop(RESPONSE)
    subscription.put_session_event(5, message_updated(5, "in_progress"))
    subscription.put_session_event(6, message_updated(6))
    subscription.put_session_event(7, {"type": "session.updated"})
    assert subscription.awaited == RESPONSE
    assert sorted(kinds(await viewer.sent())) == ["created", "delta", "message.updated"]
    if is_stopped:
        subscription.put_end(RESPONSE, ResponseLog(1, [*LOG[:2], DONE]))
    else:
        subscription.put_events(RESPONSE, 1, 3, [DONE])
    assert kinds(await viewer.sent()) == ["done", "message.updated", "session.updated"]


async def test_a_message_whose_answer_did_not_begin_here_waits_for_nothing() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    subscription.put_session_event(5, message_updated(5))
    assert kinds(await viewer.sent()) == ["message.updated"]


async def test_the_end_of_a_deleted_answer_is_sent_as_it_came_by() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    viewer.sent_ends.stop(RESPONSE)
    assert not subscription.put_heard_end(RESPONSE)
    subscription.put_events(RESPONSE, 1, 3, [*LOG[2:], DONE])
    assert subscription.put_heard_end(RESPONSE)
    *_, done = await viewer.sent()
    assert (done["type"], done["sequence_number"]) == ("response.done", 5)


async def test_an_end_that_is_not_stored_yet_leaves_its_answer_open() -> None:
    """What ends the message waits, and who follows nothing else stays for the end that counts."""
    early = ObjectEvent({**DONE.data, "durable": False})
    early.data["response"] = {"text_length": 14, "status_details": {"reason": "eos"}}
    for only in (None, {RESPONSE}):
        viewer = Viewer()
        subscription = Subscription(viewer, "ses", only)
        subscription.end_join(4)
        subscription.put_events(RESPONSE, 1, 1, [*LOG, early])
        subscription.give_up_end(RESPONSE)
        subscription.put_session_event(5, message_updated(5))
        assert kinds(await viewer.sent())[-1] == "done"
        assert subscription.open == [RESPONSE] and subscription.wants(RESPONSE)
        stored = ResponseLog(1, [*LOG, DONE])
        subscription.put_end_again(RESPONSE, stored)
        subscription.put_end_again(RESPONSE, stored)
        frames = kinds(await viewer.sent())
        assert frames == (["done", "message.updated"] if only is None else ["done"])
        assert subscription.open == []


def stopped_and_ended_early() -> tuple[Viewer, Subscription]:
    """Who stopped an answer, and was sent its end before that was stored."""
    early = ObjectEvent({**DONE.data, "durable": False})
    early.data["response"] = {"text_length": 14, "status_details": {"reason": "client_cancelled"}}
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG)
    viewer.sent_ends.stop(RESPONSE, lambda: "one two three ")
    subscription.put_events(RESPONSE, 1, 5, [early])
    return viewer, subscription


async def test_who_stopped_an_answer_and_joins_again_before_its_end_is_stored_waits_for_it() -> (
    None
):
    """A new state brings the ends of what is open, and here nobody else does."""
    viewer, subscription = stopped_and_ended_early()
    assert kinds(await viewer.sent())[-1] == "done"
    assert subscription.open == [RESPONSE]


async def test_who_stopped_an_answer_and_was_sent_its_end_gets_no_text_with_a_new_state() -> None:
    """The store was away and has come back as another: everybody is sent everything anew."""
    viewer, subscription = stopped_and_ended_early()
    await viewer.sent()
    subscription.put_log(RESPONSE, ResponseLog(1, [*LOG, DONE]))
    assert kinds(await viewer.sent()) == ["done"]
    assert subscription.open == []


async def test_the_end_of_a_session_waits_for_those_of_its_answers() -> None:
    viewer = Viewer()
    calls: list[str] = []
    subscription = Subscription(
        viewer,
        "ses",
        on_gone=lambda _: calls.append("gone"),
        on_idle=lambda _: calls.append("idle"),
    )
    subscription.end_join(4)
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    subscription.put_session_event(5, session_deleted(5))
    subscription.put_session_event(6, session_deleted(6))  # by two who noticed the loss
    assert kinds(await viewer.sent()) == ["created", "delta"] and not calls
    end = ResponseLog(1, [*LOG, DONE]).end_with_text
    subscription.put_events(RESPONSE, 1, 5, [end])  # what came before it never came here
    done, gone = await viewer.sent()
    assert kinds([done, gone]) == ["done", "session.deleted"] and done["text"] == "one two three "
    assert calls[:2] == ["gone", "idle"] and viewer.sent_ends.is_gone("ses")


async def test_the_end_of_a_session_waits_for_no_owner_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LAST_ENDS_SECONDS", 0.0)
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    subscription.put_events(RESPONSE, 1, 1, LOG[:1])
    subscription.put_session_event(5, session_deleted(5))
    assert kinds([await viewer.next(), await viewer.next()]) == ["created", "session.deleted"]
    assert subscription.is_over and not subscription.is_idle
    subscription.put_events(RESPONSE, 1, 2, [*LOG[1:], DONE])  # late, and sent all the same
    assert kinds(await viewer.sent()) == ["delta", "done"] and subscription.is_idle
