"""Copies: forked and imported whole or not at all, read out in order, under fresh ids."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sessions.copies import Draft
from sessions.embedded import EmbeddedRedis
from sessions.errors import (
    MessageNotFound,
    QuotaExceeded,
    ResponseInProgress,
    SessionNotFound,
)
from sessions.quotas import Quotas
from sessions.records import Message, new_message_id, new_session_id
from sessions.store import SessionStore
from tests.sessions.chat import Chat, assistant_message, user_message


@pytest.fixture
async def small_store(redis_server: EmbeddedRedis, prefix: str) -> AsyncIterator[SessionStore]:
    """A store in which little may be kept."""
    quotas = Quotas(sessions_per_user=2, messages_per_session=500, bytes_per_session=20_000)
    store = await SessionStore.open(redis_server.url, prefix=prefix, quotas=quotas)
    yield store
    await store.close()


async def ask(chat: Chat, text: str, answer: str, **changed: object) -> Message:
    """A question and its whole answer; returns the answer's message."""
    begun = await chat.begin(text, **changed)
    parent_id = chat.messages[begun.response_id].parent_id
    message = replace(
        chat.messages[begun.response_id],
        parent_id=parent_id,
        text=answer,
        text_length=len(answer),
        status="completed",
        usage={"input_tokens": 3, "output_tokens": 5},
    )
    await chat.finish(begun.response_id, 2, message=message, text_length=len(answer))
    return message


def draft(count: int, text: str = "x") -> Draft:
    """One long path of questions."""
    messages: list[Message] = []
    for number in range(count):
        parent = messages[-1].id if messages else None
        messages.append(user_message(f"{text} {number}", parent))
    return Draft("imported", "m", {"seed": 1}, messages, messages[-1].id if messages else None, {})


async def texts(store: SessionStore, uid: str, session_id: str) -> list[str]:
    return [m.text async for m in store.messages_of(uid, session_id, whole_tree=True)]


async def test_a_fork_has_the_path_to_its_message_under_fresh_ids(chat: Chat) -> None:
    store = chat.store
    first = await ask(chat, "one", "1")
    await ask(chat, "two", "2")
    await ask(chat, "other", "x", parent_id=first.id)
    made = await store.fork_session("alice", chat.session_id, first.id)
    page = await store.path("alice", made.session.id)
    assert [m.text for m in page.messages] == ["one", "1"]
    assert page.messages[1].parent_id == page.messages[0].id
    assert made.session.head == page.messages[1].id != first.id
    assert page.messages[1].response_id is None
    assert (made.session.message_count, made.session.output_tokens) == (2, 5)
    assert [m.text for m in (await store.path("alice", chat.session_id)).messages] == [
        *("one", "1", "other", "x")
    ]


async def test_a_fork_keeps_the_token_ids_of_cut_answers(chat: Chat) -> None:
    begun = await chat.begin("one")
    message = assistant_message(begun.response_id, "cut in a wo", status="interrupted")
    message = replace(
        message,
        id=chat.messages[begun.response_id].id,
        parent_id=chat.messages[begun.response_id].parent_id,
    )
    await chat.finish(begun.response_id, 2, message=message, token_ids_to_keep=[7, 8])
    made = await chat.store.fork_session("alice", chat.session_id, message.id)
    assert made.session.head is not None
    kept = await chat.store.kept_token_ids(made.session.id, [made.session.head])
    assert kept == {made.session.head: [7, 8]}


async def test_what_is_still_written_cannot_be_forked(chat: Chat) -> None:
    begun = await chat.begin("one")
    with pytest.raises(ResponseInProgress):
        await chat.store.fork_session("alice", chat.session_id, chat.messages[begun.response_id].id)


async def test_a_fork_of_what_is_not_there_makes_nothing(chat: Chat) -> None:
    answer = await ask(chat, "one", "1")
    with pytest.raises(SessionNotFound):
        await chat.store.fork_session("bob", chat.session_id, answer.id)
    for unknown in (new_message_id(), "msg_x"):
        with pytest.raises(MessageNotFound):
            await chat.store.fork_session("alice", chat.session_id, unknown)
    assert len((await chat.store.sessions("alice")).sessions) == 1
    assert (await chat.store.sessions("bob")).sessions == ()


