"""Share links: a snapshot for everybody who has the link, until it is taken back."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import orjson
import pytest

from sessions.model.errors import SessionNotFound, ShareNotFound
from sessions.model.ids import new_message_id, new_session_id
from sessions.model.records import Message
from sessions.store.shares import PART_BYTES, Share
from tests.sessions.helpers.chat import Chat


def shown(share: Share) -> list[dict[str, Any]]:
    return [orjson.loads(message) for message in share.messages()]


async def shared(chat: Chat, text: str = "hello") -> str:
    begun = await chat.begin(text)
    await chat.finish(begun.response_id, 2)
    page = await chat.store.messages.path("alice", chat.session_id)
    share = await chat.store.shares.create("alice", chat.session_id, "Title", page.messages)
    return share.id


async def test_a_link_shows_the_snapshot_and_no_ids(chat: Chat) -> None:
    share_id = await shared(chat)
    share = await chat.store.shares.get(share_id)
    assert (share.id, share.title) == (share_id, "Title")
    messages = shown(share)
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == [{"type": "text", "text": "hello"}]
    assert all("id" not in message and "response_id" not in message for message in messages)


async def test_a_link_does_not_show_what_a_model_thought(chat: Chat) -> None:
    message = Message("m", None, "assistant", "Yes.", "completed", 1, reasoning="secret")
    await chat.begin("w")
    share = await chat.store.shares.create("alice", chat.session_id, "Title", [message])
    assert all("secret" not in str(each) and "reasoning" not in each for each in shown(share))
    (only,) = shown(share)
    assert only["content"] == [{"type": "text", "text": "Yes."}]


async def test_a_link_does_not_show_what_the_model_was_instructed_with(chat: Chat) -> None:
    begun = await chat.begin("w")
    system = Message("m", None, "system", "secret", "completed", 1)
    told = [system, replace(system, role="developer")]
    messages = [*told, chat.messages[begun.response_id]]
    share = await chat.store.shares.create("alice", chat.session_id, "Title", messages)
    assert [each["role"] for each in shown(share)] == ["assistant"]


async def test_later_messages_are_not_shown_until_it_is_shared_again(chat: Chat) -> None:
    share_id = await shared(chat)
    begun = await chat.begin("secret")
    await chat.finish(begun.response_id, 2)
    assert len(shown(await chat.store.shares.get(share_id))) == 2
    assert await shared(chat, "third") == share_id  # the link stays
    assert len(shown(await chat.store.shares.get(share_id))) == 6


async def test_a_link_that_was_taken_back_shows_nothing(chat: Chat) -> None:
    share_id = await shared(chat)
    await chat.store.shares.remove("alice", chat.session_id)
    with pytest.raises(ShareNotFound):
        await chat.store.shares.get(share_id)
    with pytest.raises(ShareNotFound):
        await chat.store.shares.remove("alice", chat.session_id)
    assert await shared(chat) != share_id


async def test_a_link_goes_with_its_session(chat: Chat) -> None:
    share_id = await shared(chat)
    await chat.store.sessions.delete("alice", chat.session_id)
    with pytest.raises(ShareNotFound):
        await chat.store.shares.get(share_id)
    assert "share" not in await chat.keys()


async def test_only_the_owner_shares(chat: Chat) -> None:
    share_id = await shared(chat)
    for session_id in (chat.session_id, new_session_id()):
        with pytest.raises(SessionNotFound):
            await chat.store.shares.create("bob", session_id, "mine", [])
        with pytest.raises(SessionNotFound):
            await chat.store.shares.remove("bob", session_id)
    assert (await chat.store.shares.get(share_id)).title == "Title"


async def test_links_are_listed_without_those_that_are_gone(chat: Chat) -> None:
    store, index = chat.store, chat.store.keys.shares
    await shared(chat)
    with pytest.raises(SessionNotFound):
        await store.shares.create("bob", chat.session_id, "mine", [])
    await store.client.call("ZADD", index, 1, new_session_id())  # one that has expired
    page = await store.shares.page()
    assert page.next_cursor is None
    assert [(link.session_id, link.uid, link.title) for link in page.shares] == [
        (chat.session_id, "alice", "Title")
    ]
    assert await store.client.call("ZCARD", index) == 1
    await store.shares.remove("alice", chat.session_id)
    assert (await store.shares.page()).shares == ()


async def test_a_guess_is_not_found(chat: Chat) -> None:
    share_id = await shared(chat)
    wrong = share_id[:-1] + ("A" if share_id[-1] != "A" else "B")
    other = "shr_" + new_session_id()[4:] + share_id[26:]
    for guess in (wrong, other, "", "shr_", share_id + "A", share_id.upper(), "shr_" + "*" * 44):
        with pytest.raises(ShareNotFound):
            await chat.store.shares.get(guess)


async def test_a_long_snapshot_is_stored_compressed(chat: Chat) -> None:
    page = await chat.store.messages.path("alice", chat.session_id)
    assert page.messages == ()
    begun = await chat.begin("word " * 10_000)
    await chat.finish(begun.response_id, 2)
    messages = (await chat.store.messages.path("alice", chat.session_id)).messages
    messages = tuple(replace(message, model=None) for message in messages)
    share = await chat.store.shares.create("alice", chat.session_id, "", messages)
    first = shown(await chat.store.shares.get(share.id))[0]
    assert first["content"][0]["text"] == "word " * 10_000
    key = chat.store.keys.session(chat.session_id, "share")
    assert len(await chat.store.client.call("HGET", key, "snapshot")) < 2000


async def test_a_snapshot_is_unpacked_a_part_at_a_time(chat: Chat) -> None:
    empty = await chat.store.shares.create("alice", chat.session_id, "", [])
    assert shown(empty) == []
    texts = ["", "\n<", "<" * PART_BYTES, os.urandom(PART_BYTES).hex(), *["<" * 100_000] * 100]
    messages = [Message(new_message_id(), None, "user", text, "completed", 1) for text in texts]
    share = await chat.store.shares.create("alice", chat.session_id, "", messages)
    tracemalloc.start()
    try:
        for text, message in zip(texts, share.messages(), strict=True):
            assert orjson.loads(message)["content"][0]["text"] == text
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000  # of the 10 MB that there are


def test_a_snapshot_that_was_cut_off_is_no_endless_one() -> None:
    packed = zlib.compress(os.urandom(1000).hex().encode() + b"\n")
    with pytest.raises(zlib.error):
        list(Share("", "", 0, packed[:-100], "local").messages())
