"""Queues: kept once for each key, changed by one at a time, taken as an answer begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import (
    IdempotencyKeyReused,
    ItemNotFound,
    QueueChanged,
    QueueFull,
    QuotaExceeded,
    ResponseInProgress,
    SessionLocked,
    SessionNotFound,
)
from sessions.model.ids import new_session_id
from sessions.model.queue import LOOK_AFTER_MS, MAX_ITEMS, NextRound, Queue, TakenInput
from sessions.model.quotas import Quotas
from tests.sessions.helpers.batches import RedisBatches
from tests.sessions.helpers.chat import Chat
from tests.sessions.helpers.queued import queued, texts_of


async def waiting(chat: Chat) -> list[str]:
    return texts_of(await chat.store.queues.get("alice", chat.session_id))


async def add(chat: Chat, text: str, **fields: Any) -> None:
    added = await chat.store.queues.add("alice", chat.session_id, queued(text, **fields))
    assert added.status == "waiting" and added.written is not None


async def take(chat: Chat, queue: Queue) -> str:
    """Begin an answer to what is due."""
    taken = TakenInput(queue, queue.due)
    first = taken.items[0]
    begun = await chat.begin(
        taken.text, idempotency_key=first.idempotency_key, body_hash=first.body_hash, taken=taken
    )
    return begun.response_id


async def events_of(chat: Chat) -> list[dict[str, Any]]:
    events = await chat.store.sessions.events(chat.session_id, after=1)
    assert events is not None
    return [event.data for event in events]


async def test_what_is_added_waits_in_order_and_is_an_event(chat: Chat) -> None:
    for text in ("a", "b"):
        await add(chat, text)
    assert await waiting(chat) == ["a", "b"]
    first, second = await events_of(chat)
    assert (first["type"], first["queue"]["revision"]) == ("queue.updated", 1)
    assert first["queue"]["paused"] is False
    assert [item["input"] for item in second["queue"]["items"]] == ["a", "b"]


async def test_where_nothing_waits_something_is_added_with_one_call(
    redis_server: EmbeddedRedis, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(chat, "a")
    await take(chat, await chat.store.queues.get("alice", chat.session_id))
    await chat.store.ping()  # after what nobody has waited for
    redis = RedisBatches(monkeypatch)
    await add(chat, "b")  # whatever was there before
    assert redis.all == [["enter_queue", "write_queue"]]
    await add(chat, "c")
    assert redis.all[1:] == [["enter_queue", "write_queue"]] * 2
    assert await waiting(chat) == ["b", "c"]


async def test_what_is_added_unread_changes_no_pause(chat: Chat) -> None:
    await add(chat, "a")
    meta = chat.store.keys.session(chat.session_id, "m")
    await chat.store.client.call("HSET", meta, "queue", "[]", "queue_paused", 1)
    added = await chat.store.queues.add("alice", chat.session_id, queued("b"))
    assert added.written is not None and added.written.queue.is_paused
    assert (await chat.store.queues.get("alice", chat.session_id)).is_paused


async def test_a_key_adds_once(chat: Chat) -> None:
    await add(chat, "a")
    again = await chat.store.queues.add("alice", chat.session_id, queued("a"))
    assert (again.status, again.written) == ("waiting", None)
    assert await waiting(chat) == ["a"]
    other = queued("a", body_hash="another")
    with pytest.raises(IdempotencyKeyReused):
        await chat.store.queues.add("alice", chat.session_id, other)


async def test_a_key_says_what_has_become_of_it(chat: Chat) -> None:
    await add(chat, "a")
    await add(chat, "b")
    response_id = await take(chat, await chat.store.queues.get("alice", chat.session_id))
    begun = await chat.store.queues.add("alice", chat.session_id, queued("a"))
    assert (begun.status, begun.response_id) == ("begun", response_id)
    await chat.store.queues.remove("alice", chat.session_id, "b")
    removed = await chat.store.queues.add("alice", chat.session_id, queued("b"))
    assert removed.status == "removed"
    assert await waiting(chat) == []


async def test_a_stop_that_came_first_lets_nothing_wait(chat: Chat) -> None:
    await chat.store.responses.cancel_early("alice", chat.session_id, "a")
    added = await chat.store.queues.add("alice", chat.session_id, queued("a"))
    assert added.status == "removed"
    assert await waiting(chat) == []


async def test_changes_of_many_are_all_made(chat: Chat) -> None:
    texts = [f"{number}" for number in range(7)]
    await asyncio.gather(*(add(chat, text) for text in texts))
    assert sorted(await waiting(chat)) == texts


async def test_the_limits_hold(chat: Chat) -> None:
    for number in range(MAX_ITEMS):
        await add(chat, f"{number}")
    with pytest.raises(QueueFull):
        await chat.store.queues.add("alice", chat.session_id, queued("one more"))


async def test_an_item_is_changed_and_withdrawn(chat: Chat) -> None:
    await add(chat, "a")
    written = await chat.store.queues.change(
        "alice", chat.session_id, lambda queue: queue.changed("a", text="b")
    )
    assert texts_of(written.queue) == await waiting(chat) == ["b"]
    await chat.store.queues.remove("alice", chat.session_id, "a")
    with pytest.raises(ItemNotFound):
        await chat.store.queues.remove("alice", chat.session_id, "a")


async def test_others_neither_read_nor_change(chat: Chat) -> None:
    queues = chat.store.queues
    for uid, session_id in (("bob", chat.session_id), ("alice", new_session_id())):
        with pytest.raises(SessionNotFound):
            await queues.get(uid, session_id)
        with pytest.raises(SessionNotFound):
            await queues.add(uid, session_id, queued("a"))
        with pytest.raises(SessionNotFound):
            await queues.change(uid, session_id, Queue.resumed)


async def test_a_locked_session_takes_nothing_more(chat: Chat) -> None:
    key = chat.store.keys.session(chat.session_id, "m")
    await chat.store.client.call("HSET", key, "locked", "for a reason")
    with pytest.raises(SessionLocked):
        await chat.store.queues.add("alice", chat.session_id, queued("a"))


async def test_an_answer_begins_and_its_question_leaves_the_queue_in_one_step(chat: Chat) -> None:
    await add(chat, "a")
    await add(chat, "b")
    old = await chat.store.queues.get("alice", chat.session_id)
    response_id = await take(chat, old)
    assert await waiting(chat) == ["b"]
    kinds = [event["type"] for event in await events_of(chat)][2:]
    assert kinds == ["queue.updated", "message.created", "message.created"]
    assert await take(chat, old) == response_id  # the same key: it finds what it began


async def test_only_one_answer_is_written_at_a_time(chat: Chat) -> None:
    await chat.begin("hello")
    await add(chat, "a")
    with pytest.raises(ResponseInProgress):
        await take(chat, await chat.store.queues.get("alice", chat.session_id))
    assert await waiting(chat) == ["a"]


async def test_nothing_begins_of_a_queue_that_was_changed(chat: Chat) -> None:
    await add(chat, "a")
    old = await chat.store.queues.get("alice", chat.session_id)
    await add(chat, "b")
    with pytest.raises(QueueChanged):
        await take(chat, old)
    assert await waiting(chat) == ["a", "b"]


async def test_the_keys_of_words_that_are_asked_together_stand_for_one_answer(chat: Chat) -> None:
    for text in ("a", "b"):
        await add(chat, text, now=True, steers="resp_1", body_hash=f"hash-{text}")
    response_id = await take(chat, await chat.store.queues.get("alice", chat.session_id))
    for text in ("a", "b"):
        item = queued(text, body_hash=f"hash-{text}")
        begun = await chat.store.queues.add("alice", chat.session_id, item)
        assert (begun.status, begun.response_id) == ("begun", response_id)


async def test_an_end_says_whether_something_waits(chat: Chat) -> None:
    begun = await chat.begin("hello")
    assert not (await chat.finish(begun.response_id, 2)).has_queue
    begun = await chat.begin("hello")
    await add(chat, "a")
    first, again = [await chat.finish(begun.response_id, 2) for _ in range(2)]
    assert first.has_queue and again.has_queue and again.repeated


async def test_an_end_may_pause_what_waits(chat: Chat) -> None:
    begun = await chat.begin("hello")
    await add(chat, "a")
    await chat.finish(begun.response_id, 2, pauses_queue=True)
    assert (await chat.store.queues.get("alice", chat.session_id)).is_paused
    *_, end, paused = await events_of(chat)
    assert (end["type"], paused["type"]) == ("message.updated", "queue.updated")
    assert paused["queue"]["paused"] is True
    await chat.store.queues.change("alice", chat.session_id, Queue.resumed)
    assert not (await chat.store.queues.get("alice", chat.session_id)).is_paused


async def test_an_end_pauses_no_empty_queue(chat: Chat) -> None:
    begun = await chat.begin("hello")
    await chat.finish(begun.response_id, 2, pauses_queue=True)
    assert not (await chat.store.queues.get("alice", chat.session_id)).is_paused


async def test_a_queue_goes_with_its_session(chat: Chat) -> None:
    await add(chat, "a")
    await chat.store.sessions.delete("alice", chat.session_id)
    with pytest.raises(SessionNotFound):
        await waiting(chat)


# ---- the index -----------------------------------------------------------------------------------


async def test_a_queue_is_due_some_time_after_it_was_added_to(chat: Chat) -> None:
    queues = chat.store.queues
    await add(chat, "a")
    assert chat.session_id not in await queues.index.due()
    await queues.index.look_later(chat.session_id, after_ms=-1)
    assert chat.session_id in await queues.index.due()
    assert chat.session_id not in await queues.index.due()  # one worker looks at a time
    score = await chat.store.client.call("ZSCORE", chat.store.keys.queues, chat.session_id)
    assert 0 < float(score) - LOOK_AFTER_MS


async def test_a_queue_from_which_something_was_withdrawn_is_looked_at(chat: Chat) -> None:
    await add(chat, "a")
    await chat.store.client.call("ZREM", chat.store.keys.queues, chat.session_id)
    await chat.store.queues.remove("alice", chat.session_id, "a")
    index = chat.store.keys.queues
    assert await chat.store.client.call("ZSCORE", index, chat.session_id) is not None


async def test_what_waits_is_not_added_again_when_its_key_has_expired(chat: Chat) -> None:
    await add(chat, "a")
    await chat.store.client.call("DEL", chat.store.keys.idempotency(chat.session_id, "a"))
    added = await chat.store.queues.add("alice", chat.session_id, queued("a"))
    assert (added.status, await waiting(chat)) == ("waiting", ["a"])


async def test_a_queue_is_forgotten_unless_it_was_added_to_meanwhile(chat: Chat) -> None:
    queues, index = chat.store.queues, chat.store.keys.queues
    await queues.index.look_later(chat.session_id, after_ms=-1)
    mark = (await queues.index.due())[chat.session_id]
    await queues.index.look_later(chat.session_id, after_ms=-1)
    await queues.index.forget(chat.session_id, mark)
    assert await chat.store.client.call("ZSCORE", index, chat.session_id) is not None
    mark = (await queues.index.due())[chat.session_id]
    await queues.index.forget(chat.session_id, mark)
    assert await chat.store.client.call("ZSCORE", index, chat.session_id) is None


# ---- what follows by itself ------------------------------------------------------------------


async def ended_with_calls(chat: Chat, **changed: Any) -> NextRound:
    """An answer that has ended, and what is to follow it."""
    begun = await chat.begin()
    message = chat.messages[begun.response_id]
    following = NextRound(
        response_id=begun.response_id, message_id=message.id, settings={"seed": 1}, priority=2
    )
    finished = await chat.finish(begun.response_id, 2, next_round=following, **changed)
    assert finished.has_queue or finished.next_response_id
    return following


async def next_round(chat: Chat) -> NextRound | None:
    return (await chat.store.queues.get("alice", chat.session_id)).next_round


async def test_what_follows_an_answer_is_kept_with_its_end_and_begins_once(chat: Chat) -> None:
    following = await ended_with_calls(chat)
    kept = await next_round(chat)
    assert kept is not None and kept.idempotency_key == following.idempotency_key
    assert (kept.message_id, kept.settings, kept.priority) == (following.message_id, {"seed": 1}, 2)
    assert await chat.store.client.call("ZSCORE", chat.store.keys.rounds, chat.session_id)
    first = await chat.begin(idempotency_key=kept.idempotency_key, next_round=kept)
    again = await chat.begin(idempotency_key=kept.idempotency_key, next_round=kept)
    assert again.replayed and again.response_id == first.response_id
    await chat.finish(first.response_id, 2)
    assert await next_round(chat) is None
    with pytest.raises(QueueChanged):
        await chat.begin(next_round=kept)


async def test_what_follows_is_not_refused_in_a_session_that_is_full(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended_with_calls(chat)
    kept = await next_round(chat)
    full = Quotas(messages_per_session=1, bytes_per_session=1)
    monkeypatch.setattr(chat.store.context, "quotas", full)
    with pytest.raises(QuotaExceeded):
        await chat.begin("a question")
    begun = await chat.begin(idempotency_key="calls", next_round=kept)
    assert not begun.replayed


async def test_a_question_that_is_faster_takes_the_place_of_what_follows(chat: Chat) -> None:
    following = await ended_with_calls(chat)
    asked = await chat.begin("something else")
    assert await next_round(chat) is None
    await chat.finish(asked.response_id, 2)
    with pytest.raises(QueueChanged):
        await chat.begin(next_round=following)


async def test_an_answer_that_waits_already_takes_its_place_too(chat: Chat) -> None:
    begun = await chat.begin()
    waits = await chat.begin("another", on_busy="queue")
    message = chat.messages[begun.response_id]
    following = NextRound(response_id=begun.response_id, message_id=message.id, settings={})
    finished = await chat.finish(begun.response_id, 2, next_round=following)
    assert finished.next_response_id == waits.response_id
    assert await next_round(chat) is None


async def test_a_change_of_the_queue_leaves_what_follows_alone(chat: Chat) -> None:
    await ended_with_calls(chat)
    await add(chat, "later")
    assert await waiting(chat) == ["later"]
    kept = await next_round(chat)
    assert kept is not None
    queues, read = chat.store.queues, NextRound.decode(kept.encode())
    assert await queues.drop_round(chat.session_id, read, pauses=True)
    assert await next_round(chat) is None
    assert (await queues.get("alice", chat.session_id)).is_paused
    assert (await events_of(chat))[-1]["queue"]["paused"] is True
    assert not await queues.drop_round(chat.session_id, read)


async def test_an_older_worker_that_finds_no_queue_forgets_no_round(chat: Chat) -> None:
    await ended_with_calls(chat)
    queues = chat.store.queues
    await queues.index.look_later(chat.session_id, after_ms=-1)  # as older ones enter it
    (mark,) = (await queues.index.due()).values()
    await queues.index.forget(chat.session_id, mark)
    await queues.rounds.look_later(chat.session_id, after_ms=-1)
    assert chat.session_id in await queues.rounds.due()
