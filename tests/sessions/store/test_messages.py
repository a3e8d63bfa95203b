"""Messages: read one by one, along a path, page by page, with their branches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessions.model.errors import MessageNotFound, SessionNotFound
from sessions.model.ids import new_message_id
from tests.sessions.helpers.chat import Chat, assistant_message


async def test_the_path_leads_from_the_root_to_the_head(chat: Chat) -> None:
    await chat.begin("one")
    await chat.finish((await live(chat)), 2)
    await chat.begin("two")
    page = await chat.store.messages.path("alice", chat.session_id)
    assert [message.role for message in page.messages] == ["user", "assistant"] * 2
    assert [message.text for message in page.messages] == ["one", "", "two", ""]
    for parent, child in zip(page.messages, page.messages[1:], strict=False):
        assert child.parent_id == parent.id
    assert not page.has_more


async def test_a_path_is_read_backwards_in_pages(chat: Chat) -> None:
    for number in range(3):
        await chat.begin(str(number))
        await chat.finish(await live(chat), 2)
    newest = await chat.store.messages.path("alice", chat.session_id, limit=4)
    assert newest.has_more and [message.text for message in newest.messages] == ["1", "", "2", ""]
    older = await chat.store.messages.path(
        "alice", chat.session_id, before=newest.messages[0].id, limit=4
    )
    assert not older.has_more and [message.text for message in older.messages] == ["0", ""]
    with pytest.raises(MessageNotFound):
        await chat.store.messages.path("alice", chat.session_id, before=new_message_id())


async def test_an_edit_is_a_sibling_and_both_branches_can_be_read(chat: Chat) -> None:
    await chat.begin("first")
    await chat.finish(await live(chat), 2)
    old_head = (await chat.store.sessions.get("alice", chat.session_id)).head
    await chat.begin("edited", parent_id=None)
    new = await chat.store.messages.path("alice", chat.session_id)
    old = await chat.store.messages.path("alice", chat.session_id, leaf=old_head)
    assert [new.messages[0].text, old.messages[0].text] == ["edited", "first"]
    assert new.messages[0].sibling_ids == (old.messages[0].id, new.messages[0].id)
    assert new.messages[0].wire()["sibling_ids"] == [old.messages[0].id, new.messages[0].id]


async def test_the_newest_message_that_came_of_another_ends_its_branch(chat: Chat) -> None:
    messages = chat.store.messages

    async def newest(message_id: str) -> str:
        return await messages.newest_below("alice", chat.session_id, message_id)

    await chat.begin("first")
    await chat.finish(await live(chat), 2)
    question, answer = (await messages.path("alice", chat.session_id)).messages
    await chat.begin("edited", parent_id=None)
    edited, its_answer = (await messages.path("alice", chat.session_id)).messages
    assert await newest(question.id) == await newest(answer.id) == answer.id
    assert await newest(edited.id) == its_answer.id
    with pytest.raises(MessageNotFound):
        await newest(new_message_id())
    with pytest.raises(SessionNotFound):
        await messages.newest_below("bob", chat.session_id, question.id)


async def test_a_long_message_is_stored_compressed_and_left_out_of_its_event(chat: Chat) -> None:
    text = "naïve 🙂 " * 400
    await chat.begin(text)
    page = await chat.store.messages.path("alice", chat.session_id)
    assert page.messages[0].text == text
    assert page.messages[0].text_length == len(text) + 400
    body = await chat.store.client.call(
        "HGET", chat.store.keys.session(chat.session_id, "msg"), page.messages[0].id
    )
    assert body.startswith(b"z") and len(body) < 500
    events = await chat.store.sessions.events(chat.session_id, after=1)
    assert events is not None
    assert events[0].data["message"]["content_omitted"] is True
    assert "content" not in events[0].data["message"]


async def test_one_message_can_be_read(chat: Chat) -> None:
    await chat.begin("hi")
    message = (await chat.store.messages.path("alice", chat.session_id)).messages[0]
    read = await chat.store.messages.get("alice", chat.session_id, message.id)
    assert read == replace(message, sibling_ids=())
    for unknown in (new_message_id(), "msg_x", "uid"):
        with pytest.raises(MessageNotFound):
            await chat.store.messages.get("alice", chat.session_id, unknown)
    with pytest.raises(SessionNotFound):
        await chat.store.messages.get("bob", chat.session_id, message.id)


async def test_token_ids_kept_with_a_message_are_found_again(chat: Chat) -> None:
    begun = await chat.begin()
    message = assistant_message(begun.response_id, "cut in a wo")
    await chat.finish(begun.response_id, 2, message=message, token_ids_to_keep=[7, 2**31])
    kept = await chat.store.messages.token_ids(chat.session_id, [message.id, new_message_id()])
    assert kept == {message.id: [7, 2**31]}


async def live(chat: Chat) -> str:
    active = (await chat.store.responses.live(chat.session_id)).active
    assert active is not None
    return active
