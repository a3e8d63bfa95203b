"""An item is deleted: what it says goes, wherever the session keeps it, and its message stays."""

from server.api.conversations.reading import read_item
from server.api.items.ids import message_of
from server.api.items.output_items import Item
from server.api.items.redaction import without_item, without_output_of
from server.commands.messages.redact_message import redact_message
from sessions.model.errors import ItemNotFound
from sessions.model.records import Message
from sessions.store.store import SessionStore


async def delete_item(store: SessionStore, uid: str, session_id: str, item_id: str) -> None:
    """Raises `SessionNotFound`, `ItemNotFound`, and `ResponseInProgress` for what is written."""
    item = await read_item(store.messages, uid, session_id, item_id)
    message_id = message_of(item_id)
    assert message_id is not None  # or it would not have been found
    if item["type"] == "mcp_call":
        await _delete_outcome(store, uid, session_id, message_id, item)

    def rest(message: Message) -> Message | None:
        return without_item(message, item_id)

    if not await redact_message(store, uid, session_id, message_id, rest):
        raise ItemNotFound  # somebody was faster


async def _delete_outcome(
    store: SessionStore, uid: str, session_id: str, message_id: str, item: Item
) -> None:
    """The message after a server's call repeats what the call gave back."""
    message = await store.messages.get(uid, session_id, message_id)
    call_id = (message.tool_calls or [])[int(item["id"].rpartition("_")[2])]["call_id"]
    branch = await store.messages.branch(uid, session_id)
    following = branch[branch.index(message_id) + 1 :][:1]

    def rest(message: Message) -> Message | None:
        return without_output_of(message, call_id)

    for each in following:
        await redact_message(store, uid, session_id, each, rest)
