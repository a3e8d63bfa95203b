"""What goes into scripts and what their refusals mean, in one place for the whole store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import orjson

from sessions.connection.client import Argument
from sessions.model.codec import MANAGED_RUN_FIELDS, encode_body
from sessions.model.errors import (
    CancelPending,
    IdempotencyKeyReused,
    MessageChanged,
    MessageNotFound,
    QueueFull,
    ResponseInProgress,
    RunEnded,
    RunGone,
    RunLost,
    SequenceGap,
    SessionLocked,
    SessionNotFound,
)
from sessions.model.ids import is_idempotency_key
from sessions.model.records import Message

_UID: Final = re.compile(r"[^\s{}]{1,128}\Z")


def check_uid(uid: str) -> None:
    """Raise `ValueError` for what cannot stand in a key or in a script's reply."""
    if not _UID.match(uid):
        raise ValueError("a user id is 1 to 128 characters with no space and no brace")


def owner_argument(uid: str | None) -> str:
    """The uid as scripts take it: empty for None, which skips the owner check."""
    if uid is None:
        return ""
    check_uid(uid)
    return uid


def check_idempotency_key(key: str) -> None:
    """Raise `ValueError` for a malformed key."""
    if not is_idempotency_key(key):
        raise ValueError("an idempotency key is 1 to 128 characters of [A-Za-z0-9_-]")


def check_owner(uid: str | None, stored: bytes | None) -> None:
    """Raise `SessionNotFound` unless the stored uid is this one; None skips the comparison."""
    if stored is None or owner_argument(uid) not in ("", stored.decode()):
        raise SessionNotFound


def field_arguments(
    own: Mapping[str, str | int], fields: Mapping[str, str | int] | None
) -> list[Argument]:
    """Name and value pairs for a run hash; raises `ValueError` for a field that scripts manage."""
    if managed := MANAGED_RUN_FIELDS & set(fields or ()):
        raise ValueError(f"run fields {sorted(managed)} are set by the store")
    return [part for pair in {**(fields or {}), **own}.items() for part in pair]


def message_arguments(message: Message | None, parent_id: str | None) -> tuple[Argument, ...]:
    """Id, stored body and event JSON of a message under that parent; empty without one."""
    if message is None:
        return "", "", ""
    placed = message.with_parent(parent_id)
    return placed.id, encode_body(placed), orjson.dumps(placed.event_wire())


def optional_number(text: bytes) -> int | None:
    """A number that a script may leave empty."""
    return int(text) if text else None


def raise_begin_error(word: str, detail: str) -> NoReturn:
    """The error that a refusing word of begin_response means."""
    match word:
        case "key_reused":
            raise IdempotencyKeyReused(detail)
        case "busy":
            raise ResponseInProgress(detail)
        case "queue_full":
            raise QueueFull(detail)
        case "locked":
            raise SessionLocked(detail)
        case "parent_not_found":
            raise MessageNotFound
        case "changed":
            raise MessageChanged
        case _:
            raise SessionNotFound


def raise_run_error(reply: Sequence[Any]) -> NoReturn:
    """The error that a refusal to write a run means."""
    word, *rest = reply
    match word:
        case b"lost":
            raise RunLost(rest[0], rest[1].decode())
        case b"ended":
            status, reason, sequence_number, engine, text_length, fence = rest
            raise RunEnded(
                status.decode(),
                reason.decode(),
                sequence_number,
                engine.decode(),
                text_length,
                fence,
            )
        case b"gap":
            raise SequenceGap(rest[0], num_tokens=rest[-1])
        case b"cancelled":
            raise CancelPending(optional_number(rest[0]), rest[1].decode(), rest[2].decode())
        case _:
            raise RunGone
