"""Runs: appended to under a fence, stopped for certain, ended by one, taken over."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import ResponseError

from sessions.model.codec import MAX_COUNT
from sessions.model.errors import (
    CancelPending,
    ResponseNotFound,
    RunEnded,
    RunGone,
    RunLive,
    RunLost,
    SequenceGap,
    SessionLocked,
)
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.ids import new_response_id, new_session_id
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import DONE, Chat, assistant_message


async def add_uncounted(chat: Chat, rid: str, number: int) -> None:
    """An entry of a script that failed before it could count it."""
    log = chat.store.keys.events(chat.session_id, rid)
    await chat.store.client.call("XADD", log, f"{number}-0", "d", "{}")


# ---- append --------------------------------------------------------------------------------------


async def test_append_stores_numbers_text_and_token_ids(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    events: list[Event] = [
        ObjectEvent({"type": "response.in_progress"}),
        TextEvent(0, "Zwölf"),
        TextEvent(5, " 🙂"),
    ]
    reply = await chat.store.runs.append(
        rid, fence=1, first=2, events=events, token_ids=[1, 70_000], text_length=8,
        status="in_progress", fields={"prompt_from": "msg_x", "prompt_tokens": 9},
    )  # fmt: skip
    assert not reply.cancel and not reply.repeated
    assert await chat.store.runs.events(rid, after=1) == list(enumerate(events, 2))
    assert await chat.store.runs.token_ids(rid) == [1, 70_000]
    run = await chat.store.runs.get("alice", rid)
    assert (run.status, run.sequence_number, run.text_length, run.num_tokens) == (
        "in_progress", 4, 8, 2,
    )  # fmt: skip
    assert (run.prompt_from, run.extra) == ("msg_x", {"prompt_tokens": "9"})
    assert run.started_at is not None and run.first_token_at is not None


async def test_reasoning_keeps_its_kind_in_the_log(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    thought = TextEvent(0, "hm", reasoning=True)
    await chat.store.runs.append(rid, fence=1, first=2, events=[thought])
    assert await chat.store.runs.events(rid, after=1) == [(2, thought)]


async def test_an_empty_append_renews_the_lease_alone(chat: Chat) -> None:
    begun = await chat.begin()
    reply = await chat.append(begun.response_id, 0, lease_seconds=60)
    assert reply.lease_until > begun.lease_until
    run = await chat.store.runs.get(None, begun.response_id)
    assert (run.lease_until, run.sequence_number) == (reply.lease_until, 1)


async def test_append_under_another_fence_is_lost(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    with pytest.raises(RunLost) as caught:
        await chat.append(rid, 2, "x", fence=2)
    assert (caught.value.fence, caught.value.owner) == (1, "w1")


async def test_append_after_the_end_stores_nothing(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.finish(rid, 2, status="cancelled", reason="client_cancelled")
    with pytest.raises(RunEnded) as caught:
        await chat.append(rid, 3, "late")
    assert (caught.value.status, caught.value.sequence_number) == ("cancelled", 2)
    assert [number for number, _ in await chat.store.runs.events(rid)] == [1, 2]
    with pytest.raises(RunEnded):
        await chat.append(rid, 3)  # nor does a renewal bring it back


async def test_append_to_an_unknown_run_creates_nothing(chat: Chat) -> None:
    before = await chat.keys()
    for rid in (new_response_id(chat.session_id), "resp_x"):
        with pytest.raises(RunGone):
            await chat.append(rid, 2, "x")
    assert await chat.keys() == before


async def test_a_hole_in_the_numbers_is_refused_with_the_end_of_the_log(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    with pytest.raises(SequenceGap) as caught:
        await chat.append(rid, 3, "x")
    assert caught.value.sequence_number == 1


async def test_a_repeated_append_counts_as_stored_and_stores_nothing_twice(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "a", "b")
    again = await chat.append(rid, 2, "a", "b")
    assert again.repeated
    assert len(await chat.store.runs.events(rid)) == 3
    assert await chat.store.runs.token_ids(rid) == [0, 1]


async def test_a_longer_repeat_learns_how_far_the_first_try_went(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "a", "b")
    with pytest.raises(SequenceGap) as caught:
        await chat.append(rid, 2, "a", "b", "c")
    assert caught.value.sequence_number == 3


async def test_append_says_when_a_stop_was_stored(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    assert not (await chat.append(rid, 2, "a")).cancel
    await chat.store.runs.request_cancel("alice", rid)
    assert (await chat.append(rid, 3, "b")).cancel
    assert (await chat.append(rid, 0)).cancel


async def test_fields_that_scripts_manage_cannot_be_set(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    for name in ("fence", "status", "owner", "cancel", "sequence_number"):
        with pytest.raises(ValueError):
            await chat.append(rid, 0, fields={name: 1})


async def test_token_ids_without_an_event_are_refused(chat: Chat) -> None:
    """A repeat could not be distinguished from more of them."""
    rid = (await chat.begin()).response_id
    with pytest.raises(ValueError):
        await chat.store.runs.append(rid, fence=1, first=2, events=[], token_ids=[1])


# ---- request_cancel ------------------------------------------------------------------------------


async def test_a_stop_is_stored_once_and_the_first_words_stay(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    first = await chat.store.runs.request_cancel("alice", rid, seen=41)
    again = await chat.store.runs.request_cancel(None, rid, by="admin", reason="x", seen=9)
    assert (first.first, again.first) == (True, False)
    assert (first.owner, first.fence, first.status) == ("w1", 1, "queued")
    run = await chat.store.runs.get(None, rid)
    assert (run.cancel, run.cancel_by, run.cancel_reason) == (True, "user", "client_cancelled")
    assert run.seen_sequence_number == 41
    assert run.cancel_at == first.cancel_at == again.cancel_at


async def test_a_stop_of_an_ended_run_tells_its_end(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.finish(rid, 2, text_length=12)
    with pytest.raises(RunEnded) as caught:
        await chat.store.runs.request_cancel("alice", rid)
    end = caught.value
    assert (end.status, end.reason, end.engine) == ("completed", "eos", "released")
    assert (end.sequence_number, end.text_length, end.fence) == (2, 12, 1)


async def test_a_stop_of_an_unknown_or_foreign_run_finds_nothing(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    for uid, unknown in (
        ("bob", rid),
        ("alice", new_response_id(chat.session_id)),
        ("alice", new_response_id(new_session_id())),
        ("alice", "resp_"),
    ):
        with pytest.raises(ResponseNotFound):
            await chat.store.runs.request_cancel(uid, unknown)
        with pytest.raises(ResponseNotFound):
            await chat.store.runs.get(uid, unknown)
    assert not (await chat.store.runs.get(None, rid)).cancel


# ---- finish --------------------------------------------------------------------------------------


async def test_finish_stores_text_usage_and_the_last_entry(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "hel", "lo")
    message = assistant_message(rid, "hello", id=chat.messages[rid].id, status="completed")
    finished = await chat.finish(
        rid, 4, message=message, text_length=5, events=[TextEvent(5, "!"), DONE], token_ids=[9]
    )
    assert (finished.offset, finished.sequence_number) == (4, 5)
    assert finished.next_response_id is None and not finished.repeated
    run = await chat.store.runs.get("alice", rid)
    assert (run.status, run.reason, run.engine, run.text_length) == (
        "completed", "eos", "released", 5,
    )  # fmt: skip
    assert run.done_at is not None and run.num_tokens == 3
    assert (await chat.store.runs.events(rid))[-1] == (5, DONE)
    assert await chat.store.runs.token_ids(rid) == [0, 1, 9]
    session = await chat.store.sessions.get("alice", chat.session_id)
    assert (session.input_tokens, session.output_tokens) == (3, 5)
    assert session.active_response_id is None
    assert (await chat.store.messages.get("alice", chat.session_id, message.id)).text == "hello"


async def test_finish_logs_message_updated(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.finish(rid, 2)
    events = await chat.store.sessions.events(chat.session_id, after=3)
    assert events is not None
    assert [event.data["type"] for event in events] == ["message.updated"]
    assert events[0].data["message"]["response_id"] == rid


async def test_a_stored_stop_allows_no_other_end(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "a", "b")
    await chat.store.runs.request_cancel("alice", rid, by="admin", reason="admin_cancelled", seen=2)
    for status in ("completed", "incomplete", "failed"):
        with pytest.raises(CancelPending) as caught:
            await chat.finish(rid, 4, status=status)
    pending = caught.value
    assert (pending.seen, pending.by, pending.reason) == (2, "admin", "admin_cancelled")
    await chat.finish(rid, 4, status="cancelled", reason="admin_cancelled", seen=2)
    assert (await chat.store.runs.get(None, rid)).status == "cancelled"


@pytest.mark.row("C20")
@pytest.mark.parametrize(
    ("reason", "seen"),
    [("client_cancelled", None), ("client_cancelled", 3), ("superseded", 2)],
)
async def test_a_stored_stop_is_the_one_that_the_answer_ends_with(
    chat: Chat, reason: str, seen: int | None
) -> None:
    """Its asker was promised so; the owner may have heard of another one before."""
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "a", "b")
    await chat.store.runs.request_cancel("alice", rid, seen=2)
    assert not (await chat.store.runs.request_cancel("alice", rid, reason=reason, seen=seen)).first
    with pytest.raises(CancelPending) as caught:
        await chat.finish(rid, 4, status="cancelled", reason=reason, seen=seen)
    pending = caught.value
    assert (pending.seen, pending.reason) == (2, "client_cancelled")
    await chat.finish(rid, 4, status="cancelled", reason=pending.reason, seen=pending.seen)
    assert (await chat.store.runs.get(None, rid)).status == "cancelled"


async def test_finish_has_one_winner(chat: Chat, other_store: SessionStore) -> None:
    rid = (await chat.begin()).response_id
    workers = [chat, chat.on(other_store)]
    ends = ["completed", "cancelled", "failed", "incomplete"] * 5
    replies = await asyncio.gather(
        *(workers[n % 2].finish(rid, 2, status=end) for n, end in enumerate(ends)),
        return_exceptions=True,
    )
    winners = {end for end, reply in zip(ends, replies, strict=True) if not is_error(reply)}
    assert winners == {(await chat.store.runs.get(None, rid)).status}
    assert all(isinstance(reply, RunEnded) for reply in replies if is_error(reply))
    assert len(await chat.store.runs.events(rid)) == 2
    assert (await chat.store.sessions.get("alice", chat.session_id)).output_tokens == 5


def is_error(reply: object) -> bool:
    return isinstance(reply, BaseException)


async def test_a_finish_whose_reply_was_lost_answers_like_the_first_try(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    queued = (await chat.begin(on_busy="queue")).response_id
    first = await chat.finish(rid, 2)
    again = await chat.finish(rid, 2)
    assert again.repeated and not first.repeated
    assert (again.offset, again.sequence_number) == (first.offset, first.sequence_number)
    assert again.next_response_id == first.next_response_id == queued
    with pytest.raises(RunEnded):
        await chat.finish(rid, 2, status="failed")


async def test_finish_promotes_the_next_in_line(chat: Chat) -> None:
    first, second, third = [(await chat.begin(on_busy="queue")).response_id for _ in range(3)]
    assert (await chat.finish(second, 2)).next_response_id is None  # it was not the active one
    assert (await chat.finish(first, 2)).next_response_id == third
    live = await chat.store.responses.live(chat.session_id)
    assert (live.active, live.queued) == (third, ())


async def test_finish_is_refused_for_gap_fence_and_unknown_run(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    with pytest.raises(SequenceGap):
        await chat.finish(rid, 3)
    with pytest.raises(RunLost):
        await chat.finish(rid, 2, fence=2)
    with pytest.raises(RunGone):
        await chat.finish(new_response_id(chat.session_id), 2)
    assert (await chat.store.runs.get(None, rid)).status == "queued"


@pytest.mark.row("S1")
@pytest.mark.parametrize("stored", [2**53 - 1, 2**63 - 1, 2**64])
async def test_a_session_that_can_count_no_further_takes_the_end_of_its_answer(
    chat: Chat, stored: int
) -> None:
    rid = (await chat.begin()).response_id
    session = chat.store.keys.session(chat.session_id, "m")
    await chat.store.client.call("HSET", session, "input_tokens", stored)
    await chat.finish(rid, 2)
    assert (await chat.store.runs.get(None, rid)).status == "completed"
    counted = await chat.store.client.call("HMGET", session, "input_tokens", "output_tokens")
    assert counted == [b"%d" % MAX_COUNT, b"5"]


async def test_what_a_script_wrote_before_it_failed_is_not_in_the_way_of_the_end(
    chat: Chat,
) -> None:
    rid = (await chat.begin()).response_id
    await add_uncounted(chat, rid, 2)
    await chat.finish(rid, 2)
    assert await chat.store.runs.events(rid, after=1) == [(2, DONE)]


async def test_an_end_that_redis_cannot_write_leaves_nothing_behind(chat: Chat) -> None:
    """It is refused as a whole, so that it can be written once the reason is gone."""
    rid = (await chat.begin()).response_id
    keys, call = chat.store.keys, chat.store.client.call
    log = keys.events(chat.session_id, rid)
    ((number, fields),) = await call("XRANGE", log, "-", "+")
    await call("UNLINK", log)
    await call("SET", log, "no stream")
    with pytest.raises(ResponseError):
        await chat.finish(rid, 2, token_ids=[1])
    await call("UNLINK", log)
    await call("XADD", log, number, *fields)
    run = await chat.store.runs.get(None, rid)
    assert (run.status, run.num_tokens) == ("queued", 0)
    assert await call("PTTL", keys.run(chat.session_id, rid)) == -1
    await chat.finish(rid, 2, token_ids=[1])
    assert await chat.store.runs.token_ids(rid) == [1]


async def test_every_gap_says_how_many_tokens_are_stored(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "a", token_ids=range(9))
    for write in (chat.append(rid, 4, "c"), chat.finish(rid, 4)):
        with pytest.raises(SequenceGap) as caught:
            await write
        assert (caught.value.sequence_number, caught.value.num_tokens) == (2, 9)


# ---- reap and the index of runs ------------------------------------------------------------------


async def test_a_run_with_a_lease_cannot_be_taken_over(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    for exited in (None, "w7"):
        with pytest.raises(RunLive) as caught:
            await chat.store.runs.reap(rid, new_owner="w2", exited_owner=exited)
        assert 9_000 < caught.value.ms_left <= 10_000 and caught.value.owner == "w1"


async def test_a_run_whose_lease_ended_is_taken_over_and_the_old_owner_is_fenced_off(
    chat: Chat,
) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "a", lease_seconds=0)
    await chat.store.runs.request_cancel("alice", rid, seen=2)
    reaped = await chat.store.runs.reap(rid, new_owner="w2")
    assert (reaped.fence, reaped.sequence_number, reaped.old_owner) == (2, 2, "w1")
    assert (reaped.cancel, reaped.seen, reaped.status) == (True, 2, "queued")
    with pytest.raises(RunLost) as caught:
        await chat.append(rid, 3, "zombie")
    assert (caught.value.fence, caught.value.owner) == (2, "w2")
    with pytest.raises(RunLost):
        await chat.finish(rid, 3)
    await chat.finish(rid, 3, fence=2, status="cancelled", reason="client_cancelled", seen=2)


async def test_a_run_of_an_exited_owner_is_taken_over_at_once(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    reaped = await chat.store.runs.reap(rid, new_owner="w2", exited_owner="w1")
    assert reaped.fence == 2
    assert (await chat.store.runs.get(None, rid)).owner == "w2"


async def test_what_a_script_wrote_before_it_failed_does_not_keep_the_next_owner_from_the_end(
    chat: Chat,
) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "a", "b")
    counted = await chat.store.runs.events(rid)
    await add_uncounted(chat, rid, 4)
    await add_uncounted(chat, rid, 5)
    await chat.store.runs.reap(rid, new_owner="w2", exited_owner="w1")
    assert await chat.store.runs.events(rid) == counted
    await chat.append(rid, 4, "c", fence=2)
    await chat.finish(rid, 5, fence=2)
    assert [number for number, _ in await chat.store.runs.events(rid)] == [1, 2, 3, 4, 5]


async def test_one_of_many_reapers_wins_and_the_fence_grows_by_one(
    chat: Chat, other_store: SessionStore
) -> None:
    rid = (await chat.begin()).response_id
    await chat.append(rid, 0, lease_seconds=0)
    stores = [chat.store, other_store]
    replies = await asyncio.gather(
        *(stores[n % 2].runs.reap(rid, new_owner=f"w{n + 2}") for n in range(10)),
        return_exceptions=True,
    )
    assert sorted(type(reply).__name__ for reply in replies) == ["Reaped"] + ["RunLive"] * 9
    assert (await chat.store.runs.get(None, rid)).fence == 2


async def test_an_ended_or_unknown_run_is_not_taken_over_and_leaves_the_index(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.finish(rid, 2)
    await chat.store.runs.touch({rid: 1})  # a stale entry
    assert await chat.store.runs.expired() == [rid]
    with pytest.raises(RunEnded):
        await chat.store.runs.reap(rid, new_owner="w2")
    assert await chat.store.runs.expired() == []
    with pytest.raises(RunGone):
        await chat.store.runs.reap(new_response_id(chat.session_id), new_owner="w2")


@pytest.mark.row("R17")
async def test_a_lease_that_ends_far_ahead_counts_as_ended(chat: Chat) -> None:
    """Redis' clock has jumped back; its leases would otherwise hold for as long."""
    rid = (await chat.begin()).response_id
    reply = await chat.append(rid, 0, lease_seconds=3600)
    await chat.store.runs.touch({rid: reply.lease_until})
    assert await chat.store.runs.expired() == [rid]
    assert (await chat.store.runs.reap(rid, new_owner="w2")).fence == 2


