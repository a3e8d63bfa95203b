"""What a response was asked: the items of its branch up to its own input, in pages."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from server.api.items.output_items import Item, items_of_path
from sessions.model.errors import ItemNotFound, MessageNotFound, ResponseNotFound
from sessions.model.ids import session_of
from sessions.model.records import Message
from sessions.store.kept.responses import KeptResponse
from sessions.store.messages import Messages


class ItemsQuery(Struct, frozen=True):
    """`after` is an item's id; `order` says which come first: the newest ones unless it is asc."""

    after: Annotated[str, Meta(max_length=64)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


async def input_items(messages: Messages, kept: KeptResponse, query: ItemsQuery) -> dict[str, Any]:
    """The page as OpenAI's clients read it. Raises `ResponseNotFound`, `ItemNotFound`."""
    items = await _items(messages, kept)
    if query.order == "desc":
        items.reverse()
    begin = 0
    if query.after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == query.after]
        if not places:
            raise ItemNotFound
        begin = places[0] + 1
    page = items[begin : begin + query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > begin + query.limit,
    }


async def _items(messages: Messages, kept: KeptResponse) -> list[Item]:
    session_id = session_of(kept.response_id)
    try:
        ids = await messages.ids_to(session_id, kept.input_ids[-1])
    except MessageNotFound:
        raise ResponseNotFound from None
    found: list[Message] = []
    async for message, _ in messages.bodies(session_id, ids):
        found.append(message)
    return items_of_path(found)
