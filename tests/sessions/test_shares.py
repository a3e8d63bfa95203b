"""Share links: a snapshot for everybody who has the link, until it is taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessions.errors import SessionNotFound, ShareNotFound
from sessions.records import new_session_id
from tests.sessions.chat import Chat


async def shared(chat: Chat, text: str = "hello") -> str:
    begun = await chat.begin(text)
    await chat.finish(begun.response_id, 2)
    page = await chat.store.path("alice", chat.session_id)
    share = await chat.store.share_session("alice", chat.session_id, "Title", page.messages)
    return share.id


async def test_a_link_shows_the_snapshot_and_no_ids(chat: Chat) -> None:
    share_id = await shared(chat)
    share = await chat.store.share(share_id)
    assert (share.id, share.title) == (share_id, "Title")
    assert [message["role"] for message in share.messages] == ["user", "assistant"]
    assert share.messages[0]["content"] == [{"type": "text", "text": "hello"}]
    assert all("id" not in message and "response_id" not in message for message in share.messages)


async def test_later_messages_are_not_shown_until_it_is_shared_again(chat: Chat) -> None:
    share_id = await shared(chat)
    begun = await chat.begin("secret")
    await chat.finish(begun.response_id, 2)
    assert len((await chat.store.share(share_id)).messages) == 2
    assert await shared(chat, "third") == share_id  # the link stays
    assert len((await chat.store.share(share_id)).messages) == 6


async def test_a_link_that_was_taken_back_shows_nothing(chat: Chat) -> None:
    share_id = await shared(chat)
    await chat.store.unshare_session("alice", chat.session_id)
    with pytest.raises(ShareNotFound):
        await chat.store.share(share_id)
    with pytest.raises(ShareNotFound):
        await chat.store.unshare_session("alice", chat.session_id)
    assert await shared(chat) != share_id


async def test_a_link_goes_with_its_session(chat: Chat) -> None:
    share_id = await shared(chat)
    await chat.store.delete_session("alice", chat.session_id)
    with pytest.raises(ShareNotFound):
        await chat.store.share(share_id)
    assert "share" not in await chat.keys()


async def test_only_the_owner_shares(chat: Chat) -> None:
    share_id = await shared(chat)
    for session_id in (chat.session_id, new_session_id()):
        with pytest.raises(SessionNotFound):
            await chat.store.share_session("bob", session_id, "mine", [])
        with pytest.raises(SessionNotFound):
            await chat.store.unshare_session("bob", session_id)
    assert (await chat.store.share(share_id)).title == "Title"


async def test_a_guess_is_not_found(chat: Chat) -> None:
    share_id = await shared(chat)
    wrong = share_id[:-1] + ("A" if share_id[-1] != "A" else "B")
    other = "shr_" + new_session_id()[4:] + share_id[26:]
    for guess in (wrong, other, "", "shr_", share_id + "A", share_id.upper(), "shr_" + "*" * 44):
        with pytest.raises(ShareNotFound):
            await chat.store.share(guess)


async def test_a_long_snapshot_is_stored_compressed(chat: Chat) -> None:
    page = await chat.store.path("alice", chat.session_id)
    assert page.messages == ()
    begun = await chat.begin("word " * 10_000)
    await chat.finish(begun.response_id, 2)
    messages = (await chat.store.path("alice", chat.session_id)).messages
    messages = tuple(replace(message, model=None) for message in messages)
    share = await chat.store.share_session("alice", chat.session_id, "", messages)
    assert (await chat.store.share(share.id)).messages[0]["content"][0]["text"] == "word " * 10_000
    key = chat.store.keys.session(chat.session_id, "share")
    assert len(await chat.store.client.call("HGET", key, "snapshot")) < 2000
