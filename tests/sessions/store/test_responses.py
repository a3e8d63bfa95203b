"""Responses: begun once for each key, in line behind another, stopped before they are known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sessions.model.errors import (
    CancelPending,
    IdempotencyKeyReused,
    MessageChanged,
    MessageNotFound,
    QueueFull,
    ResponseInProgress,
    SessionLocked,
    SessionNotFound,
)
from sessions.model.events import ObjectEvent
from sessions.model.ids import new_message_id, new_response_id
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import CREATED, Chat, assistant_message, user_message

# ---- begin ---------------------------------------------------------------------------------------


async def test_begin_stores_both_messages_the_run_and_entry_1(chat: Chat) -> None:
    begun = await chat.begin("hello", model="m", settings={"top_k": 3}, seed=7)
    assert (begun.fence, begun.queued_behind, begun.offset, begun.cancel) == (1, 0, 3, False)
    assert begun.parent_id is None and begun.title_empty
    run = await chat.store.runs.get("alice", begun.response_id)
    assert (run.status, run.owner, run.fence, run.sequence_number) == ("queued", "w1", 1, 1)
    assert (run.model, run.settings, run.seed) == ("m", {"top_k": 3}, 7)
    assert run.lease_until == begun.lease_until == begun.now_ms + 10_000
    assert await chat.store.runs.events(begun.response_id) == [(1, ObjectEvent(CREATED))]
    user, assistant = (await chat.store.messages.path("alice", chat.session_id)).messages
    assert (assistant.id, run.parent_id) == (run.message_id, user.id)
    session = await chat.store.sessions.get("alice", chat.session_id)
    assert (session.head, session.message_count) == (assistant.id, 2)
    assert session.active_response_id == begun.response_id


async def test_the_next_answer_of_a_session_hears_where_the_last_one_was_written(
    chat: Chat, other_store: SessionStore
) -> None:
    first = await chat.begin()
    assert first.place is None
    await chat.finish(first.response_id, 2, place="native-2 village")
    second = await chat.on(other_store).begin()
    assert second.place == "native-2 village"
    await chat.finish(second.response_id, 2)  # by a worker that knows nothing of it
    assert (await chat.begin()).place == "native-2 village"


async def test_begin_logs_both_messages_in_order(chat: Chat) -> None:
    await chat.begin("hello")
    events = await chat.store.sessions.events(chat.session_id, after=1)
    assert events is not None
    assert [(event.offset, event.data["type"]) for event in events] == [
        (2, "message.created"),
        (3, "message.created"),
    ]
    assert [event.data["message"]["role"] for event in events] == ["user", "assistant"]


async def test_a_hundred_identical_begins_on_two_workers_make_one_response(
    chat: Chat, other_store: SessionStore
) -> None:
    workers = [chat, chat.on(other_store)]
    begun = await asyncio.gather(
        *(workers[number % 2].begin(idempotency_key="k1") for number in range(100))
    )
    assert len({reply.response_id for reply in begun}) == 1
    assert sorted(reply.replayed for reply in begun) == [False] + [True] * 99
    assert (await chat.store.sessions.get("alice", chat.session_id)).message_count == 2
    assert await chat.store.runs.owned_by("w1") == [begun[0].response_id]


async def test_the_same_key_with_another_body_is_refused(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1", body_hash="one")
    with pytest.raises(IdempotencyKeyReused) as caught:
        await chat.begin(idempotency_key="k1", body_hash="two")
    assert caught.value.response_id == begun.response_id


async def test_a_begin_whose_reply_was_lost_answers_like_the_first_try(chat: Chat) -> None:
    response_id = new_response_id(chat.session_id)
    same: dict[str, Any] = {"response_id": response_id, "idempotency_key": "k1"}
    first = await chat.begin(**same)
    again = await chat.begin(**same)
    assert not again.replayed
    assert (again.response_id, again.fence, again.offset) == (response_id, 1, first.offset)
    assert (await chat.store.sessions.get("alice", chat.session_id)).message_count == 2


async def test_a_replay_is_answered_before_lock_parent_and_busy_are_looked_at(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1")
    await lock(chat)
    again = await chat.begin(idempotency_key="k1", parent_id=new_message_id())
    assert again.replayed and again.response_id == begun.response_id


async def lock(chat: Chat, reason: str = "evicted") -> None:
    key = chat.store.keys.session(chat.session_id, "m")
    await chat.store.client.call("HSET", key, "locked", reason)


async def test_a_locked_session_begins_nothing(chat: Chat) -> None:
    await lock(chat)
    with pytest.raises(SessionLocked) as caught:
        await chat.begin(parent_id=new_message_id())
    assert caught.value.reason == "evicted"
    assert (await chat.store.sessions.get("alice", chat.session_id)).locked


async def test_an_unknown_parent_is_refused_before_busy_is_looked_at(chat: Chat) -> None:
    await chat.begin()
    for parent_id in (new_message_id(), "msg_{}"):
        with pytest.raises(MessageNotFound):
            await chat.begin(parent_id=parent_id)


async def test_a_busy_session_refuses_or_queues(chat: Chat) -> None:
    active = await chat.begin()
    with pytest.raises(ResponseInProgress) as caught:
        await chat.begin()
    assert caught.value.response_id == active.response_id
    queued = [await chat.begin(on_busy="queue", max_queued=2) for _ in range(2)]
    assert [reply.queued_behind for reply in queued] == [1, 2]
    with pytest.raises(QueueFull):
        await chat.begin(on_busy="queue", max_queued=2)
    live = await chat.store.responses.live(chat.session_id)
    assert live.active == active.response_id
    assert live.queued == tuple(reply.response_id for reply in queued)


async def test_a_refused_begin_leaves_no_trace(chat: Chat) -> None:
    await chat.begin(idempotency_key="k1")
    before = await chat.keys()
    with pytest.raises(ResponseInProgress):
        await chat.begin(idempotency_key="k2")
    assert await chat.keys() == before
    assert len(await chat.store.runs.owned_by("w1")) == 1


async def test_without_a_parent_the_messages_go_after_the_head_of_that_moment(chat: Chat) -> None:
    """The caller's guess is old: a script that took it would fork the conversation."""
    first = await chat.begin("one")
    head = (await chat.store.runs.get(None, first.response_id)).message_id
    await chat.finish(first.response_id, 2)
    second = await chat.begin("two")  # its message says parent None
    assert second.parent_id == head
    messages = (await chat.store.messages.path("alice", chat.session_id)).messages
    assert [message.text for message in messages] == ["one", "", "two", ""]
    assert messages[2].parent_id == head
    run = await chat.store.runs.get(None, second.response_id)
    assert run.parent_id == messages[2].id


