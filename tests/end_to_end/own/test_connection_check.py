"""What one websocket should not have been shown is found, and nothing that it may be shown."""

from typing import Any

import pytest

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.planted_histories import (
    CREATE,
    RESPONSE,
    SESSION,
    STOP,
    TEXT,
    UNSTORED,
    WHOLE,
    World,
    cancelling,
    created,
    delta,
    done,
    message,
    snapshot,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([created(), delta(2), delta(2)], "I2 event 2: at 2"),
        ([created(), delta(3), delta(2)], "I2 event 3: at 1"),
        ([delta(3)], "I2 event 3: not begun"),
        ([created(), delta(2), delta(3, text_offset=9)], "I2 text_offset"),
        ([created(), delta(2, delta="t09999 ")], "I1"),
        ([created(), delta(2, delta="t09999 "), snapshot(3)], "I1"),
        ([*WHOLE, done()], "G3 response.done number 2"),
        ([*WHOLE, delta(5)], "I2 event 5"),
        ([*WHOLE, snapshot(7)], "G4"),
        ([*WHOLE[:5], done(7)], "I1"),
        ([*WHOLE[:5], done(text="another")], "I1"),
        ([created(), cancelling(), *WHOLE[1:]], "G2"),
        ([{"type": "connection.ready", "user": {"id": "v"}}, created()], "I8"),
    ],
)
def test_what_a_connection_should_not_see_is_found(
    world: World, frames: list[Frame], found: str
) -> None:
    world.play(CREATE, *frames)
    assert found in world.finds()


@pytest.mark.parametrize(
    "stop",
    [
        STOP,
        {"type": "stop", "session_id": SESSION, "idempotency_key": "k"},
        {"type": "response.cancel", "session_id": SESSION},
        {"type": "response.cancel"},
    ],
    ids=["by its id", "by its key", "by its session", "whatever runs"],
)
def test_a_stop_may_be_answered_with_the_end_again_whenever_it_was_sent(
    world: World, stop: Frame
) -> None:
    """Also one that was sent before anything was seen of the response that it stops."""
    world.play(stop, *WHOLE, done())
    world.history.check()
    world.play(done())
    assert "G3 response.done number 3" in world.finds()


def test_text_after_a_stop_is_found_on_the_connection_that_asked_alone(world: World) -> None:
    world = World("cancelled")
    other = world.history.connect()
    end = done(status="cancelled")
    world.play(CREATE, created(), STOP, cancelling(), delta(2), *WHOLE[2:5], end)
    world.play(created(), *WHOLE[1:5], end, client=other)
    assert "G1" in world.finds() and "connection 2" not in world.finds()


def test_a_resumed_client_gets_what_follows_and_no_more(world: World) -> None:
    resume = {"type": "response.resume", "response_id": RESPONSE, "fence": 1}
    world.play({**resume, "after_sequence_number": 3}, *WHOLE[3:])
    world.history.check()
    again = world.history.connect()
    world.play({**resume, "after_sequence_number": 3}, *WHOLE[2:], client=again)
    assert "I2 event 3: not begun, asked for after [3]" in world.finds()
    world.history.forget()


def test_a_takeover_after_the_log_may_be_news_to_the_client_that_asked_for_it(
    world: World,
) -> None:
    resume = {"type": "response.resume", "response_id": RESPONSE, "fence": 1}
    rest = [{**frame, "fence": 2} for frame in WHOLE[3:]]
    world.run.fields["fence"] = "2"
    queued = {"type": "response.queued", "response_id": RESPONSE, "reason": "takeover"}
    world.play(queued, client=world.history.connect())
    world.play({**resume, "after_sequence_number": 3}, *rest)
    assert "I2 replayed under fence 2, asked for under another" in world.finds()
    world.play(queued, client=world.history.connect())
    assert "I2" not in world.finds()
    world.history.forget()


def test_nobody_may_have_been_there_to_hear_of_a_takeover(world: World) -> None:
    resume = {"type": "response.resume", "response_id": RESPONSE, "fence": 1}
    rest = [{**frame, "fence": 2} for frame in WHOLE[3:]]
    world.run.fields["fence"] = "2"
    world.play({**resume, "after_sequence_number": 3}, *rest)
    assert "I2" not in world.finds()
    world.history.forget()


def test_a_client_that_had_everything_is_sent_the_end_alone(world: World) -> None:
    resume = {"type": "response.resume", "response_id": RESPONSE, "fence": 1}
    world.play({**resume, "after_sequence_number": 5}, done())
    world.history.check()
    world.play({**resume, "after_sequence_number": 3}, done(), client=world.history.connect())
    assert "I1" in world.finds()


def test_a_client_that_is_ahead_of_a_dead_owners_log_is_given_a_snapshot(world: World) -> None:
    world.run.fields["fence"] = "2"
    later: dict[str, Any] = {"fence": 2}
    world.play(CREATE, created(), delta(2), delta(3), snapshot(2, **later), delta(3, **later))
    world.play(delta(4, **later), delta(5, **later), done(**later))
    world.history.check()


def test_a_message_that_ends_before_the_end_that_is_stored_is_found(world: World) -> None:
    subscribed = {"type": "session.subscribed", "session_id": SESSION, "recovered": False}
    ended = {**message("msg_2", TEXT), "response_id": RESPONSE}
    updated = {"type": "message.updated", "session_id": SESSION, "offset": 2, "message": ended}
    unstored = done(**UNSTORED)
    world.play({**subscribed, "offset": 1, "epoch": "e"}, CREATE, *WHOLE[:-1], unstored, updated)
    assert "O1 message.updated before the response.done" in world.finds()


def test_a_hole_in_the_session_events_is_found(world: World) -> None:
    subscribed = {"type": "session.subscribed", "session_id": SESSION, "recovered": False}
    updated = {"type": "message.updated", "session_id": SESSION, "message": {}}
    world.play({**subscribed, "offset": 1, "epoch": "e"}, {**updated, "offset": 3})
    assert "I2 session event 3 after 1" in world.finds()


def test_a_message_that_ends_before_its_answer_is_found(world: World) -> None:
    subscribed = {"type": "session.subscribed", "session_id": SESSION, "recovered": False}
    ended = {**message("msg_2", TEXT), "response_id": RESPONSE}
    updated = {"type": "message.updated", "session_id": SESSION, "offset": 2, "message": ended}
    world.play({**subscribed, "offset": 1, "epoch": "e"}, CREATE, *WHOLE[:-1], updated, done())
    assert "O1 message.updated before the response.done" in world.finds()


def test_an_end_of_another_owner_may_lie_before_the_end_of_what_was_shown(world: World) -> None:
    """Who stopped it is sent no text any more, so this end brings it."""
    end = done(4, status="cancelled", fence=2, text=TEXT[:14])
    world.run.fields |= {"fence": "2", "sequence_number": "4", "status": "cancelled"}
    world.run.fields |= {"text_length": "14", "num_tokens": "2", "reason": "client_cancelled"}
    world.run.events[3:] = [(4, {"type": "response.done"})]
    world.run.num_token_ids = 2
    world.session.messages["msg_2"] |= message("msg_2", TEXT[:14], status="interrupted")
    world.session.messages["msg_2"] |= {"parent_id": "msg_1", "response_id": RESPONSE}
    world.play(CREATE, *WHOLE[:-1], STOP, cancelling(), end)
    world.history.check()
