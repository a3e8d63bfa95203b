"""Whose turn it is, read in one call with an end."""

from __future__ import annotations

import pytest

from sessions.directory.users import Users
from sessions.model.errors import SessionNotFound
from sessions.model.ids import new_session_id
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat
from tests.sessions.helpers.queued import queued


async def test_an_end_brings_what_has_its_turn_where_it_is_asked_for(store: SessionStore) -> None:
    users = Users(store.client, store.keys)
    user = await users.create("Alice")
    chat = await Chat.create(store, uid=user.uid)
    for is_gone in (False, True):
        await users.update(user.uid, disabled=is_gone)
        begun = await chat.begin("hello")
        await store.queues.add(user.uid, chat.session_id, queued(f"{is_gone}"))
        turn = (await chat.finish(begun.response_id, 2, turn_of=user.uid)).turn
        assert turn == await store.queues.turn(chat.session_id)
        assert turn is not None and turn.is_user_gone is is_gone
        assert (turn.session.active_response_id, turn.queue.items[-1].text) == (None, f"{is_gone}")
    begun = await chat.begin("hello")
    assert (await chat.finish(begun.response_id, 2)).turn is None


async def test_a_session_that_is_gone_has_no_turns(store: SessionStore) -> None:
    with pytest.raises(SessionNotFound):
        await store.queues.turn(new_session_id())
