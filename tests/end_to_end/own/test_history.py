"""The history checker finds what is planted, and nothing in a history that is whole."""

import pytest

from tests.end_to_end.oracle import history as history_module
from tests.end_to_end.oracle.history import OWNERS, EngineCounts, HistoryViolated
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
    stored_session,
)
from tests.end_to_end.oracle.stored_state import StoredSession
from tests.helpers import running_time as running_time_module
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(running_time_module, "_watches", list)  # limits of 0 s are exact ones here


def test_nothing_is_found_in_a_whole_history(world: World) -> None:
    world.play(CREATE, *WHOLE)
    world.history.check()


def test_a_check_raises_with_the_frames_around_what_it_found(world: World) -> None:
    world.play(CREATE, created(), delta(2), delta(4))
    with pytest.raises(HistoryViolated, match="I2 event 4: at 2") as raised:
        world.history.check()
    assert "> " in str(raised.value) and oracle_word(8) in str(raised.value)


def test_two_ends_of_one_response_are_found(world: World) -> None:
    world.play(CREATE, *WHOLE)
    world.play(*WHOLE[:5], done(status="cancelled"), client=world.history.connect())
    assert "G3" in world.finds()


def play_a_stop_that_came_first(world: World) -> None:
    """Another worker stored a stop and promised it, while the owner sent another end."""
    world.play(CREATE, *WHOLE[:5], done(**UNSTORED))
    other = world.history.connect()
    end = done(status="cancelled")
    world.play(*WHOLE[:5], STOP, cancelling(), end, client=other)


def test_an_end_that_was_sent_and_never_corrected_is_found() -> None:
    world = World("cancelled")
    play_a_stop_that_came_first(world)
    assert "G3 connection 1" in world.finds()
    assert "connection 2" not in world.finds()
    with pytest.raises(HistoryViolated, match="not stored, and no other end was sent"):
        world.history.check()


def test_an_end_that_is_sent_again_as_it_is_stored_counts() -> None:
    world = World("cancelled")
    play_a_stop_that_came_first(world)
    world.play(done(status="cancelled"))
    world.history.check()


def test_who_went_before_an_end_was_stored_was_promised_nothing() -> None:
    world = World("cancelled")
    play_a_stop_that_came_first(world)
    world.client.closed(1006)
    world.history.check()


def test_a_promised_stop_that_is_stored_as_another_end_is_found(world: World) -> None:
    world.play(CREATE, *WHOLE[:5], STOP, cancelling())
    assert f"G2 {RESPONSE} was to be cancelled, and is stored as completed" in world.finds()


def test_an_end_that_is_stored_neither_so_nor_otherwise_is_found(world: World) -> None:
    """Of an answer that still runs, or should, for everybody."""
    world.run.fields["status"] = "in_progress"
    world.play(CREATE, *WHOLE[:5], done(**UNSTORED))
    assert "G3 connection 1" in world.finds()


@pytest.mark.parametrize("field", ["status", "sequence_number", "text_length", "reason"])
def test_a_sent_end_that_is_not_the_stored_one_is_found(world: World, field: str) -> None:
    world.play(CREATE, *WHOLE)
    world.run.fields[field] = {"status": "failed", "reason": "stop"}.get(field, "5")
    assert "I3 connection 1" in world.finds()


def test_a_second_response_for_one_key_is_found(world: World) -> None:
    second = created()
    second["response"] = {**second["response"], "id": RESPONSE[:-1] + "x"}
    world.play(CREATE, created(), second)
    assert "I5 key k" in world.finds()


def test_an_engine_that_is_not_at_rest_is_found(world: World) -> None:
    world.play(CREATE, *WHOLE)
    counts = EngineCounts(0, 0, 10, 10, requests_total=1)
    world.history.engines.append(lambda: counts)
    world.history.check()
    world.play(CREATE, *WHOLE)
    counts.running = 1
    assert "I6 no answer is live" in world.finds()
    counts.running, counts.blocks_free = 0, 9
    assert "I6 not all blocks came back" in world.finds()
    counts.blocks_free, counts.requests_total = 10, 2
    assert "I5 the core took 2 requests" in world.finds()


def test_a_cancelled_answer_that_nobody_stopped_is_found() -> None:
    world = World("cancelled")
    world.history.are_stops_recorded = True
    world.play(CREATE, *WHOLE[:5], done(status="cancelled"))
    assert "G9" in world.finds()
    world.play(STOP)
    assert "G9" not in world.finds()


def test_silence_after_a_fault_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "HEARD_SECONDS", 0.0)
    world.play(CREATE, created(), delta(2))
    world.history.fault("kill")
    assert "I11 connection 1 heard nothing" in world.finds()


def test_a_client_that_knows_what_is_away_need_not_hear_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "HEARD_SECONDS", 0.0)
    world.play(CREATE, created(), delta(2), {"type": "connection.degraded", "engine": "stalled"})
    world.history.fault("kill")
    assert "I11" not in world.finds()
    world.play({"type": "connection.restored", "engine": "ok"})
    world.history.fault("kill")
    assert "I11" in world.finds()


def test_of_a_deleted_session_nobody_knows_how_often_an_answer_was_begun(world: World) -> None:
    world.play(CREATE, *WHOLE)
    counts = EngineCounts(0, 0, 10, 10, float(OWNERS))
    world.history.engines.append(lambda: counts)
    assert "I5 the core took 3 requests for 1" in world.finds()
    world.stored.sessions[SESSION] = StoredSession(fields={})
    assert "I5" not in world.finds()
    counts.requests_total += 1
    assert "I5 the core took 4 requests for 3" in world.finds()


def test_what_was_asked_of_a_session_is_known_after_a_check_that_was_forgotten(
    world: World,
) -> None:
    world.play(CREATE, *WHOLE[:1])
    world.play(created(fence=3), client=world.history.connect())
    world.history.forget()
    counts = EngineCounts(0, 0, 10, 10, float(OWNERS))
    world.history.engines.append(lambda: counts)
    assert "I5" not in world.finds()


def test_what_was_thrown_away_on_purpose_may_be_missing_and_no_more(world: World) -> None:
    world.play(CREATE, *WHOLE)
    del world.stored.sessions[SESSION]
    assert f"I4 session {SESSION} is gone" in world.finds()
    with world.history.flushing() as note:
        note(world.stored)
    assert "I4" not in world.finds()
    world.stored.sessions[SESSION] = stored_session()
    assert f"I4 session {SESSION} was thrown away, and is there again" in world.finds()


def test_a_connection_that_outlives_its_token_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "REVOKED_SECONDS", 0.0)
    world.client.credential = "a"
    world.play(CREATE, *WHOLE[:3])
    world.history.revoke("a")
    assert "P8" not in world.finds()
    world.play(*WHOLE[3:])
    assert "P8 connection 1 goes on with a revoked token" in world.finds()


def test_the_reference_is_what_the_model_says() -> None:
    assert oracle_answer(5, 4) == TEXT
