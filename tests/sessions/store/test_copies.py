"""Copies: forked and imported whole or not at all, read out in order, under fresh ids."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.model.codec import MAX_COUNT, decode_body, encode_body, size_of_body
from sessions.model.errors import (
    MessageNotFound,
    QuotaExceeded,
    ResponseInProgress,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.ids import new_message_id, new_session_id
from sessions.model.quotas import Quotas
from sessions.model.records import Message
from sessions.model.replies import CreatedSession
from sessions.store.copies import Draft, _copy_id
from sessions.store.messages import PART_BYTES, PART_MESSAGES
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat, assistant_message, user_message


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
    return Draft("imported", "m", {"seed": 1}, messages, messages[-1].id if messages else None)


async def texts(store: SessionStore, uid: str, session_id: str) -> list[str]:
    return [m.text async for m in store.messages.each(uid, session_id, whole_tree=True)]


async def test_a_fork_has_the_path_to_its_message_under_fresh_ids(chat: Chat) -> None:
    store = chat.store
    first = await ask(chat, "one", "1")
    await ask(chat, "two", "2")
    await ask(chat, "other", "x", parent_id=first.id)
    made = await store.copies.fork("alice", chat.session_id, first.id)
    page = await store.messages.path("alice", made.session.id)
    assert [m.text for m in page.messages] == ["one", "1"]
    assert page.messages[1].parent_id == page.messages[0].id
    assert made.session.head == page.messages[1].id != first.id
    assert page.messages[1].response_id is None
    assert (made.session.message_count, made.session.output_tokens) == (2, 5)
    assert [m.text for m in (await store.messages.path("alice", chat.session_id)).messages] == [
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
    made = await chat.store.copies.fork("alice", chat.session_id, message.id)
    assert made.session.head is not None
    kept = await chat.store.messages.token_ids(made.session.id, [made.session.head])
    assert kept == {made.session.head: [7, 8]}


async def test_what_is_still_written_cannot_be_forked(chat: Chat) -> None:
    begun = await chat.begin("one")
    with pytest.raises(ResponseInProgress):
        await chat.store.copies.fork("alice", chat.session_id, chat.messages[begun.response_id].id)


async def test_a_fork_of_what_is_not_there_makes_nothing(chat: Chat) -> None:
    answer = await ask(chat, "one", "1")
    with pytest.raises(SessionNotFound):
        await chat.store.copies.fork("bob", chat.session_id, answer.id)
    for unknown in (new_message_id(), "msg_x"):
        with pytest.raises(MessageNotFound):
            await chat.store.copies.fork("alice", chat.session_id, unknown)
    assert len((await chat.store.lists.page("alice")).sessions) == 1
    assert (await chat.store.lists.page("bob")).sessions == ()


async def test_a_repeated_copy_finds_the_first(chat: Chat) -> None:
    answer = await ask(chat, "one", "1")
    forks = [
        await chat.store.copies.fork("alice", chat.session_id, answer.id, idempotency_key="k")
        for _ in range(2)
    ]
    imports = [
        await chat.store.copies.import_draft("alice", draft(3), idempotency_key="k")
        for _ in range(2)
    ]
    for first, again in (forks, imports):
        assert first.session == again.session and again.replayed and not first.replayed
    assert len({forks[0].session.id, imports[0].session.id, chat.session_id}) == 3


async def test_a_long_import_is_written_in_parts_and_read_in_order(store: SessionStore) -> None:
    made = await store.copies.import_draft("alice", draft(1001, "naïve 🙂"))
    assert made.session.message_count == 1001
    assert await texts(store, "alice", made.session.id) == [f"naïve 🙂 {n}" for n in range(1001)]
    assert [s.id for s in (await store.lists.page("alice")).sessions] == [made.session.id]
    chat = Chat(store, made.session.id)
    await ask(chat, "more", "and more")
    assert len(await texts(store, "alice", made.session.id)) == 1003
    assert await expiring(store, made.session.id) == {"log"}


async def expiring(store: SessionStore, session_id: str) -> set[str]:
    """Which of the session's own keys have an expiry."""
    suffixes = ("m", "msg", "tree", "ids", "log", "runs", "copy")
    lives = await store.client.calls(
        *(("PTTL", store.keys.session(session_id, suffix)) for suffix in suffixes)
    )
    return {suffix for suffix, life in zip(suffixes, lives, strict=True) if life >= 0}


