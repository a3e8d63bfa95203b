"""What a door keeps of a response: stored with its beginning, read by its user, removed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sessions.model.errors import MessageNotFound, QuotaExceeded, ResponseNotFound, RunLive
from sessions.model.ids import new_response_id, new_session_id
from sessions.model.quotas import Quotas
from sessions.model.records import Message
from sessions.store.kept.responses import KeptResponse
from sessions.store.store import SessionStore
from tests.sessions.conftest import AnyRedis
from tests.sessions.helpers.chat import Chat, assistant_message, user_message


async def begin(
    chat: Chat, parent_id: str | None = None, *, before: tuple[Message, ...] = ()
) -> KeptResponse:
    """A response below that message, with what is kept of it."""
    response_id = new_response_id(chat.session_id)
    question, answer = user_message("hello", parent_id), assistant_message(response_id)
    ids = (*(each.id for each in before), question.id)
    kept = KeptResponse(response_id, answer.id, ids, 1, {"instructions": "x" * 5000})
    await chat.begin(
        response_id=response_id,
        user_message=question,
        assistant_message=answer,
        parent_id=parent_id,
        before=before,
        kept=kept.encode(),
    )
    return kept


async def path(chat: Chat) -> list[str]:
    page = await chat.store.messages.path(chat.uid, chat.session_id)
    return [message.id for message in page.messages]


async def bytes_of(chat: Chat) -> int:
    key = chat.store.keys.session(chat.session_id, "m")
    return int(await chat.store.client.call("HGET", key, "bytes"))


async def test_what_is_kept_is_read_by_its_user_alone(chat: Chat) -> None:
    kept = await begin(chat)
    assert await chat.store.kept_responses.get("alice", kept.response_id) == kept
    with pytest.raises(ResponseNotFound):
        await chat.store.kept_responses.get("bob", kept.response_id)


async def test_of_a_response_of_no_door_nothing_is_kept(chat: Chat) -> None:
    begun = await chat.begin()
    with pytest.raises(ResponseNotFound):
        await chat.store.kept_responses.get("alice", begun.response_id)


async def test_what_comes_before_the_question_is_stored_in_one_line(chat: Chat) -> None:
    before = (user_message("one"), assistant_message("", "two", status="completed"))
    kept = await begin(chat, before=before)
    assert await path(chat) == [*kept.input_ids, kept.message_id]
    assert (await chat.store.sessions.get("alice", chat.session_id)).message_count == 4


@pytest.fixture
async def narrow_store(any_redis: AnyRedis, prefix: str) -> AsyncIterator[SessionStore]:
    """A store in which little has room."""
    quotas = Quotas(sessions_per_user=2, messages_per_session=3, bytes_per_session=20_000)
    store = await SessionStore.open(any_redis.url, prefix=prefix, quotas=quotas)
    yield store
    await store.close()


async def test_what_comes_before_counts_in_the_quota(narrow_store: SessionStore) -> None:
    chat = await Chat.create(narrow_store)
    with pytest.raises(QuotaExceeded):
        await begin(chat, before=(user_message("one"), user_message("two")))
    assert await path(chat) == []


async def test_hidden_sessions_count_in_the_quota(narrow_store: SessionStore) -> None:
    await Chat.create(narrow_store, hidden=True)
    await Chat.create(narrow_store)
    for hidden in (False, True):
        with pytest.raises(QuotaExceeded):
            await Chat.create(narrow_store, hidden=hidden)
    assert (await narrow_store.budgets.usage(["alice"]))[0].num_sessions == 2


async def test_a_response_that_nothing_follows_goes_with_its_text(chat: Chat) -> None:
    first = await begin(chat)
    await chat.finish(first.response_id, 2, message=assistant_message("", id=first.message_id))
    size = await bytes_of(chat)
    second = await begin(chat, first.message_id)
    await chat.finish(second.response_id, 2, message=assistant_message("", id=second.message_id))
    ids = [*second.input_ids, second.message_id]
    assert await chat.store.kept_responses.remove("alice", second.response_id, ids) == 2
    assert await path(chat) == [*first.input_ids, first.message_id]
    assert await bytes_of(chat) == size
    with pytest.raises(ResponseNotFound):
        await chat.store.runs.get("alice", second.response_id)
    with pytest.raises(MessageNotFound):
        await chat.store.messages.get("alice", chat.session_id, second.message_id)


async def test_the_text_of_a_response_that_is_followed_stays(chat: Chat) -> None:
    first = await begin(chat)
    await chat.finish(first.response_id, 2, message=assistant_message("", id=first.message_id))
    second = await begin(chat, first.message_id)
    ids = [*first.input_ids, first.message_id]
    assert await chat.store.kept_responses.remove("alice", first.response_id, ids) == 4
    assert await path(chat) == [*ids, *second.input_ids, second.message_id]
    with pytest.raises(ResponseNotFound):
        await chat.store.kept_responses.get("alice", first.response_id)


async def test_a_response_that_is_being_written_stays(chat: Chat) -> None:
    kept = await begin(chat)
    with pytest.raises(RunLive):
        await chat.store.kept_responses.remove("alice", kept.response_id)
    assert await chat.store.kept_responses.get("alice", kept.response_id) == kept


async def test_nobody_else_removes_it(chat: Chat) -> None:
    kept = await begin(chat)
    with pytest.raises(ResponseNotFound):
        await chat.store.kept_responses.remove("bob", kept.response_id)


async def test_a_hidden_session_is_in_no_list_but_its_own(store: SessionStore) -> None:
    hidden = await Chat.create(store, hidden=True)
    shown = await Chat.create(store)
    kept = await begin(hidden)
    await hidden.finish(kept.response_id, 2)
    lists = store.lists
    assert [one.id for one in (await lists.page("alice")).sessions] == [shown.session_id]
    page = await lists.page("alice", hidden=True)
    assert [one.id for one in page.sessions] == [hidden.session_id]


async def test_hidden_sessions_that_have_gone_are_no_part_of_the_quota(
    narrow_store: SessionStore,
) -> None:
    index = narrow_store.keys.user_hidden_sessions("alice")
    await narrow_store.client.call("ZADD", index, 5, new_session_id(), 5, new_session_id())
    await Chat.create(narrow_store, hidden=True)
    assert await narrow_store.client.call("ZCARD", index) == 1


async def test_an_entry_of_an_older_version_shows_no_hidden_session(store: SessionStore) -> None:
    hidden = await Chat.create(store, hidden=True)
    await store.client.call("ZADD", store.keys.user_sessions("alice"), 1, hidden.session_id)
    assert (await store.lists.page("alice")).sessions == ()


async def test_a_session_with_a_life_of_its_own_goes_after_it(store: SessionStore) -> None:
    chat = await Chat.create(store, hidden=True, life_seconds=60)
    key = store.keys.session(chat.session_id, "m")
    assert 0 < await store.client.call("PTTL", key) <= 60_000
    kept = await begin(chat)
    assert await store.client.call("PTTL", key) == -1
    await chat.finish(kept.response_id, 2)
    assert 0 < await store.client.call("PTTL", key) <= 60_000
