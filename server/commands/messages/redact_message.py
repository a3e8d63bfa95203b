"""What happens when something is deleted of a message: its words go, and its place stays."""

from collections.abc import Callable
from typing import Final

from sessions.model.errors import MessageChanged, ResponseInProgress
from sessions.model.records import Message
from sessions.store.store import SessionStore

MAX_TRIES: Final = 4  # each means that the message was changed meanwhile


async def redact_message(
    store: SessionStore,
    uid: str,
    session_id: str,
    message_id: str,
    rest: Callable[[Message], Message | None],
) -> Message | None:
    """Write what `rest` leaves of the message; returns it as it was, or None if `rest` says None.

    Raises `SessionNotFound`, `MessageNotFound`, and `ResponseInProgress` for one that is written.
    """
    for tries_left in reversed(range(MAX_TRIES)):
        message, version = await store.messages.with_version(uid, session_id, message_id)
        if message.status == "in_progress":
            raise ResponseInProgress(message.response_id or "")
        left = rest(message)
        if left is None:
            return None
        try:
            await store.messages.replace(uid, session_id, left, version)
        except MessageChanged:
            if not tries_left:
                raise
        else:
            return message
    raise AssertionError("the last try raises")