@pytest.fixture
async def interrupted(store: SessionStore) -> str:
    """The key of an import of which only the first part was written."""
    long = draft(PART_MESSAGES + 1)

    async def broken_off() -> AsyncGenerator[tuple[Message, None]]:
        for message in long.messages:
            yield message, None
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await store.copies._write(
            "alice", _copy_id("alice", "import", "k"), long, broken_off(), 1000
        )
    return "k"


async def lose_writer(store: SessionStore, key: str) -> None:
    """As when the lease of the call that writes this copy ends."""
    await store.client.call("DEL", store.keys.session(_copy_id("alice", "import", key), "copy"))


async def test_parts_of_a_copy_that_was_broken_off_go_by_themselves(
    store: SessionStore, interrupted: str
) -> None:
    session_id = _copy_id("alice", "import", interrupted)
    assert await expiring(store, session_id) == {"msg", "tree", "copy"}
    with pytest.raises(SessionNotFound):
        await store.sessions.get("alice", session_id)


async def test_a_copy_that_was_broken_off_is_made_whole_by_a_repeat(
    store: SessionStore, interrupted: str
) -> None:
    with pytest.raises(StoreUnavailable):  # nobody can know yet that it was
        await store.copies.import_draft("alice", draft(3), idempotency_key=interrupted)
    await lose_writer(store, interrupted)
    made = await store.copies.import_draft("alice", draft(3), idempotency_key=interrupted)
    assert await texts(store, "alice", made.session.id) == ["x 0", "x 1", "x 2"]
    assert len(await store.client.call("HVALS", store.keys.session(made.session.id, "msg"))) == 3


async def test_two_calls_with_one_key_never_mix_their_messages(
    store: SessionStore, other_store: SessionStore
) -> None:
    calls = [
        asyncio.create_task(
            one.copies.import_draft("alice", draft(1001, text), idempotency_key="k")
        )
        for one, text in ((store, "a"), (other_store, "b"))
    ]
    first, second = await asyncio.gather(*calls, return_exceptions=True)
    if isinstance(first, StoreUnavailable):
        first, second = second, first
    assert isinstance(first, CreatedSession) and isinstance(second, StoreUnavailable)
    page = await store.messages.path("alice", first.session.id, limit=1001)
    assert len({m.text[0] for m in page.messages}) == 1 and len(page.messages) == 1001
    again = await other_store.copies.import_draft("alice", draft(3), idempotency_key="k")
    assert again.replayed and again.session.id == first.session.id