async def test_expired_runs_lists_due_ones_alone(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    assert await chat.store.runs.expired() == []
    await chat.store.runs.touch({rid: 1})
    assert await chat.store.runs.expired() == [rid]
    with pytest.raises(RunLive):  # the index was stale: the run decides, and mends the index
        await chat.store.runs.reap(rid, new_owner="w2")
    assert await chat.store.runs.expired() == []


async def test_runs_are_found_by_their_owner(store: SessionStore) -> None:
    chats = [await Chat.create(store) for _ in range(3)]
    runs = [(await chat.begin(owner=f"w{n % 2}")).response_id for n, chat in enumerate(chats)]
    assert sorted(await store.runs.owned_by("w0")) == sorted([runs[0], runs[2]])
    await chats[0].finish(runs[0], 2)
    assert await store.runs.owned_by("w0") == [runs[2]]
    assert await store.runs.owned_by("w9") == []


# ---- words on calls ------------------------------------------------------------------------------


async def test_the_first_word_on_a_call_counts_and_a_repeat_learns_which_that_was(
    chat: Chat,
) -> None:
    runs, rid = chat.store.runs, (await chat.begin(owner="w7")).response_id
    assert await runs.said_of_call(rid, "call_1", "clock__now") == ("", False)
    first = await runs.decide_call("alice", rid, "call_1", "allow")
    assert (first.decision, first.owner) == ("allow", "w7")
    for later in ("allow", "deny", "timeout"):
        assert (await runs.decide_call(None, rid, "call_1", later)).decision == "allow"
    assert await runs.said_of_call(rid, "call_1", "clock__now") == ("allow", False)
    assert await runs.said_of_call(rid, "call_2", "clock__now") == ("", False)


async def test_a_word_may_grant_a_tool_for_the_session(chat: Chat) -> None:
    runs, rid = chat.store.runs, (await chat.begin()).response_id
    await runs.decide_call("alice", rid, "call_1", "allow_session", granted_tool="clock__now")
    assert await runs.said_of_call(rid, "call_2", "clock__now") == ("", True)
    assert await runs.said_of_call(rid, "call_2", "clock__stop") == ("", False)
    other = await Chat.create(chat.store)
    theirs = (await other.begin()).response_id
    assert await runs.said_of_call(theirs, "call_1", "clock__now") == ("", False)


async def test_nobody_else_has_a_word_and_none_comes_after_the_end(chat: Chat) -> None:
    runs, rid = chat.store.runs, (await chat.begin()).response_id
    for uid, response_id in (("bob", rid), ("alice", new_response_id(chat.session_id))):
        with pytest.raises(ResponseNotFound):
            await runs.decide_call(uid, response_id, "call_1", "allow", granted_tool="t")
    assert await runs.said_of_call(rid, "call_1", "t") == ("", False)
    key = chat.store.keys.session(chat.session_id, "m")
    await chat.store.client.call("HSET", key, "locked", "for a reason")
    with pytest.raises(SessionLocked):
        await runs.decide_call("alice", rid, "call_1", "allow")
    assert (await runs.decide_call(None, rid, "call_1", "timeout")).decision == "timeout"
    await chat.store.client.call("HSET", key, "locked", "")
    await chat.finish(rid, 2)
    with pytest.raises(RunEnded):
        await runs.decide_call("alice", rid, "call_2", "allow")
