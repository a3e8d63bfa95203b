"""The items of a session's branch: a page of them, or one."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from server.api.items.ids import message_of
from server.api.items.output_items import Item, items_of, served_calls
from sessions.model.errors import ItemNotFound
from sessions.model.records import Message
from sessions.store.messages import Messages

MAX_PAGE_BYTES: Final = 2 * 1024 * 1024  # of a page: a larger one would hold up others' frames


async def read_page(
    messages: Messages,
    uid: str,
    session_id: str,
    *,
    after: str | None,
    limit: int,
    is_newest_first: bool,
) -> tuple[list[Item], bool]:
    """Up to `limit` items in that order, and whether there are more.

    It ends earlier where its items are long. Raises `SessionNotFound`, and `ItemNotFound` for an
    `after` that is no item of the branch.
    """
    branch = await messages.branch(uid, session_id)
    places = range(len(branch))
    if is_newest_first:
        places = places[::-1]
    if after is not None:
        places = places[places.index(_place_in(branch, after)) :]
    found: list[Item] = []
    num_bytes = 0
    waits = after is not None  # for the item that the page comes after
    async with aclosing(_read(messages, session_id, branch, places, limit + 1)) as read:
        async for message, before in read:
            items = items_of(message, served_calls(before))
            for item in reversed(items) if is_newest_first else items:
                if waits:
                    waits = item["id"] != after
                    continue
                if len(found) == limit or (found and num_bytes > MAX_PAGE_BYTES):
                    return found, True
                found.append(item)
            if waits:
                raise ItemNotFound
            num_bytes += message.wire_bytes
    return found, False


async def read_item(messages: Messages, uid: str, session_id: str, item_id: str) -> Item:
    """One item of the branch. Raises `SessionNotFound`, `ItemNotFound`."""
    branch = await messages.branch(uid, session_id)
    place = _place_in(branch, item_id)
    async with aclosing(_read(messages, session_id, branch, range(place, place + 1), 1)) as read:
        async for message, before in read:
            for item in items_of(message, served_calls(before)):
                if item["id"] == item_id:
                    return item
    raise ItemNotFound


def _place_in(branch: list[str], item_id: str) -> int:
    message_id = message_of(item_id)
    if message_id is None or message_id not in branch:
        raise ItemNotFound
    return branch.index(message_id)


async def _read(
    messages: Messages, session_id: str, branch: list[str], places: range, step: int
) -> AsyncGenerator[tuple[Message, Message | None]]:
    """The messages at these places, `step` at a time, and of each the one before it.

    A tool's message needs that: its call may hold already what it gave back.
    """
    for begin in range(0, len(places), step):
        part = places[begin : begin + step]
        at = max(min(part[0], part[-1]) - 1, 0)
        known: dict[int, Message] = {}
        wanted = branch[at : max(part[0], part[-1]) + 1]
        async with aclosing(messages.bodies(session_id, wanted)) as bodies:
            async for message, _ in bodies:
                known[at] = message
                at += 1
        for place in part:
            yield known[place], known.get(place - 1)
