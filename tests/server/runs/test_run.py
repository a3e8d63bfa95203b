"""`Run`: numbers, the gate that a stop closes, its states, what is kept, and how it ends."""

from itertools import pairwise, product
from typing import get_args

import pytest

from engine.outputs import FinishReason
from server.protocol.server_frames import InProgressEntry
from server.runs.run import Run, Timeline
from server.runs.state import FINISH_TO_STATUS, MOVES, IllegalMove, RunState, pauses_queue
from server.runs.stop import Stop
from sessions.model.events import ObjectEvent, TextEvent
from sessions.model.records import Message

RESPONSE = {
    "id": "resp_" + "A" * 33,
    "session_id": "ses_" + "A" * 22,
    "message_id": "msg_" + "A" * 22,
    "parent_id": "msg_" + "B" * 22,
    "model": "tiny",
    "settings": {"seed": 1},
    "status": "queued",
    "created_at": 1,
}
BEGINNING = InProgressEntry(
    response_id="resp_" + "A" * 33,
    omitted_messages=0,
    prompt_tokens=1,
    cached_tokens=0,
    queue_ms=0,
)


@pytest.fixture
def run() -> Run:
    message = Message("msg_1", None, "assistant", "", "in_progress", 1)
    created = ObjectEvent({"type": "response.created"})
    return Run(RESPONSE, message, uid="alice", fence=1, created=created)


def test_events_are_numbered_from_response_created_on(run: Run) -> None:
    assert run.sequence_number == 1
    numbers: list[int] = []
    run.on_change = lambda: numbers.append(run.sequence_number)
    run.add_object(BEGINNING)
    run.add_text("one ", [1])
    assert numbers == [2, 3]


def test_offsets_count_utf16_units(run: Run) -> None:
    offsets = [event and event.text_offset for event in map(add(run), ("a", "😀", "é", "b"))]
    assert offsets == [0, 1, 3, 4]
    assert run.text_length == 5
    assert run.text() == "a😀éb"


def add(run: Run):  # type: ignore[no-untyped-def]
    return lambda text: run.add_text(text, [1])


def test_tokens_without_text_are_counted_and_not_numbered(run: Run) -> None:
    assert run.add_text("", [1, 2]) is None
    assert (run.sequence_number, run.token_ids) == (1, [1, 2])


def test_nothing_is_added_after_a_stop(run: Run) -> None:
    run.add_text("kept", [1])
    assert run.stop(Stop())
    assert run.add_text("late", [2, 3]) is None
    assert run.text() == "kept"
    assert (run.token_ids, run.num_discarded) == ([1], 2)
    assert run.stop_asked.is_set()


def test_the_first_stop_counts(run: Run) -> None:
    assert run.stop(Stop(seen=3))
    assert not run.stop(Stop("admin", "admin_cancelled", seen=9))
    assert run.stopping is not None
    assert (run.stopping.by, run.stopping.seen) == ("user", 3)


def test_a_stop_after_the_end_changes_nothing(run: Run) -> None:
    run.begin_end()
    assert not run.stop(Stop())
    assert run.stopping is None


def test_a_stop_lets_a_waiting_answer_go_on_to_its_end(run: Run) -> None:
    run.stop(Stop())
    assert run.promoted.is_set()


def test_a_lost_run_says_nothing_more(run: Run) -> None:
    run.lose()
    assert run.add_text("late", [1]) is None


def way_to(state: RunState) -> list[RunState]:
    """The shortest way from the beginning of an answer to this state."""
    ways = [[RunState.RUNNING]]
    for way in ways:
        if way[-1] is state:
            return way
        ways += [[*way, after] for after in RunState if after in MOVES[way[-1]]]
    raise AssertionError(f"nothing leads to {state}")


@pytest.mark.parametrize(("before", "after"), list(product(RunState, RunState)))
def test_an_answer_comes_from_one_state_into_another_as_the_table_says(
    run: Run, before: RunState, after: RunState
) -> None:
    for _, step in pairwise(way_to(before)):
        run._move(step)
    if after in MOVES[before]:
        run._move(after)
        assert run.state is after
    else:
        with pytest.raises(IllegalMove, match=f"from {before.value} to {after.value}"):
            run._move(after)
        assert run.state is before


# What each method makes of each state; None: a bug that is refused.
R, S, L, E = RunState.RUNNING, RunState.STOPPING, RunState.LEAVING, RunState.ENDING
GONE, LOST, ENDED = RunState.DELETED, RunState.LOST, RunState.ENDED
D, H = RunState.DISOWNED, RunState.HANDED_OVER
BEFORE = (R, S, L, E, GONE, LOST, ENDED, D, H)
AFTER = {
    "stop": (S, S, L, E, GONE, LOST, ENDED, D, H),
    "leave": (L, S, L, E, GONE, LOST, ENDED, D, H),
    "delete": (GONE, GONE, L, GONE, GONE, GONE, ENDED, D, H),
    "begin_end": (E, E, None, None, GONE, LOST, None, None, None),
    "take_pending_stop": (E, None, None, E, GONE, LOST, None, None, None),
    "settle": (None, None, None, ENDED, ENDED, ENDED, None, None, None),
    "lose": (LOST, LOST, H, LOST, GONE, LOST, None, None, H),
    "hand_over": (None, None, H, None, None, None, None, None, H),
    "disown": (D, D, H, D, D, D, D, D, H),
}


