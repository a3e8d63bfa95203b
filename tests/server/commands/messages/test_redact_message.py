"""What a message says is deleted as it is at that moment, and not while it is written."""

from dataclasses import replace
from typing import Any

import pytest

from server.commands.messages.redact_message import MAX_TRIES, redact_message
from sessions.model.errors import MessageChanged, ResponseInProgress
from sessions.model.records import Message
from tests.sessions.helpers.chat import Chat, user_message


def emptied(message: Message) -> Message | None:
    return replace(message, text="", redacted=["message"]) if message.text else None


async def test_a_message_is_emptied_once(chat: Chat) -> None:
    message = user_message("secret")
    await chat.store.messages.add("alice", chat.session_id, [message], head=None)
    was = await redact_message(chat.store, "alice", chat.session_id, message.id, emptied)
    assert was == message
    assert await redact_message(chat.store, "alice", chat.session_id, message.id, emptied) is None


async def test_one_that_is_written_is_left_alone(chat: Chat) -> None:
    begun = await chat.begin("hello")
    answer = chat.messages[begun.response_id].id
    with pytest.raises(ResponseInProgress):
        await redact_message(chat.store, "alice", chat.session_id, answer, emptied)


async def test_who_was_overtaken_tries_again_and_hears_of_it_in_the_end(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = user_message("secret")
    await chat.store.messages.add("alice", chat.session_id, [message], head=None)
    tries = []

    async def changed(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise MessageChanged

    monkeypatch.setattr(chat.store.messages, "replace", changed)
    with pytest.raises(MessageChanged):
        await redact_message(chat.store, "alice", chat.session_id, message.id, emptied)
    assert len(tries) == MAX_TRIES