async def test_a_call_that_was_silent_for_too_long_writes_nothing_more(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part = store.copies._write_part

    async def slow(session_id: str, call_id: str, place: int, part: Any) -> None:
        if place:
            await lose_writer(store, "k")
            await store.copies.import_draft("alice", draft(3), idempotency_key="k")
        await write_part(session_id, call_id, place, part)

    monkeypatch.setattr(store.copies, "_write_part", slow)
    with pytest.raises(StoreUnavailable):
        await store.copies.import_draft("alice", draft(PART_MESSAGES + 1), idempotency_key="k")
    made = await store.copies.import_draft("alice", draft(3), idempotency_key="k")
    assert made.replayed and len(await texts(store, "alice", made.session.id)) == 3


async def test_a_copy_never_holds_the_loop_for_more_than_a_part(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long messages that are short when they are compressed: only their real size tells the work.
    long = draft(60, "word " * 20_000)
    turns = 0
    work: Counter[int] = Counter()  # bytes that were coded, by the loop's turn

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def encode(message: Message) -> bytes:
        work[turns] += len(message.text)
        return encode_body(message)

    def decode(body: bytes) -> Message:
        work[turns] += size_of_body(body)
        return decode_body(body)

    monkeypatch.setattr("sessions.store.copies.encode_body", encode)
    monkeypatch.setattr("sessions.store.messages.decode_body", decode)
    counting = asyncio.create_task(count_turns())
    made = await store.copies.import_draft("alice", long)
    assert long.head is not None
    forked = await store.copies.fork("alice", made.session.id, made.session.head or "")
    assert await texts(store, "alice", forked.session.id) == [m.text for m in long.messages]
    counting.cancel()
    # A part that is read and one that is written may meet in one turn, each with one message over.
    assert max(work.values()) <= 2 * (PART_BYTES + 101_000)


async def test_an_empty_copy_is_an_empty_session(store: SessionStore) -> None:
    made = await store.copies.import_draft("alice", draft(0))
    assert made.session.head is None and made.session.message_count == 0
    assert await texts(store, "alice", made.session.id) == []


@pytest.mark.row("B48")
async def test_what_is_too_much_is_refused_and_leaves_nothing(small_store: SessionStore) -> None:
    cases = (
        (draft(501), "messages in a session"),
        (Draft("", "", {}, [user_message(secrets.token_hex(30_000))], None), "bytes"),
    )
    for number, (copy, what) in enumerate(cases):
        with pytest.raises(QuotaExceeded, match=what):
            await small_store.copies.import_draft("alice", copy, idempotency_key=f"k{number}")
    assert (await small_store.lists.page("alice")).sessions == ()
    prefix = small_store.keys.prefix
    keys = await small_store.client.call("KEYS", f"{prefix}c:*")
    assert keys == []


async def test_a_copy_that_has_expired_is_made_anew_under_its_key(store: SessionStore) -> None:
    first = (await store.copies.import_draft("alice", draft(2), idempotency_key="k")).session
    await store.sessions.update("alice", first.id, title="renamed")
    key = store.keys.session(first.id, "m")
    await store.client.call("DEL", key)  # the first to go; its log may stay for an hour
    again = await store.copies.import_draft("alice", draft(3), idempotency_key="k")
    assert not again.replayed and (again.session.id, again.session.message_count) == (first.id, 3)
    assert await texts(store, "alice", first.id) == ["x 0", "x 1", "x 2"]


async def test_the_session_quota_counts_copies(small_store: SessionStore) -> None:
    for _ in range(2):
        await small_store.copies.import_draft("alice", draft(1))
    with pytest.raises(QuotaExceeded, match="sessions"):
        await small_store.copies.import_draft("alice", draft(1))
    assert len((await small_store.lists.page("alice")).sessions) == 2
    await small_store.copies.import_draft("bob", draft(1))


@pytest.mark.row("B48")
async def test_the_tokens_of_a_copy_are_counted_within_bounds(store: SessionStore) -> None:
    usage = {"input_tokens": MAX_COUNT // 2 + 1, "output_tokens": 7}
    plain = draft(3)
    whole = replace(plain, messages=[replace(m, usage=usage) for m in plain.messages])
    session = (await store.copies.import_draft("alice", whole)).session
    assert (session.input_tokens, session.output_tokens) == (MAX_COUNT, 21)
    stored = await store.messages.path("alice", session.id)
    fork = await store.copies.fork("alice", session.id, stored.messages[-1].id)
    assert (fork.session.input_tokens, fork.session.output_tokens) == (MAX_COUNT, 21)


async def test_messages_are_read_out_for_their_owner_alone(chat: Chat) -> None:
    await ask(chat, "one", "1")
    for uid, session_id in (("bob", chat.session_id), ("alice", new_session_id())):
        with pytest.raises(SessionNotFound):
            await texts(chat.store, uid, session_id)


async def test_only_the_path_to_the_head_is_read_out_if_asked(chat: Chat) -> None:
    first = await ask(chat, "one", "1")
    await ask(chat, "two", "2")
    await ask(chat, "other", "x", parent_id=first.id)
    path = chat.store.messages.each("alice", chat.session_id, whole_tree=False)
    assert [m.text async for m in path] == ["one", "1", "other", "x"]
    assert await texts(chat.store, "alice", chat.session_id) == [
        *("one", "1", "two", "2", "other", "x")
    ]