async def test_a_repeated_copy_finds_the_first(chat: Chat) -> None:
    answer = await ask(chat, "one", "1")
    forks = [
        await chat.store.fork_session("alice", chat.session_id, answer.id, idempotency_key="k")
        for _ in range(2)
    ]
    imports = [
        await chat.store.import_session("alice", draft(3), idempotency_key="k") for _ in range(2)
    ]
    for first, again in (forks, imports):
        assert first.session == again.session and again.replayed and not first.replayed
    assert len({forks[0].session.id, imports[0].session.id, chat.session_id}) == 3


async def test_a_long_import_is_written_in_parts_and_read_in_order(store: SessionStore) -> None:
    made = await store.import_session("alice", draft(1001, "naïve 🙂"))
    assert made.session.message_count == 1001
    assert await texts(store, "alice", made.session.id) == [f"naïve 🙂 {n}" for n in range(1001)]
    assert [s.id for s in (await store.sessions("alice")).sessions] == [made.session.id]
    chat = Chat(store, made.session.id)
    await ask(chat, "more", "and more")
    assert len(await texts(store, "alice", made.session.id)) == 1003
    assert await expiring(store, made.session.id) == {"log"}


async def expiring(store: SessionStore, session_id: str) -> set[str]:
    """Which of the session's own keys have an expiry."""
    suffixes = ("m", "msg", "tree", "ids", "log", "runs")
    lives = await store.client.calls(
        *(("PTTL", store.keys.session(session_id, suffix)) for suffix in suffixes)
    )
    return {suffix for suffix, life in zip(suffixes, lives, strict=True) if life >= 0}


async def test_parts_of_a_copy_that_was_broken_off_go_by_themselves(store: SessionStore) -> None:
    session_id = new_session_id()
    await store._write_parts(session_id, draft(10))
    assert await expiring(store, session_id) == {"msg", "tree"}
    with pytest.raises(SessionNotFound):
        await store.session("alice", session_id)


async def test_a_part_that_is_sent_twice_counts_once(store: SessionStore) -> None:
    session_id, messages = new_session_id(), draft(4)
    for _ in range(2):
        await store._write_parts(session_id, messages)
    made = await store._make_session("alice", session_id, ("title", "", "model", "", "settings",
        "{}", "head", messages.head or "", "message_count", 4), num_written=4)  # fmt: skip
    assert await texts(store, "alice", made.session.id) == [m.text for m in messages.messages]


async def test_an_empty_copy_is_an_empty_session(store: SessionStore) -> None:
    made = await store.import_session("alice", draft(0))
    assert made.session.head is None and made.session.message_count == 0
    assert await texts(store, "alice", made.session.id) == []


async def test_what_is_too_much_is_refused_and_leaves_nothing(small_store: SessionStore) -> None:
    cases = (
        (draft(501), "messages in a session"),
        (Draft("", "", {}, [user_message(secrets.token_hex(30_000))], None, {}), "bytes"),
    )
    for number, (copy, what) in enumerate(cases):
        with pytest.raises(QuotaExceeded, match=what):
            await small_store.import_session("alice", copy, idempotency_key=f"k{number}")
    assert (await small_store.sessions("alice")).sessions == ()
    prefix = small_store.keys.prefix
    keys = await small_store.client.call("KEYS", f"{prefix}c:*")
    assert keys == []


async def test_the_session_quota_counts_copies(small_store: SessionStore) -> None:
    for _ in range(2):
        await small_store.import_session("alice", draft(1))
    with pytest.raises(QuotaExceeded, match="sessions"):
        await small_store.import_session("alice", draft(1))
    assert len((await small_store.sessions("alice")).sessions) == 2
    await small_store.import_session("bob", draft(1))


async def test_messages_are_read_out_for_their_owner_alone(chat: Chat) -> None:
    await ask(chat, "one", "1")
    for uid, session_id in (("bob", chat.session_id), ("alice", new_session_id())):
        with pytest.raises(SessionNotFound):
            await texts(chat.store, uid, session_id)


async def test_only_the_path_to_the_head_is_read_out_if_asked(chat: Chat) -> None:
    first = await ask(chat, "one", "1")
    await ask(chat, "two", "2")
    await ask(chat, "other", "x", parent_id=first.id)
    path = chat.store.messages_of("alice", chat.session_id, whole_tree=False)
    assert [m.text async for m in path] == ["one", "1", "other", "x"]
    assert await texts(chat.store, "alice", chat.session_id) == [
        *("one", "1", "two", "2", "other", "x")
    ]