@pytest.mark.parametrize("method", AFTER)
@pytest.mark.parametrize("place", range(len(BEFORE)), ids=[state.value for state in BEFORE])
def test_each_wish_moves_an_answer_or_leaves_it_or_is_refused(
    run: Run, method: str, place: int
) -> None:
    before, after = BEFORE[place], AFTER[method][place]
    for _, step in pairwise(way_to(before)):
        run._move(step)
    wish = getattr(run, method)
    arguments = [Stop()] if method in ("stop", "leave", "take_pending_stop") else []
    if after is None:
        with pytest.raises(IllegalMove):
            wish(*arguments)
        assert run.state is before
        return
    assert wish(*arguments) in (None, after is not before)
    assert run.state is after


def test_what_a_newer_version_has_stored_of_an_answer_stays_in_its_end() -> None:
    response = {**RESPONSE, "effort": "low", "settings": {"seed": 1, "verbosity": 3}}
    message = Message("msg_1", None, "assistant", "", "in_progress", 1)
    created = ObjectEvent({"type": "response.created"})
    run = Run(response, message, uid="alice", fence=1, created=created)
    done = run.done_entry(run.end("stop", None, "released"), 0).wire()["response"]
    assert (done["effort"], done["settings"]) == ("low", {"seed": 1, "verbosity": 3})
    assert (done["status"], done["text_length"]) == ("completed", 0)


def test_an_answer_that_is_left_to_another_worker_is_handed_over_however_that_goes(
    run: Run,
) -> None:
    assert run.leave(Stop("policy", "server_shutdown"))
    assert run.is_given_up and run.is_here  # its lease is still this worker's
    run.lose()
    assert run.state is RunState.HANDED_OVER
    run.hand_over()
    assert run.is_given_up and not run.is_here


def test_the_end_of_a_lost_answer_is_tried_all_the_same_and_is_another_workers(run: Run) -> None:
    run.lose()
    run.begin_end()
    assert run.state is RunState.LOST
    assert run.is_elsewhere
    run.disown()
    assert run.is_disowned


def test_those_who_wait_for_a_stored_stop_hear_of_it_once_at_that_moment(run: Run) -> None:
    heard: list[str] = []
    run.when_stop_is_stored(lambda: heard.append("before"))
    assert heard == []
    run.mark_stop_stored()
    run.when_stop_is_stored(lambda: heard.append("after"))
    run.mark_stop_stored()
    assert heard == ["before", "after"]


@pytest.mark.parametrize(
    ("seen", "kept"),
    [
        (None, "one two three "),
        (0, ""),
        (1, ""),
        (2, "one "),
        (3, "one two "),
        (99, "one two three "),
    ],
)
def test_the_text_is_cut_at_what_was_seen_unless_that_is_beyond_the_log(
    run: Run, seen: int | None, kept: str
) -> None:
    for part in ("one ", "two ", "three "):
        run.add_text(part, [1])
    run.stop(Stop(seen=seen))
    assert run.final_text() == kept


def test_nothing_is_cut_of_an_answer_that_a_door_has_sent(run: Run) -> None:
    run.is_brought = True
    run.add_text("one ", [1])
    run.add_text("two ", [2])
    run.stop(Stop(seen=2))
    assert run.final_text() == "one two "


def test_thoughts_are_cut_there_too_and_count_for_no_text(run: Run) -> None:
    assert run.add_reasoning("é😀", [1]) is not None
    second = run.add_reasoning("b", [2])
    assert second is not None and second.data["text_offset"] == 3
    text = run.add_text("one", [3])
    assert text is not None and text.text_offset == 0
    run.stop(Stop(seen=2))
    assert run.add_reasoning("late", [4]) is None
    assert (run.final_reasoning(), run.final_text(), run.num_discarded) == ("é😀", "", 1)


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "status", "reason"),
    [
        ("stop", None, "completed", "eos"),
        ("stop", 151645, "completed", "eos"),
        ("stop", "END", "completed", "stop"),
        ("length", None, "incomplete", "max_output_tokens"),
        ("repetition", "repetition_detected", "incomplete", "repetition"),
        ("error", None, "failed", "engine_error"),
        ("abort", None, "failed", "engine_error"),
    ],
)
def test_how_the_engine_ended_is_how_the_answer_ends(
    run: Run, finish_reason: str, stop_reason: object, status: str, reason: str
) -> None:
    end = run.end(finish_reason, stop_reason, "released")
    assert (end.status, end.reason, end.by) == (status, reason, None)


