"""Messages: read one by one, along a path, page by page, with their branches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessions.model.errors import (
    HeadMoved,
    MessageChanged,
    MessageNotFound,
    QuotaExceeded,
    ResponseInProgress,
    ResponseNotFound,
    SessionNotFound,
)
from sessions.model.ids import new_message_id
from sessions.model.quotas import Quotas
from sessions.model.records import Message
from sessions.store.store import SessionStore
from tests.sessions.conftest import AnyRedis
from tests.sessions.helpers.chat import Chat, assistant_message, user_message


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


def chain(*texts: str, parent: str | None = None) -> list[Message]:
    """Messages of a user's, each below the one before."""
    messages = []
    for text in texts:
        messages.append(user_message(text).with_parent(parent))
        parent = messages[-1].id
    return messages


async def test_added_messages_stand_after_the_head_and_viewers_hear_of_them(chat: Chat) -> None:
    store, session_id = chat.store, chat.session_id
    first = chain("one", "two")
    await store.messages.add("alice", session_id, first, head=None)
    second = chain("three", parent=first[-1].id)
    await store.messages.add("alice", session_id, second, head=first[-1].id)
    page = await store.messages.path("alice", session_id)
    assert [message.wire() for message in page.messages] == [m.wire() for m in first + second]
    assert await store.messages.branch("alice", session_id) == [m.id for m in page.messages]
    session = await store.sessions.get("alice", session_id)
    assert (session.head, session.message_count, session.offset) == (second[0].id, 3, 4)
    events = await store.sessions.events(session_id, after=1)
    assert events is not None
    assert [(e.data["type"], e.data["message"]["id"]) for e in events] == [
        ("message.created", message.id) for message in page.messages
    ]


async def test_messages_for_another_head_are_not_added(chat: Chat) -> None:
    store, session_id = chat.store, chat.session_id
    (first,) = chain("one")
    await store.messages.add("alice", session_id, [first], head=None)
    with pytest.raises(HeadMoved):
        await store.messages.add("alice", session_id, chain("two"), head=None)
    assert (await store.sessions.get("alice", session_id)).message_count == 1


async def test_nothing_is_added_while_an_answer_is_written_or_where_it_is_not_ones_own(
    chat: Chat,
) -> None:
    begun = await chat.begin("one")
    with pytest.raises(ResponseInProgress) as busy:
        await chat.store.messages.add("alice", chat.session_id, chain("two"), head=None)
    assert busy.value.response_id == begun.response_id
    with pytest.raises(SessionNotFound):
        await chat.store.messages.add("bob", chat.session_id, chain("two"), head=None)


async def test_what_goes_beyond_a_quota_is_not_added_in_part(
    any_redis: AnyRedis, prefix: str
) -> None:
    for quotas in (Quotas(messages_per_session=2), Quotas(bytes_per_session=400)):
        store = await SessionStore.open(any_redis.url, prefix=prefix, quotas=quotas)
        chat = await Chat.create(store)
        with pytest.raises(QuotaExceeded):
            await store.messages.add("alice", chat.session_id, chain(*"abc"), head=None)
        session = await store.sessions.get("alice", chat.session_id)
        assert (session.message_count, session.head) == (0, None)
        await store.messages.add("alice", chat.session_id, chain("a"), head=None)
        await store.close()


async def test_a_message_is_written_anew_where_it_stands(chat: Chat) -> None:
    store, session_id = chat.store, chat.session_id
    first, second = chain("a long secret", "two")
    await store.messages.add("alice", session_id, [first, second], head=None)
    message, version = await store.messages.with_version("alice", session_id, first.id)
    left = replace(message, text="", redacted=["message"])
    await store.messages.replace("alice", session_id, left, version)
    page = await store.messages.path("alice", session_id)
    assert [message.wire() for message in page.messages] == [left.wire(), second.wire()]
    events = await store.sessions.events(session_id, after=3)
    assert events is not None and [event.data["type"] for event in events] == ["message.updated"]
    assert events[0].data["message"]["redacted"] == ["message"]
    with pytest.raises(MessageChanged):
        await store.messages.replace("alice", session_id, message, version)
    with pytest.raises(SessionNotFound):
        await store.messages.replace("bob", session_id, message, version)
    with pytest.raises(MessageNotFound):
        unknown = replace(message, id=new_message_id())
        await store.messages.replace("alice", session_id, unknown, version)


async def test_the_log_of_an_answer_goes_with_its_words_and_not_before_it_has_ended(
    chat: Chat,
) -> None:
    store, session_id = chat.store, chat.session_id
    begun = await chat.begin("q")
    answer = chat.messages[begun.response_id].id

    async def empty() -> None:
        message, version = await store.messages.with_version("alice", session_id, answer)
        await store.messages.replace("alice", session_id, replace(message, text=""), version)

    with pytest.raises(ResponseInProgress):
        await empty()
    await chat.append(begun.response_id, 2, "secret")
    await chat.finish(begun.response_id, 3)
    assert await store.runs.events(begun.response_id)
    await empty()
    assert await store.runs.events(begun.response_id) == []
    with pytest.raises(ResponseNotFound):
        await store.runs.get("alice", begun.response_id)
    await chat.begin("and?")
