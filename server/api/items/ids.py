"""The ids of items and conversations, made of ours and read without a table.

A conversation is a session, by another name. An item's id says which message it is of: the text of
a message has the message's own. Its other items have the same 22 characters after another word,
and those of which there may be several their place among them.
"""

import re
from typing import Final

from sessions.model.ids import is_message_id, is_session_id

_DERIVED: Final = re.compile(r"(?:rs|(?:fc|fco|mcp)(?=_.{22}_[0-9]{1,4}\Z))_([A-Za-z0-9_-]{22})")


def conversation_id_of(session_id: str) -> str:
    """What OpenAI's clients call that session."""
    return "conv_" + session_id.removeprefix("ses_")


def session_of_conversation(conversation_id: str) -> str | None:
    """The session of that name; None for what is no conversation's."""
    session_id = "ses_" + conversation_id.removeprefix("conv_")
    is_one = conversation_id.startswith("conv_") and is_session_id(session_id)
    return session_id if is_one else None


def reasoning_id(message_id: str) -> str:
    """Of what was thought before that message."""
    return "rs_" + message_id.removeprefix("msg_")


def call_item_id(message_id: str, place: int) -> str:
    """Of a call that the client answers; `place` counts all calls of the message, from 0."""
    return f"fc_{message_id.removeprefix('msg_')}_{place}"


def server_call_item_id(message_id: str, place: int) -> str:
    """Of a call that the server carries out, counted likewise."""
    return f"mcp_{message_id.removeprefix('msg_')}_{place}"


def output_item_id(message_id: str, place: int) -> str:
    """Of an output in a tool's message, counted from 0."""
    return f"fco_{message_id.removeprefix('msg_')}_{place}"


def message_of(item_id: str) -> str | None:
    """The id of the message that an item with this id is of; None for what is no item's id."""
    if is_message_id(item_id):
        return item_id
    found = _DERIVED.match(item_id)
    if found is None or (item_id.startswith("rs_") and found.end() != len(item_id)):
        return None
    return "msg_" + found[1]
