"""`Subscription`: one connection gets every event of a session once, and in order."""

import pytest

from server.response_log import ResponseLog
from server.subscription import Subscription
from sessions.records import ObjectEvent
from tests.server.entries import CREATED, DONE, LOG, RESPONSE, message_updated, texts
from tests.server.watching import Viewer, kinds


async def test_events_that_were_sent_already_are_dropped() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:3])
    assert subscription.put_events(RESPONSE, 1, 2, LOG[1:3])
    frames = await viewer.sent()
    assert kinds(frames) == ["created", "delta"]
    assert (frames[1]["delta"], frames[1]["sequence_number"]) == ("one two ", 3)


async def test_events_behind_a_gap_are_not_sent() -> None:
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


async def test_a_resumed_answer_alone_brings_no_session_events() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses", only={RESPONSE})
    subscription.end_join(0)
    subscription.put_session_event(5, {"type": "session.updated"})
    assert await viewer.sent() == []
    assert subscription.wants(RESPONSE)
    assert not subscription.wants("resp_" + "B" * 33)


async def test_a_known_position_is_answered_with_what_comes_behind_it() -> None:
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


async def test_an_ended_answer_is_a_snapshot_and_its_end() -> None:
    viewer = Viewer()
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(1, [*LOG, DONE]), 0)
    snapshot, done = await viewer.sent()
    assert (snapshot["sequence_number"], done["sequence_number"]) == (4, 5)
    assert done["type"] == "response.done"


async def test_a_frozen_answer_sends_nothing_and_says_when_its_end_has_come() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    ended = subscription.freeze(RESPONSE)
    subscription.put_events(RESPONSE, 1, 3, [*LOG[2:], DONE])
    assert ended.is_set()
    assert kinds(await viewer.sent()) == ["created", "delta"]
    subscription.put_end(RESPONSE, ResponseLog(1, [*LOG, DONE]))
    (done,) = await viewer.sent()
    assert kinds([done]) == ["done"] and done["text"] == "one two three "


async def test_a_frozen_answer_whose_text_is_known_ends_with_the_text_that_was_left_out() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    subscription.freeze(RESPONSE, lambda: "all of it")
    subscription.put_log(RESPONSE, ResponseLog(1, LOG[:3]), 0)
    subscription.put_events(RESPONSE, 1, 4, [*LOG[3:], DONE])
    *_, done = await viewer.sent()
    assert kinds([done]) == ["done"] and done["text"] == "all of it"
    subscription.thaw(RESPONSE)
    subscription.put_log(RESPONSE, ResponseLog(1, [*LOG, DONE]), 0)
    assert kinds(await viewer.sent()) == ["snapshot", "done"]  # asked for again


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_what_ends_a_message_waits_for_the_end_of_its_answer(is_frozen: bool) -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    if is_frozen:
        subscription.freeze(RESPONSE)
    subscription.put_session_event(5, message_updated(5, "in_progress"))
    subscription.put_session_event(6, message_updated(6))
    subscription.put_session_event(7, {"type": "session.updated"})
    assert subscription.awaited == RESPONSE
    assert sorted(kinds(await viewer.sent())) == ["created", "delta", "message.updated"]
    if is_frozen:
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


async def test_the_end_of_a_deleted_answer_is_told_as_it_came_by() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    subscription.freeze(RESPONSE)
    assert not await subscription.put_heard_end(RESPONSE, 0.01)
    subscription.put_events(RESPONSE, 1, 3, [*LOG[2:], DONE])
    assert await subscription.put_heard_end(RESPONSE, 1.0)
    *_, done = await viewer.sent()
    assert (done["type"], done["sequence_number"]) == ("response.done", 5)


async def test_an_end_that_is_not_stored_yet_leaves_its_answer_open() -> None:
    """What ends the message waits, and who follows nothing else stays for the end that counts."""
    told = ObjectEvent({**DONE.data, "durable": False})
    told.data["response"] = {"text_length": 14, "status_details": {"reason": "eos"}}
    for only in (None, {RESPONSE}):
        viewer = Viewer()
        subscription = Subscription(viewer, "ses", only)
        subscription.end_join(4)
        subscription.put_events(RESPONSE, 1, 1, [*LOG, told])
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


def stopped_and_told_early() -> tuple[Viewer, Subscription]:
    """Who stopped an answer, and was told its end before that was stored."""
    told = ObjectEvent({**DONE.data, "durable": False})
    told.data["response"] = {"text_length": 14, "status_details": {"reason": "client_cancelled"}}
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG)
    subscription.freeze(RESPONSE, lambda: "one two three ")
    subscription.put_events(RESPONSE, 1, 5, [told])
    return viewer, subscription


async def test_who_stopped_an_answer_and_joins_again_before_its_end_is_stored_waits_for_it() -> (
    None
):
    """A new state brings the ends of what is open, and here nobody else does."""
    viewer, subscription = stopped_and_told_early()
    assert kinds(await viewer.sent())[-1] == "done"
    assert subscription.open == [RESPONSE]


async def test_who_stopped_an_answer_and_was_told_its_end_gets_no_text_with_a_new_state() -> None:
    """The store was away and has come back as another: everybody is sent everything anew."""
    viewer, subscription = stopped_and_told_early()
    await viewer.sent()
    subscription.put_state(RESPONSE, ResponseLog(1, [*LOG, DONE]))
    assert kinds(await viewer.sent()) == ["done"]
    assert subscription.open == []
