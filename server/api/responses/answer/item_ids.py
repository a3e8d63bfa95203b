"""The ids of an answer's items: those of its message's (`server/api/items/ids.py`), and of more.

An answer that changes between thoughts and words more than once has several items of a kind; those
after the first have their place after the id.
"""

from server.api.items.ids import reasoning_id


def words_item_id(message_id: str, place: int) -> str:
    """Of what is said; `place` counts from 0."""
    return f"{message_id}_{place}" if place else message_id


def thought_item_id(message_id: str, place: int) -> str:
    """Of what is thought."""
    first = reasoning_id(message_id)
    return f"{first}_{place}" if place else first