@pytest.mark.parametrize(
    ("is_valid", "stop_reason", "reason"),
    [(True, None, "tool_calls"), (True, "END", "stop"), (False, None, "eos")],
)
def test_an_answer_that_ends_with_a_call_waits_for_its_tool(
    run: Run, is_valid: bool, stop_reason: str | None, reason: str
) -> None:
    assert run.take_tokens([1])
    run.add_call_entries([run.calls.begin("clock"), *run.calls.end(0, is_valid=is_valid)])
    end = run.end("stop", stop_reason, "released")
    assert (end.status, end.reason) == ("completed", reason)
    assert pauses_queue(end) is (reason == "tool_calls")
    assert [call["status"] for call in run.final_calls() or ()] == [
        "completed" if is_valid else "failed"
    ]
    run.stop(Stop(seen=2))
    assert not run.take_tokens([2]) and run.num_discarded == 1
    assert [call["status"] for call in run.final_calls() or ()] == ["incomplete"]


def test_every_end_of_the_engine_is_an_end_of_the_answer() -> None:
    assert FINISH_TO_STATUS.keys() == set(get_args(FinishReason))


@pytest.mark.parametrize("finish_reason", get_args(FinishReason))
def test_a_stop_wins_against_every_end(run: Run, finish_reason: str) -> None:
    run.stop(Stop())
    end = run.end(finish_reason, None, "unknown")
    assert (end.status, end.reason, end.by) == ("cancelled", "client_cancelled", "user")
    assert end.engine == "unknown"


def test_a_shutdown_is_no_cancellation(run: Run) -> None:
    run.stop(Stop("policy", "server_shutdown"))
    assert run.end("abort", None, "released").status == "incomplete"


def test_response_done_carries_the_response_and_what_it_cost(run: Run) -> None:
    run.num_prompt_tokens, run.num_cached_tokens = 14, 8
    run.add_text("hi", [1, 2])
    run.stop(Stop())
    done = run.done_entry(run.end("abort", None, "released"), 2).wire()
    response = done["response"]
    assert (done["type"], done["engine"], done["durable"]) == ("response.done", "released", True)
    assert response["id"] == RESPONSE["id"]
    assert response["status_details"] == {"reason": "client_cancelled", "by": "user"}
    assert response["usage"] == {"input_tokens": 14, "cached_tokens": 8, "output_tokens": 2}
    assert response["text_length"] == 2


def test_timings_are_sent_as_far_as_they_are_known() -> None:
    timeline = Timeline(created=10.0, done=12.0)
    assert timeline.wire(0) == {"total_ms": 2000}
    timeline.scheduled, timeline.first_token, timeline.last_token = 10.1, 10.5, 11.5
    assert timeline.wire(11) == {
        "total_ms": 2000,
        "queue_ms": 100,
        "ttft_ms": 500,
        "tokens_per_s": 10.0,
    }


def test_the_rate_counts_from_the_engines_first_token_where_outputs_come_in_a_bunch() -> None:
    timeline = Timeline(created=10.0, done=12.0)
    timeline.first_token, timeline.last_token = 10.999, 11.0
    timeline.first_decoded = 10.5
    assert timeline.wire(11)["tokens_per_s"] == 20.0
    assert timeline.wire(11)["ttft_ms"] == 999


def test_an_answer_counts_the_engines_and_workers_that_ended_under_it(run: Run) -> None:
    assert "restarts" not in run.done_entry(run.end("stop", None, "released"), 0).wire()["response"]
    run.fence, run.num_resubmits = 3, 2
    done = run.done_entry(run.end("stop", None, "released"), 0).wire()
    assert done["response"]["restarts"] == run.num_restarts == 4


def test_a_message_keeps_what_it_was_made_with_and_the_tokens_of_all_its_runs() -> None:
    usage = {"input_tokens": 9, "cached_tokens": 1, "output_tokens": 30}
    message = Message("msg_1", None, "assistant", "a", "in_progress", 1, usage=usage)
    settings = {"seed": 1, "temperature": 0.5, "system": "Be brief."}
    created = ObjectEvent({"type": "response.created"})
    run = Run(
        RESPONSE | {"settings": settings}, message, uid="alice", fence=1, created=created, base="a"
    )
    run.add_text("b", [1, 2])
    assert run.message_settings() == {"seed": 1, "temperature": 0.5}
    assert run.usage()["output_tokens"] == 2
    assert run.message_usage()["output_tokens"] == 32


def test_the_log_is_text_events_at_their_offsets(run: Run) -> None:
    run.add_text("a", [1])
    run.add_object(BEGINNING)
    run.add_text("b", [2])
    texts = [event for event in run.events if isinstance(event, TextEvent)]
    assert texts == [TextEvent(0, "a"), TextEvent(1, "b")]
    assert run.text(until=3) == "a"


def test_who_hears_of_what_is_stored_hears_no_more_when_it_is_done(run: Run) -> None:
    heard: list[str] = []
    with run.telling(lambda: heard.append("a")):
        with run.telling(lambda: heard.append("b")):
            run.tell_stored()
        run.tell_stored()
    run.tell_stored()
    assert heard == ["a", "b", "a"]
