"""The history checker finds what is planted, and nothing in a history that is whole."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end import history as history_module
from tests.end_to_end.client_model import Frame
from tests.end_to_end.connection_check import Connection
from tests.end_to_end.history import OWNERS, EngineCounts, History, HistoryViolated
from tests.end_to_end.stored_state import Stored, StoredRun, StoredSession
from tests.tiny_model import oracle_answer, oracle_word

SESSION = "ses_" + "s" * 22
RESPONSE = "resp_" + "s" * 22 + "r" * 11
WORDS = [oracle_word(n) for n in (6, 7, 8, 9)]
TEXT = "".join(WORDS)


def created(**changed: Any) -> Frame:
    response = {"id": RESPONSE, "session_id": SESSION, "message_id": "msg_2", "parent_id": "msg_1"}
    frame = {"type": "response.created", "response": response, "idempotency_key": "k"}
    return {**frame, "replayed": False, "sequence_number": 1, "fence": 1, **changed}


def delta(number: int, **changed: Any) -> Frame:
    frame = {"type": "response.output_text.delta", "response_id": RESPONSE, "fence": 1}
    place = {"sequence_number": number, "text_offset": 7 * (number - 2)}
    return {**frame, **place, "delta": WORDS[number - 2], **changed}


def snapshot(number: int, **changed: Any) -> Frame:
    frame = {"type": "response.output_text.snapshot", "response_id": RESPONSE, "fence": 1}
    text = "".join(WORDS[: number - 1])
    return {**frame, "sequence_number": number, "text": text, "part": 1, "parts": 1, **changed}


def done(number: int = 6, *, status: str = "completed", **changed: Any) -> Frame:
    reason = {"completed": "eos", "cancelled": "client_cancelled"}[status]
    response = {"id": RESPONSE, "session_id": SESSION, "message_id": "msg_2", "status": status}
    details = {"status_details": {"reason": reason}, "text_length": 7 * (number - 2)}
    end = {"response": {**response, **details}, "fence": 1, "durable": True}
    return {"type": "response.done", **end, "sequence_number": number, **changed}


def cancelling(*, durable: bool = True) -> Frame:
    return {"type": "response.cancelling", "response_id": RESPONSE, "durable": durable}


CREATE = {"type": "response.create", "session_id": SESSION, "idempotency_key": "k"}
CREATE |= {"input": oracle_word(5)}
STOP = {"type": "stop", "response_id": RESPONSE}
WHOLE = [created(), delta(2), delta(3), delta(4), delta(5), done()]


def message(name: str, text: str, **changed: Any) -> Frame:
    content = [{"type": "text", "text": text}]
    return {"id": name, "parent_id": None, "status": "completed", "content": content, **changed}


def stored_session(*, status: str = "completed") -> StoredSession:
    run = StoredRun(
        fields={
            "status": status,
            "fence": "1",
            "sequence_number": "6",
            "num_tokens": "4",
            "text_length": "28",
            "message_id": "msg_2",
            "parent_id": "msg_1",
            "lease_until": "0",
            "reason": "client_cancelled" if status == "cancelled" else "eos",
        },
        events=[(1, {"type": "response.created"})]
        + [(n, ["t", 7 * (n - 2), WORDS[n - 2]]) for n in (2, 3, 4, 5)]
        + [(6, {"type": "response.done"})],
        num_token_ids=4,
        expiries={"r": 1000, "e": 1000, "tok": 1000},
    )
    is_cut = status == "cancelled"
    answer = message("msg_2", TEXT, parent_id="msg_1", response_id=RESPONSE)
    answer["status"] = "interrupted" if is_cut else "completed"
    session = StoredSession(
        fields={"uid": "u", "offset": "3", "active_response_id": ""},
        messages={"msg_1": message("msg_1", oracle_word(5)), "msg_2": answer},
        tree=[("msg_1", ""), ("msg_2", "msg_1")],
        log=[(1, {}), (2, {}), (3, {})],
        suffixes={"m": -1},
    )
    session.runs[RESPONSE] = run
    return session


class World:
    """One session with one answer of four words, and a client that saw it."""

    def __init__(self, status: str = "completed") -> None:
        self.session = stored_session(status=status)
        self.stored = Stored(
            10_000, {SESSION: self.session}, set(), {SESSION}, {"u": {SESSION}}, []
        )
        self.history = History(lambda: self.stored)
        self.client = self.history.connect()

    @property
    def run(self) -> StoredRun:
        return self.session.runs[RESPONSE]

    def play(self, *frames: Frame, client: Connection | None = None) -> None:
        for frame in frames:
            to = client or self.client
            is_request = frame["type"] in ("stop", "response.create", "response.resume")
            to.sent(frame) if is_request else to.received(frame)

    def finds(self) -> str:
        return "\n".join(self.history.violations())


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "SETTLE_SECONDS", 0.0)


def test_nothing_is_found_in_a_whole_history(world: World) -> None:
    world.play(CREATE, *WHOLE)
    world.history.check()


def test_a_check_raises_with_the_frames_around_what_it_found(world: World) -> None:
    world.play(CREATE, created(), delta(2), delta(4))
    with pytest.raises(HistoryViolated, match="I2 event 4: at 2") as raised:
        world.history.check()
    assert "> " in str(raised.value) and oracle_word(8) in str(raised.value)


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


def test_text_behind_a_stop_is_found_on_the_connection_that_asked_alone(world: World) -> None:
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
    assert "I2 event 3: not begun, asked for behind [3]" in world.finds()
    world.history.forget()


def test_a_takeover_behind_the_log_may_be_news_to_the_client_that_asked_for_it(
    world: World,
) -> None:
    resume = {"type": "response.resume", "response_id": RESPONSE, "fence": 1}
    rest = [{**frame, "fence": 2} for frame in WHOLE[3:]]
    world.run.fields["fence"] = "2"
    world.play({**resume, "after_sequence_number": 3}, *rest)
    assert "I2 replayed under fence 2, asked for under another" in world.finds()
    queued = {"type": "response.queued", "response_id": RESPONSE, "reason": "takeover"}
    world.play(queued, client=world.history.connect())
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


def test_two_ends_of_one_response_are_found(world: World) -> None:
    world.play(CREATE, *WHOLE)
    world.play(*WHOLE[:5], done(status="cancelled"), client=world.history.connect())
    assert "G3" in world.finds()


UNSTORED: Frame = {"durable": False}  # of an end that was told and never stored


def play_a_stop_that_came_first(world: World) -> None:
    """Another worker stored a stop and promised it, while the owner told another end."""
    world.play(CREATE, *WHOLE[:5], done(**UNSTORED))
    other = world.history.connect()
    end = done(status="cancelled")
    world.play(*WHOLE[:5], STOP, cancelling(), end, client=other)


def test_an_end_that_was_told_and_never_corrected_is_found() -> None:
    world = World("cancelled")
    play_a_stop_that_came_first(world)
    assert "G3 connection 1" in world.finds()
    assert "connection 2" not in world.finds()
    with pytest.raises(HistoryViolated, match="not stored, and no other end was told"):
        world.history.check()


def test_an_end_that_is_told_again_as_it_is_stored_counts() -> None:
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


def test_a_message_that_ends_before_the_end_that_is_stored_is_found(world: World) -> None:
    subscribed = {"type": "session.subscribed", "session_id": SESSION, "recovered": False}
    ended = {**message("msg_2", TEXT), "response_id": RESPONSE}
    updated = {"type": "message.updated", "session_id": SESSION, "offset": 2, "message": ended}
    unstored = done(**UNSTORED)
    world.play({**subscribed, "offset": 1, "epoch": "e"}, CREATE, *WHOLE[:-1], unstored, updated)
    assert "O1 message.updated before the response.done" in world.finds()


@pytest.mark.parametrize("field", ["status", "sequence_number", "text_length", "reason"])
def test_a_told_end_that_is_not_the_stored_one_is_found(world: World, field: str) -> None:
    world.play(CREATE, *WHOLE)
    world.run.fields[field] = {"status": "failed", "reason": "stop"}.get(field, "5")
    assert "I3 connection 1" in world.finds()


def test_a_second_response_for_one_key_is_found(world: World) -> None:
    second = created()
    second["response"] = {**second["response"], "id": RESPONSE[:-1] + "x"}
    world.play(CREATE, created(), second)
    assert "I5 key k" in world.finds()


def test_a_hole_in_the_session_events_is_found(world: World) -> None:
    subscribed = {"type": "session.subscribed", "session_id": SESSION, "recovered": False}
    updated = {"type": "message.updated", "session_id": SESSION, "message": {}}
    world.play({**subscribed, "offset": 1, "epoch": "e"}, {**updated, "offset": 3})
    assert "I2 session event 3 behind 1" in world.finds()


def test_a_message_that_ends_before_its_answer_is_found(world: World) -> None:
    subscribed = {"type": "session.subscribed", "session_id": SESSION, "recovered": False}
    ended = {**message("msg_2", TEXT), "response_id": RESPONSE}
    updated = {"type": "message.updated", "session_id": SESSION, "offset": 2, "message": ended}
    world.play({**subscribed, "offset": 1, "epoch": "e"}, CREATE, *WHOLE[:-1], updated, done())
    assert "O1 message.updated before the response.done" in world.finds()


def test_an_end_of_another_owner_may_lie_behind_what_was_shown(world: World) -> None:
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


def lose_a_message(world: World) -> None:
    del world.session.messages["msg_2"]


def change_the_question(world: World) -> None:
    world.session.messages["msg_1"]["content"][0]["text"] = "another"


def cut_the_text(world: World) -> None:
    world.session.messages["msg_2"]["content"][0]["text"] = TEXT[:-7]


def double_a_word_everywhere(world: World) -> None:
    world.run.events[3] = (4, ["t", 14, WORDS[1]])
    world.session.messages["msg_2"]["content"][0]["text"] = "".join(w for _, _, w in texts(world))


def texts(world: World) -> Iterator[Any]:
    return (event for _, event in world.run.events if isinstance(event, list))


def lose_an_entry(world: World) -> None:
    del world.run.events[2]


def end_twice(world: World) -> None:
    world.run.events[4] = (5, {"type": "response.done"})


def stay_live(world: World) -> None:
    world.run.fields["status"] = "in_progress"


def stay_active(world: World) -> None:
    world.session.fields["active_response_id"] = RESPONSE


def stay_in_the_index(world: World) -> None:
    world.stored.live_index.add(RESPONSE)


def never_expire(world: World) -> None:
    world.run.expiries["e"] = -1


def leave_the_index(world: World) -> None:
    world.stored.all_sessions.clear()


def outlive_the_delete(world: World) -> None:
    world.session.fields = {}


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lose_a_message, "I4"),
        (change_the_question, "I4"),
        (cut_the_text, "I1"),
        (double_a_word_everywhere, "the model counts"),
        (lose_an_entry, "I2 log"),
        (end_twice, "I3 completed, with response.done at [5, 6]"),
        (stay_live, "I3 in_progress, with a lease that ended"),
        (stay_active, "I3 live runs"),
        (stay_in_the_index, "I7 in the index"),
        (never_expire, "I7 key e"),
        (leave_the_index, "I7 not among all sessions"),
        (outlive_the_delete, "I7 of the deleted session"),
    ],
)
def test_what_should_not_be_stored_is_found(
    world: World, plant: Callable[[World], None], found: str
) -> None:
    world.play(CREATE, *WHOLE)
    plant(world)
    assert found in world.finds()


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


def test_silence_behind_a_fault_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "TOLD_SECONDS", 0.0)
    world.play(CREATE, created(), delta(2))
    world.history.fault("kill")
    assert "I11 connection 1 heard nothing" in world.finds()


def test_a_client_that_knows_what_is_away_need_not_hear_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "TOLD_SECONDS", 0.0)
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


def test_what_was_asked_of_a_session_is_known_behind_a_check_that_was_forgotten(
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
