"""Messages are added after the head of that moment, also if others add some."""

from collections.abc import Sequence
from typing import Any

import pytest

from server.commands.messages.add_messages import MAX_TRIES, add_messages
from sessions.model.errors import HeadMoved
from sessions.model.records import Message
from tests.sessions.helpers.chat import Chat, user_message


def drafted(head: str | None, path: Sequence[Message]) -> list[Message]:
    return [user_message(f"{len(path)} before").with_parent(head)]


async def test_who_was_overtaken_makes_them_anew(chat: Chat) -> None:
    store, session_id = chat.store, chat.session_id
    other = user_message("faster")
    calls: list[str | None] = []

    def overtaken(head: str | None, path: Sequence[Message]) -> list[Message]:
        calls.append(head)
        return drafted(head, path)

    add = store.messages.add

    async def late(*given: Any, **options: Any) -> None:
        if len(calls) == 1:
            await add("alice", session_id, [other], head=None)
        await add(*given, **options)

    # In the place of the method, so that somebody else is faster each time.
    store.messages.add = late  # type: ignore[method-assign]
    (message,) = await add_messages(store, "alice", session_id, overtaken)
    assert (calls, message.text) == ([None, other.id], "1 before")
    assert await store.messages.branch("alice", session_id) == [other.id, message.id]


async def test_who_is_always_overtaken_hears_of_it(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def moved(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise HeadMoved

    monkeypatch.setattr(chat.store.messages, "add", moved)
    with pytest.raises(HeadMoved):
        await add_messages(chat.store, "alice", chat.session_id, drafted)
    assert len(tries) == MAX_TRIES


async def test_nothing_is_added_of_nothing(chat: Chat) -> None:
    def nothing(head: str | None, path: Sequence[Message]) -> list[Message]:
        return []

    assert await add_messages(chat.store, "alice", chat.session_id, nothing) == []
    assert (await chat.store.sessions.get("alice", chat.session_id)).offset == 1
