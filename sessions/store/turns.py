"""Whose turn it is in a session: what may begin there by itself, read with one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessions.connection.client import Command
from sessions.model.codec import decode_session
from sessions.model.ids import is_user_id
from sessions.model.queue import QUEUE_FIELDS, decode_queue
from sessions.model.replies import Turn
from sessions.store.context import StoreContext


def turn_commands(context: StoreContext, session_id: str, uid: str) -> list[Command]:
    """The commands whose replies `decode_turn` takes; `uid` is the session's user."""
    queue: Command = ("HMGET", context.keys.session(session_id, "m"), *QUEUE_FIELDS)
    return [context.read_session(session_id), queue, *user_commands(context, uid)]


def user_commands(context: StoreContext, uid: str) -> list[Command]:
    """The command whose reply `is_gone` takes; none for users that are built in, without record."""
    if not is_user_id(uid):
        return []
    return [("HMGET", context.keys.user_record(uid), "created_at", "disabled")]


def decode_turn(session_id: str, replies: Sequence[Any]) -> Turn | None:
    """None if the session is gone."""
    session = decode_session(session_id, replies[0])
    if session is None:
        return None
    return Turn(session, decode_queue(replies[1]), is_user_gone=any(map(is_gone, replies[2:])))


def is_gone(record: Sequence[bytes | None]) -> bool:
    """Whether that user was disabled or removed."""
    return record[0] is None or record[1] == b"1"
