"""What happens when messages are added: they stand after the head, all of them or none."""

from collections.abc import Callable, Sequence
from typing import Final

from sessions.model.errors import HeadMoved
from sessions.model.records import Message
from sessions.store.store import SessionStore

MAX_TRIES: Final = 4  # each means that somebody else added something meanwhile
END_MESSAGES: Final = 50  # of a path: as many as say which calls wait for outputs

Drafted = Callable[[str | None, Sequence[Message]], list[Message]]


async def add_messages(
    store: SessionStore, uid: str, session_id: str, drafted: Drafted
) -> list[Message]:
    """Add what `drafted` makes of the head's id and the end of the path to it, oldest first.

    Raises what `drafted` and `Messages.add` do.
    """
    for tries_left in reversed(range(MAX_TRIES)):
        page = await store.messages.path(uid, session_id, limit=END_MESSAGES)
        head = page.messages[-1].id if page.messages else None
        messages = drafted(head, page.messages)
        if not messages:
            return []
        try:
            await store.messages.add(uid, session_id, messages, head=head)
        except HeadMoved:
            if not tries_left:
                raise
        else:
            return messages
    raise AssertionError("the last try raises")