async def test_concurrent_begins_that_queue_stand_in_one_line(
    chat: Chat, other_store: SessionStore
) -> None:
    workers = [chat, chat.on(other_store)]
    await asyncio.gather(
        *(workers[n % 2].begin(str(n), on_busy="queue", max_queued=9) for n in range(6))
    )
    messages = (await chat.store.messages.path("alice", chat.session_id)).messages
    assert len(messages) == 12
    assert sorted(message.text for message in messages[::2]) == list("012345")


async def test_a_regenerated_answer_is_a_sibling_and_adds_one_message(chat: Chat) -> None:
    first = await chat.begin("one")
    await chat.finish(first.response_id, 2)
    user = (await chat.store.messages.path("alice", chat.session_id)).messages[0]
    again = await chat.begin(None, parent_id=user.id)
    page = await chat.store.messages.path("alice", chat.session_id)
    assert page.messages[-1].parent_id == user.id
    assert len(page.messages[-1].sibling_ids) == 2
    assert (await chat.store.sessions.get("alice", chat.session_id)).message_count == 3
    assert (await chat.store.runs.get(None, again.response_id)).parent_id == user.id


async def test_a_continued_answer_replaces_its_message_and_is_not_counted_again(
    chat: Chat,
) -> None:
    first = await chat.begin("one")
    message = chat.messages[first.response_id]
    await chat.finish(first.response_id, 2)
    response_id = new_response_id(chat.session_id)
    longer = assistant_message(response_id, "so far", id=message.id, parent_id=message.parent_id)
    _, version = await chat.store.messages.with_version("alice", chat.session_id, message.id)
    await chat.begin(None, response_id=response_id, assistant_message=longer, continues=version)
    assert (await chat.store.sessions.get("alice", chat.session_id)).message_count == 2
    events = await chat.store.sessions.events(chat.session_id, after=4)
    assert events is not None
    assert [event.data["type"] for event in events] == ["message.updated"]
    assert (await chat.store.runs.get(None, response_id)).text_length == 6


@pytest.mark.parametrize("on_busy", ["reject", "queue"])
async def test_an_answer_that_was_changed_since_it_was_read_is_not_continued(
    chat: Chat, on_busy: str
) -> None:
    first = await chat.begin("one")
    message = chat.messages[first.response_id]
    await chat.finish(first.response_id, 2)
    _, version = await chat.store.messages.with_version("alice", chat.session_id, message.id)
    changed: dict[str, Any] = {
        "assistant_message": replace(message, text="so far"),
        "continues": version,
    }
    await chat.begin(None, **changed)
    before = await chat.keys()
    refusal = ResponseInProgress if on_busy == "reject" else MessageChanged
    with pytest.raises(refusal):
        await chat.begin(None, **changed, on_busy=on_busy)
    assert await chat.keys() == before
    assert (await chat.store.responses.live(chat.session_id)).queued == ()


async def test_somebody_elses_session_begins_nothing(chat: Chat) -> None:
    with pytest.raises(SessionNotFound):
        await chat.begin(uid="bob")
    assert await chat.keys() == ["log", "m"]


async def test_the_title_is_reported_empty_until_there_is_one(chat: Chat) -> None:
    first = await chat.begin()
    await chat.store.sessions.update("alice", chat.session_id, title="t")
    second = await chat.begin(on_busy="queue")
    assert first.title_empty and not second.title_empty


# ---- cancel_early --------------------------------------------------------------------------------


async def test_an_early_stop_waits_for_its_response(chat: Chat) -> None:
    assert await chat.store.responses.cancel_early("alice", chat.session_id, "k1") is None
    assert await chat.store.responses.cancel_early("alice", chat.session_id, "k1") is None
    begun = await chat.begin(idempotency_key="k1")
    assert begun.cancel and not begun.replayed
    assert (await chat.store.runs.get(None, begun.response_id)).cancel
    with pytest.raises(CancelPending):
        await chat.finish(begun.response_id, 2)


async def test_an_early_stop_is_forgotten_after_ten_seconds(chat: Chat) -> None:
    await chat.store.responses.cancel_early("alice", chat.session_id, "k1")
    key = chat.store.keys.idempotency(chat.session_id, "k1")
    assert 9_000 < await chat.store.client.call("PTTL", key) <= 10_000


async def test_an_early_stop_that_comes_late_names_the_response(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1")
    known = await chat.store.responses.cancel_early("alice", chat.session_id, "k1")
    assert known == begun.response_id
    assert not (await chat.store.runs.get(None, begun.response_id)).cancel


async def test_a_user_message_carries_no_response_id(chat: Chat) -> None:
    assert "response_id" not in user_message("x").wire()
